// Counter-based random numbers (Philox 4x32-10). A number depends on the run's seed, a global name and a global
// index, never on a rank or on the number of calls. Every layout therefore draws the same weights and the same data.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

class RandomStream {
 public:
  RandomStream(std::uint64_t seed, std::string_view name);
  // Uniform over all 64-bit values.
  std::uint64_t bits(std::uint64_t index) const;
  // Uniform in (0, 1).
  double uniform(std::uint64_t index) const;
  // Standard normal by Box-Muller from the four words of one counter.
  double normal(std::uint64_t index) const;

 private:
  std::uint64_t key_;
};

}  // namespace weft
