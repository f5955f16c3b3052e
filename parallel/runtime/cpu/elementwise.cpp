#include "parallel/runtime/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "parallel/runtime/element_type.h"

namespace weft::cpu {
namespace {

template <typename From, typename To>
WEFT_INLINE void cast_loop(const From* from, To* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) assign(to[i], static_cast<float>(from[i]));
}

template <typename From, typename To>
WEFT_INLINE void add_loop(const From* from, To* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) assign(to[i], static_cast<float>(to[i]) + static_cast<float>(from[i]));
}

// The fused operation is explicit, so that the vector loop and its scalar remainder round alike.
template <typename T>
WEFT_INLINE void combine_loop(float factor, const T* from, float to_factor, T* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    assign(to[i], std::fma(factor, static_cast<float>(from[i]), to_factor * static_cast<float>(to[i])));
  }
}
WEFT_MULTIVERSION void combine(Stream&, float factor, ConstTensorView source, float destination_factor,
                               TensorView destination) {
  with_element_type(
      source.dtype(), [&](auto element) __attribute__((always_inline)) {
        using T = decltype(element);
        combine_loop(factor, source.as<T>().data(), destination_factor, destination.as<T>().data(), source.size());
      });
}

WEFT_MULTIVERSION void scale_by_double(float* data, double factor, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) data[i] = static_cast<float>(data[i] * factor);
}

// Eight partial sums, so that the order of additions does not depend on the width of the machine's vectors.
WEFT_MULTIVERSION double square_sum_loop(const float* data, std::int64_t count) {
  double partial[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) partial[lane] += static_cast<double>(data[i + lane]) * data[i + lane];
  }
  double sum = 0;
  for (double value : partial) sum += value;
  for (; i < count; ++i) sum += static_cast<double>(data[i]) * data[i];
  return sum;
}

// The exponent of a NaN or an infinity is all ones.
WEFT_MULTIVERSION std::int32_t count_nonfinite_loop(const float* data, std::int64_t count) {
  std::int32_t found = 0;
#pragma omp simd reduction(+ : found)
  for (std::int64_t i = 0; i < count; ++i) {
    found += (std::bit_cast<std::uint32_t>(data[i]) & 0x7f800000u) == 0x7f800000u ? 1 : 0;
  }
  return found;
}

void divide_by_root(Stream&, ConstTensorView square_sum, TensorView destination) {
  const double sum = square_sum.as<double>()[0];
  scale_by_double(destination.as<float>().data(), sum == 0.0 ? 0.0 : 1.0 / std::sqrt(sum), destination.size());
}

void square_sum(Stream&, ConstTensorView source, TensorView sum) {
  sum.as<double>()[0] += square_sum_loop(source.as<float>().data(), source.size());
}

void count_nonfinite(Stream&, ConstTensorView source, TensorView count) {
  count.as<std::int32_t>()[0] += count_nonfinite_loop(source.as<float>().data(), source.size());
}

void copy_columns(Stream&, ConstTensorView source, std::int64_t source_column, TensorView destination,
                  std::int64_t destination_column, std::int64_t columns) {
  const std::int64_t width = size_of(source.dtype());
  for (std::int64_t row = 0; row < source.rows(); ++row) {
    std::memcpy(destination.data() + (row * destination.columns() + destination_column) * width,
                source.data() + (row * source.columns() + source_column) * width,
                static_cast<std::size_t>(columns * width));
  }
}

}  // namespace

WEFT_MULTIVERSION void cast(ConstTensorView source, TensorView destination) {
  if (source.dtype() == destination.dtype()) {
    std::memcpy(destination.data(), source.data(), static_cast<std::size_t>(source.bytes()));
    return;
  }
  with_element_type(
      source.dtype(), [&](auto from) __attribute__((always_inline)) {
        with_element_type(
            destination.dtype(), [&](auto to) __attribute__((always_inline)) {
              cast_loop(source.as<decltype(from)>().data(), destination.as<decltype(to)>().data(), source.size());
            });
      });
}

WEFT_MULTIVERSION void add(ConstTensorView source, TensorView destination) {
  with_element_type(
      source.dtype(), [&](auto element) __attribute__((always_inline)) {
        using From = decltype(element);
        const From* from = source.as<From>().data();
        if (destination.dtype() == DType::float32) {
          add_loop(from, destination.as<float>().data(), source.size());
        } else {
          add_loop(from, destination.as<From>().data(), source.size());
        }
      });
}

void fill(TensorView destination, float value) {
  with_stored_type(destination.dtype(), "filled", [&](auto element) {
    using T = decltype(element);
    std::ranges::fill(destination.as<T>(), static_cast<T>(value));
  });
}

const ElementwiseKernels elementwise_kernels = {
    .cast = [](Stream&, ConstTensorView source, TensorView destination) { cast(source, destination); },
    .add = [](Stream&, ConstTensorView source, TensorView destination) { add(source, destination); },
    .combine = combine,
    .divide_by_root = divide_by_root,
    .fill = [](Stream&, TensorView destination, float value) { fill(destination, value); },
    .square_sum = square_sum,
    .count_nonfinite = count_nonfinite,
    .copy_columns = copy_columns,
    .reduce_elements = reduce_elements};

}  // namespace weft::cpu
