// What every test of a kernel needs: a context on the CPU, seeded tensors, outputs full of NaN, and comparison with a
// reference in double.
//
// Tolerances are built from the unit roundoff u = 2^-24 of float32 or 2^-8 of bfloat16: one rounding of a result r
// costs u |r|, and a sum of n terms in 16 lanes at most (n / 16 + 4) u of the sum of their magnitudes, to first order.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>
#include <vector>

#include "layers/kernels/context.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/random.h"

namespace weft {

inline constexpr DType float_types[] = {DType::float32, DType::bfloat16};
inline constexpr std::int64_t odd_sizes[] = {1, 3, 17, 100, 256};

// For kernels that are not made of products.
class RefusedProducts : public MatrixProducts {
 public:
  void multiply(ConstTensorView, Transpose, ConstTensorView, Transpose, TensorView, bool) override {
    fail("this kernel was not expected to multiply matrices");
  }
};

class KernelTest : public ::testing::Test {
 protected:
  explicit KernelTest(std::unique_ptr<MatrixProducts> made = std::make_unique<RefusedProducts>())
      : products(std::move(made)) {}

  // Zeros.
  Tensor zeros(DType dtype, std::int64_t rows, std::int64_t columns) {
    Tensor tensor = ledger.allocate(Bucket::activations, dtype, rows, columns);
    if (tensor.bytes() > 0) std::memset(tensor.view().data(), 0, tensor.bytes());
    return tensor;
  }
  // All bits set: NaN in every floating type, -1 in int32. What a kernel fails to write shows.
  Tensor poisoned(DType dtype, std::int64_t rows, std::int64_t columns) {
    Tensor tensor = ledger.allocate(Bucket::activations, dtype, rows, columns);
    if (tensor.bytes() > 0) std::memset(tensor.view().data(), 0xff, tensor.bytes());
    return tensor;
  }
  // The given values, rounded to the dtype.
  Tensor tensor_of(DType dtype, std::int64_t rows, std::int64_t columns, const std::vector<double>& values) {
    Tensor tensor = poisoned(dtype, rows, columns);
    for (std::int64_t i = 0; i < tensor.view().size(); ++i) {
      const double value = values.at(i);
      switch (dtype) {
        case DType::float32:
          tensor.as<float>()[i] = static_cast<float>(value);
          break;
        case DType::bfloat16:
          tensor.as<bfloat16>()[i] = bfloat16(static_cast<float>(value));
          break;
        case DType::int32:
          tensor.as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
          break;
        case DType::float64:
          tensor.as<double>()[i] = value;
          break;
      }
    }
    return tensor;
  }
  // Standard normal numbers, the same for one name and shape on every run.
  Tensor random(std::string_view name, DType dtype, std::int64_t rows, std::int64_t columns) {
    const RandomStream stream_of_name(7, name);
    std::vector<double> values;
    for (std::int64_t i = 0; i < rows * columns; ++i) values.push_back(stream_of_name.normal(i));
    return tensor_of(dtype, rows, columns, values);
  }

  std::unique_ptr<Device> device = make_cpu_device();
  MemoryLedger ledger{*device};
  PhaseClock clock;
  std::unique_ptr<Stream> stream = device->create_stream("compute");
  std::unique_ptr<MatrixProducts> products;
  KernelContext context{ledger, clock, *stream, *products};
};

// For kernels that are.
class ProductKernelTest : public KernelTest {
 protected:
  ProductKernelTest() : KernelTest(make_cpu_matrix_products()) { use_one_library_thread(); }
};

inline constexpr double float_roundoff = 0x1.0p-24;
inline double roundoff(DType dtype) {
  return dtype == DType::bfloat16 ? 0x1.0p-8 : float_roundoff;
}

inline std::vector<double> doubles(ConstTensorView tensor) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    switch (tensor.dtype()) {
      case DType::float32:
        values.push_back(tensor.as<float>()[i]);
        break;
      case DType::bfloat16:
        values.push_back(static_cast<float>(tensor.as<bfloat16>()[i]));
        break;
      case DType::int32:
        values.push_back(tensor.as<std::int32_t>()[i]);
        break;
      case DType::float64:
        values.push_back(tensor.as<double>()[i]);
        break;
    }
  }
  return values;
}

// |actual - expected| <= tolerance, element by element: the rounding of the result to its dtype plus `float_error`,
// what the float32 arithmetic before it may be off by. NaN fails.
inline void expect_close(ConstTensorView actual, const std::vector<double>& expected,
                         const std::vector<double>& float_error) {
  const std::vector<double> values = doubles(actual);
  ASSERT_EQ(values.size(), expected.size());
  ASSERT_EQ(values.size(), float_error.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double rounding = roundoff(actual.dtype()) * (std::abs(expected[i]) + float_error[i]);
    ASSERT_LE(std::abs(values[i] - expected[i]), rounding + float_error[i])
        << "element " << i << " of " << actual.rows() << " x " << actual.columns() << " " << name_of(actual.dtype())
        << ": " << values[i] << ", expected " << expected[i];
  }
}

// df/dx[i] by the five-point stencil. Step 1e-3: the formula is off by step^4 / 30 of the fifth derivative, 3e-14 where
// that is about 1, and the rounding of f by 1e-13 |f|; both far below float32.
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
