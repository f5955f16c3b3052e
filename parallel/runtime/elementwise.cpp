#include "parallel/runtime/elementwise.h"

#include <algorithm>
#include <cstring>

#include "parallel/runtime/multiversion.h"

namespace weft {
namespace {

WEFT_MULTIVERSION void cast_down(const float* from, bfloat16* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) assign(to[i], from[i]);
}
WEFT_MULTIVERSION void cast_up(const bfloat16* from, float* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

template <typename From, typename To>
WEFT_INLINE void add_loop(const From* from, To* to, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) assign(to[i], static_cast<float>(to[i]) + static_cast<float>(from[i]));
}
WEFT_MULTIVERSION void add_float(const float* from, float* to, std::int64_t count) {
  add_loop(from, to, count);
}
WEFT_MULTIVERSION void add_mixed(const bfloat16* from, float* to, std::int64_t count) {
  add_loop(from, to, count);
}
WEFT_MULTIVERSION void add_bfloat16(const bfloat16* from, bfloat16* to, std::int64_t count) {
  add_loop(from, to, count);
}

WEFT_MULTIVERSION void scale_loop(float* data, float factor, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) data[i] *= factor;
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
WEFT_MULTIVERSION bool any_nonfinite(const float* data, std::int64_t count) {
  std::uint32_t found = 0;
#pragma omp simd reduction(| : found)
  for (std::int64_t i = 0; i < count; ++i) {
    found |= (std::bit_cast<std::uint32_t>(data[i]) & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return found != 0;
}

}  // namespace

void cast(ConstTensorView source, TensorView destination) {
  require(source.size() == destination.size(), "a cast keeps the number of elements");
  if (source.empty()) return;
  if (source.dtype() == destination.dtype()) {
    if (source.data() != destination.data()) std::memcpy(destination.data(), source.data(), source.bytes());
  } else if (source.dtype() == DType::float32 && destination.dtype() == DType::bfloat16) {
    cast_down(source.as<float>().data(), destination.as<bfloat16>().data(), source.size());
  } else if (source.dtype() == DType::bfloat16 && destination.dtype() == DType::float32) {
    cast_up(source.as<bfloat16>().data(), destination.as<float>().data(), source.size());
  } else {
    fail("no cast from {} to {}", name_of(source.dtype()), name_of(destination.dtype()));
  }
}

void add(ConstTensorView source, TensorView destination) {
  require(source.size() == destination.size(), "an addition keeps the number of elements");
  if (source.empty()) return;
  if (destination.dtype() == DType::bfloat16) {
    add_bfloat16(source.as<bfloat16>().data(), destination.as<bfloat16>().data(), source.size());
  } else if (source.dtype() == DType::bfloat16) {
    add_mixed(source.as<bfloat16>().data(), destination.as<float>().data(), source.size());
  } else {
    add_float(source.as<float>().data(), destination.as<float>().data(), source.size());
  }
}

void scale(TensorView destination, float factor) {
  scale_loop(destination.as<float>().data(), factor, destination.size());
}

void fill(TensorView destination, float value) {
  if (destination.dtype() == DType::bfloat16) {
    std::ranges::fill(destination.as<bfloat16>(), bfloat16(value));
  } else {
    std::ranges::fill(destination.as<float>(), value);
  }
}

double square_sum(ConstTensorView source) {
  return square_sum_loop(source.as<float>().data(), source.size());
}

bool has_nonfinite(ConstTensorView source) {
  return any_nonfinite(source.as<float>().data(), source.size());
}

}  // namespace weft
