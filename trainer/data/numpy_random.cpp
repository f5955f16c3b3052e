#include "trainer/data/numpy_random.h"

#include <array>
#include <bit>

namespace weft {

std::uint64_t numpy_interval(std::mt19937& generator, std::uint64_t most) {
  if (most == 0) return 0;
  const std::uint64_t mask = ~std::uint64_t{0} >> std::countl_zero(most);
  const bool wide = most > 0xffffffffu;
  while (true) {
    std::uint64_t value = generator();
    if (wide) value = value << 32 | generator();
    value &= mask;
    if (value <= most) return value;
  }
}

double numpy_sum(std::span<const double> numbers) {
  constexpr std::size_t lanes = 8, block = 128;
  const std::size_t count = numbers.size();
  if (count > block) {
    std::size_t half = count / 2;
    half -= half % lanes;
    return numpy_sum(numbers.first(half)) + numpy_sum(numbers.subspan(half));
  }
  double sum = 0;
  std::size_t next = 0;
  if (count >= lanes) {
    std::array<double, lanes> partial{};
    for (; next + lanes <= count; next += lanes) {
      for (std::size_t lane = 0; lane < lanes; ++lane) partial[lane] += numbers[next + lane];
    }
    sum = ((partial[0] + partial[1]) + (partial[2] + partial[3])) +
          ((partial[4] + partial[5]) + (partial[6] + partial[7]));
  }
  for (; next < count; ++next) sum += numbers[next];
  return sum;
}

}  // namespace weft
