// The needs of every kernel's test: a context on the device under test, seeded tensors, memory full of NaN, comparison
// with a reference in double. Tests see the contents of tensors only through the members of KernelTest.
//
// Tolerances are built from the unit roundoff u = 2^-24 of float32, 2^-8 of bfloat16 or 2^-11 of float16. One rounding
// of a result r costs u |r|, or half the distance of subnormal numbers (2^-25 in float16, nothing that counts in the
// others). To first order, a sum of n terms costs at most sum_additions(n) u of the sum of their magnitudes.
// Exponentials are within 4 u (2 ulp) of their value on every device, reciprocal roots too.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <string_view>
#include <type_traits>
#include <vector>

#include "parallel/runtime/random.h"
#include "tests/layers/poison.h"
#include "tests/layers/test_backend.h"

namespace weft {

inline constexpr DType float_types[] = {DType::float32, DType::bfloat16, DType::float16};
inline constexpr std::int64_t odd_sizes[] = {1, 3, 17, 100, 256};

inline constexpr double float_roundoff = 0x1.0p-24;
inline double roundoff(DType dtype) {
  return dtype == DType::bfloat16 ? 0x1.0p-8 : dtype == DType::float16 ? 0x1.0p-11 : float_roundoff;
}
inline double subnormal_roundoff(DType dtype) {
  return dtype == DType::float16 ? 0x1.0p-25 : 0.0;
}
// The additions that a term of a float32 sum of n terms passes at most, in any order that a kernel may choose:
// - 16 interleaved partial sums folded in halves: n / 16 + 4;
// - 32 or more threads that each add up to 8 neighbours at a time and are folded in halves: 7 and then
//   log2(n / 8) + 1 levels where one round is enough (n <= 256), n / 32 + 12 in several rounds.
inline double sum_additions(std::int64_t n) {
  const double terms = std::max(static_cast<double>(n), 1.0);
  return 5.0 + std::max(terms / 16.0, std::log2(terms));
}

// For kernels that are not made of products.
class RefusedProducts : public MatrixProducts {
 public:
  void run(const Product&) override { fail("this kernel was not expected to multiply matrices"); }
};

class KernelTest : public DeviceTest {
 protected:
  enum class Products : std::uint8_t { refused, library };
  explicit KernelTest(Products which = Products::refused) : products(make_products(which)) {}

  // What goes wrong in queued work belongs to the test that queued it.
  void TearDown() override {
    if (!IsSkipped()) stream->synchronize();
  }

  Tensor zeros(DType dtype, std::int64_t rows, std::int64_t columns) {
    Tensor tensor = ledger.allocate(Bucket::activations, dtype, rows, columns);
    write_bytes(*stream, tensor, 0);
    return tensor;
  }
  // What a kernel fails to write shows.
  Tensor poisoned(DType dtype, std::int64_t rows, std::int64_t columns) {
    return ledger.allocate(Bucket::activations, dtype, rows, columns);
  }
  // The given values, rounded to the dtype.
  Tensor tensor_of(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<double>& values) {
    Tensor tensor = poisoned(dtype, rows, columns);
    switch (dtype) {
      case DType::float32:
        write<float>(*stream, converted<float>(values), tensor);
        break;
      case DType::bfloat16:
        write<bfloat16>(*stream, converted<bfloat16>(values), tensor);
        break;
      case DType::float16:
        write<float16>(*stream, converted<float16>(values), tensor);
        break;
      case DType::int32:
        write<std::int32_t>(*stream, converted<std::int32_t>(values), tensor);
        break;
      case DType::float64:
        write<double>(*stream, values, tensor);
        break;
      case DType::float8_e4m3:
        write<e4m3>(*stream, converted<e4m3>(values), tensor);
        break;
      case DType::float8_e5m2:
        write<e5m2>(*stream, converted<e5m2>(values), tensor);
        break;
    }
    return tensor;
  }
  // [n, 1] int32, as token ids come.
  Tensor tensor_of(const std::vector<std::int32_t>& values) {
    Tensor tensor = poisoned(DType::int32, std::ssize(values), 1);
    write<std::int32_t>(*stream, values, tensor);
    return tensor;
  }
  // Standard normal numbers, the same for one name and shape on every run.
  Tensor random(std::string_view name, DType dtype, std::int64_t rows, std::int64_t columns) {
    const RandomStream stream_of_name(7, name);
    std::vector<double> values;
    for (std::int64_t i = 0; i < rows * columns; ++i) values.push_back(stream_of_name.normal(i));
    return tensor_of(dtype, rows, columns, values);
  }

  // The elements of a tensor of any dtype.
  std::vector<double> doubles(ConstTensorView tensor) {
    switch (tensor.dtype()) {
      case DType::float32:
        return widened(read<float>(*stream, tensor));
      case DType::bfloat16:
        return widened(read<bfloat16>(*stream, tensor));
      case DType::float16:
        return widened(read<float16>(*stream, tensor));
      case DType::int32:
        return widened(read<std::int32_t>(*stream, tensor));
      case DType::float64:
        return read<double>(*stream, tensor);
      case DType::float8_e4m3:
        return widened(read<e4m3>(*stream, tensor));
      case DType::float8_e5m2:
        return widened(read<e5m2>(*stream, tensor));
    }
    return {};
  }
  // Of a tensor of one float64.
  double number(ConstTensorView tensor) { return read<double>(*stream, tensor).at(0); }

  // |actual - expected| <= tolerance, element by element: the rounding of the result to its dtype plus `float_error`,
  // what the float32 arithmetic before it may be off by. NaN fails.
  void expect_close(ConstTensorView actual, const std::vector<double>& expected,
                    const std::vector<double>& float_error) {
    const std::vector<double> values = doubles(actual);
    ASSERT_EQ(values.size(), expected.size());
    ASSERT_EQ(values.size(), float_error.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double rounding = std::max(roundoff(actual.dtype()) * (std::abs(expected[i]) + float_error[i]),
                                       subnormal_roundoff(actual.dtype()));
      ASSERT_LE(std::abs(values[i] - expected[i]), rounding + float_error[i])
          << "element " << i << " of " << actual.rows() << " x " << actual.columns() << " " << name_of(actual.dtype())
          << ": " << values[i] << ", expected " << expected[i];
    }
  }

 private:
  template <typename T>
  static std::vector<T> converted(const std::vector<double>& values) {
    std::vector<T> result;
    for (double value : values) {
      if constexpr (std::is_same_v<T, std::int32_t>) {
        result.push_back(static_cast<T>(value));
      } else {
        result.push_back(T(static_cast<float>(value)));
      }
    }
    return result;
  }
  template <typename T>
  static std::vector<double> widened(const std::vector<T>& values) {
    std::vector<double> result;
    for (const T& value : values) {
      if constexpr (sizeof(T) <= 2) {
        result.push_back(static_cast<float>(value));
      } else {
        result.push_back(value);
      }
    }
    return result;
  }
  std::unique_ptr<MatrixProducts> make_products(Products which) {
    if (which == Products::refused || backend->unavailable()) return std::make_unique<RefusedProducts>();
    return backend->make_products(*stream, ledger);
  }

 protected:
  std::unique_ptr<Stream> stream = backend->device().create_stream("compute");
  PoisoningDevice device{backend->device()};
  MemoryLedger ledger{device, *stream};
  PhaseClock clock;
  std::unique_ptr<MatrixProducts> products;
  KernelContext context{ledger, clock, *stream, *products, backend->kernels()};
};

// For kernels that are.
class ProductKernelTest : public KernelTest {
 protected:
  ProductKernelTest() : KernelTest(Products::library) {}
};

// df/dx[i] by the five-point stencil. With a step of 1e-3 the formula is off by step^4 / 30 of the fifth derivative,
// 3e-14 where that is about 1. The rounding of f adds 1e-13 |f|. Both are far below float32.
inline double derivative(const std::function<double(const std::vector<double>&)>& f, std::vector<double> x,
                         std::size_t i) {
  constexpr double step = 1e-3;
  const double at = x[i];
  const auto value = [&](double steps) {
    x[i] = at + steps * step;
    return f(x);
  };
  return (8.0 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12.0 * step);
}

}  // namespace weft
