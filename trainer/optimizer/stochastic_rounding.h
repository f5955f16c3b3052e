// Stochastic rounding to bfloat16: up or down with the probability that makes the mean exact. So changes far below the
// last bit of a parameter add up over steps instead of vanishing. The random bits are a function of the run's seed, the
// step, the parameter's global name, the element's index in the parameter and the array. They depend neither on the
// layout nor on the device. Compiled for the CPU and, as constexpr, by nvcc for the GPU.
//
// The bits come from SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", with
// Stafford's mix 13). Its n-th output is mix(start + n gamma): a counter-based generator with two multiplications an
// element. Philox takes twenty, which would slow down a kernel that is otherwise bound by memory.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

constexpr std::uint64_t mix_bits(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// Start of the random numbers of one parameter in one step. `name_key` hashes the run's seed and the global name.
constexpr std::uint64_t rounding_start(std::uint64_t name_key, std::int64_t step) {
  return mix_bits(name_key ^ mix_bits(static_cast<std::uint64_t>(step) * golden_gamma));
}
// 64 random bits of one element; bits_for() takes 16 of them for each array.
constexpr std::uint64_t rounding_bits(std::uint64_t start, std::uint64_t index) {
  return mix_bits(start + (index + 1) * golden_gamma);
}
enum class RoundedArray : std::uint8_t { parameters, first_state, second_state };
constexpr std::uint32_t bits_for(RoundedArray array, std::uint64_t bits) {
  return static_cast<std::uint32_t>(bits >> (16 * static_cast<int>(array))) & 0xffffu;
}

// The bits of a bfloat16, from the bits of a float32 and 16 random bits. The lower 16 bits of the float32 are its
// distance from the bfloat16 towards zero, in 2^-16 of a step. Adding 16 random bits carries into the upper half with
// exactly this probability. Exact values and infinities stay; NaN stays NaN. The step above the largest finite value is
// infinity.
constexpr std::uint16_t round_stochastically(std::uint32_t value, std::uint32_t random) {
  const bool is_nan = (value & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? (value >> 16) | 0x40u : (value + random) >> 16);
}

}  // namespace weft
