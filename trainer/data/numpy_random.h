// The parts of NumPy that Megatron's orders need, bit for bit: shuffles of numpy.random.RandomState and the rounding of
// numpy.sum. std::shuffle would give another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace weft {

// A number of 0 .. most, as random_interval of numpy/random/src/distributions: bits of the generator under the smallest
// mask that covers `most`, drawn again while they are larger. Above 2^32 - 1 the first of two draws is the upper half.
std::uint64_t numpy_interval(std::mt19937& generator, std::uint64_t most);

// RandomState.shuffle of a one-dimensional array. RandomState(seed) is std::mt19937(seed); one generator serves several
// shuffles in turn.
template <typename Number>
void numpy_shuffle(std::span<Number> numbers, std::mt19937& generator) {
  for (std::size_t i = numbers.size(); i-- > 1;) std::swap(numbers[i], numbers[numpy_interval(generator, i)]);
}

// numpy.sum of a contiguous array of float64: pairwise, in blocks of 128 with eight partial sums
// (numpy/_core/src/umath/loops_utils.h.src). From eight numbers on it rounds otherwise than a loop.
double numpy_sum(std::span<const double> numbers);

}  // namespace weft
