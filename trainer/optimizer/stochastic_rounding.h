// Stochastic rounding to bfloat16: up or down with the probability that makes the mean exact, so that changes far below
// the last bit of a parameter add up over steps instead of vanishing. The random bits are a function of the run's seed,
// the step, the parameter's global name, the element's place in it and the array; so they depend neither on the layout
// nor on the device. Compiled for the CPU and, as constexpr, by nvcc for the GPU.
//
// Bits are SplitMix64's (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators", with Stafford's
// mix 13): its n-th output is mix(start + n gamma), a counter-based generator at two multiplications an element, where
// Philox takes twenty and would hold up a kernel that otherwise waits for memory.
#pragma once

#include <cstdint>

namespace weft {

inline constexpr std::uint64_t golden_gamma = 0x9e3779b97f4a7c15u;

constexpr std::uint64_t mix_bits(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  return bits ^ (bits >> 31);
}

// Where the numbers of one parameter start in one step. `name_key` hashes the run's seed and the global name.
constexpr std::uint64_t rounding_start(std::uint64_t name_key, std::int64_t step) {
  return mix_bits(name_key ^ mix_bits(static_cast<std::uint64_t>(step) * golden_gamma));
}
// Of one element; each array has 16 bits of its own in them.
constexpr std::uint64_t rounding_bits(std::uint64_t start, std::uint64_t index) {
  return mix_bits(start + (index + 1) * golden_gamma);
}
enum class RoundedArray : std::uint8_t { parameters, first_state, second_state };
constexpr std::uint32_t bits_for(RoundedArray array, std::uint64_t bits) {
  return static_cast<std::uint32_t>(bits >> (16 * static_cast<int>(array))) & 0xffffu;
}

// The bits of a bfloat16 from those of a float32 and 16 random ones. The 16 bits that go are the distance from the
// value next to zero in 2^-16 of a step: they carry into the bits that stay in just as many cases of 2^16. Exact values
// and infinities stay; NaN stays NaN. Beyond the largest finite value the next step is infinity.
constexpr std::uint16_t round_stochastically(std::uint32_t value, std::uint32_t random) {
  const bool is_nan = (value & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? (value >> 16) | 0x40u : (value + random) >> 16);
}

}  // namespace weft
