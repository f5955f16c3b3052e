// The noise of a router's input, as CPU and GPU draw it.
#pragma once

#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define WEFT_ON_ANY_DEVICE __host__ __device__
#else
#define WEFT_ON_ANY_DEVICE
#endif

namespace weft {

// A number near 1: evenly from [1 - noise, 1 + noise], in steps of noise * 2^-23. The finaliser of MurmurHash3 mixes
// the key of a token and a column.
WEFT_ON_ANY_DEVICE inline float jitter_factor(std::uint32_t key, std::uint32_t column, float noise) {
  std::uint32_t bits = key ^ (column * 0x9e3779b9u);
  bits = (bits ^ (bits >> 16)) * 0x85ebca6bu;
  bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
  bits ^= bits >> 16;
  const float even = static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;  // exact
  return fmaf(noise, even, 1.0f);
}

}  // namespace weft
