#include "parallel/runtime/random.h"

#include <Random123/philox.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <array>
#include <cmath>
#include <numbers>

namespace weft {
namespace {

std::array<std::uint64_t, 2> draw(std::uint64_t key, std::uint64_t index) {
  const r123::Philox4x32::ctr_type counter{
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}};
  const r123::Philox4x32::key_type words{{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
  const auto out = r123::Philox4x32()(counter, words);
  return {out[0] | static_cast<std::uint64_t>(out[1]) << 32, out[2] | static_cast<std::uint64_t>(out[3]) << 32};
}

// The middle of one of 2^53 equal cells of (0, 1): never 0, so a logarithm is safe.
double to_unit(std::uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53;
}

}  // namespace

RandomStream::RandomStream(std::uint64_t seed, std::string_view name)
    : key_(XXH3_64bits_withSeed(name.data(), name.size(), seed)) {}

std::uint64_t RandomStream::bits(std::uint64_t index) const {
  return draw(key_, index)[0];
}

double RandomStream::uniform(std::uint64_t index) const {
  return to_unit(draw(key_, index)[0]);
}

double RandomStream::normal(std::uint64_t index) const {
  const auto words = draw(key_, index);
  return std::sqrt(-2.0 * std::log(to_unit(words[0]))) * std::cos(2.0 * std::numbers::pi * to_unit(words[1]));
}

}  // namespace weft
