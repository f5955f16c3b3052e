// The orthogonal factor against the same polynomial in double, and against what it is for: singular values near 1.
#include "trainer/optimizer/muon.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "parallel/runtime/random.h"
#include "tests/layers/poison.h"
#include "tests/trainer/muon_reference.h"

namespace weft {
namespace {

using muon_reference::Matrix;

// What is asked of a matrix, in floating-point operations.
class CountedProducts final : public MatrixProducts {
 public:
  void run(const Product& product) override {
    const bool turned = product.transpose_a == Transpose::yes;
    flops += 2 * product.c.size() * (turned ? product.a.rows() : product.a.columns());
    inner_->run(product);
  }
  std::int64_t flops = 0;

 private:
  std::unique_ptr<MatrixProducts> inner_ = make_cpu_matrix_products();
};

class NewtonSchulz : public ::testing::Test {
 protected:
  NewtonSchulz() { use_one_library_thread(); }

  Matrix random(std::int64_t rows, std::int64_t columns) {
    const RandomStream numbers(11, fmt::format("{} x {}", rows, columns));
    Matrix matrix{rows, columns, {}};
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      matrix.values.push_back(static_cast<float>(numbers.normal(static_cast<std::uint64_t>(i))));
    }
    return matrix;
  }
  // The result with its factor; every buffer begins as NaN.
  Matrix orthogonalised(const Matrix& matrix, DType dtype) {
    Tensor tensor = ledger_.allocate(Bucket::workspace, DType::float32, matrix.rows, matrix.columns);
    const std::vector<float> values(matrix.values.begin(), matrix.values.end());
    write<float>(*stream_, values, tensor);
    NewtonSchulzSpace space(ledger_, matrix.rows, matrix.columns, dtype);
    EXPECT_EQ(ledger_.live()[Bucket::workspace],
              tensor.bytes() + newton_schulz_bytes(matrix.rows, matrix.columns, dtype));
    const ConstTensorView found = newton_schulz(*stream_, products_, tensor, space);
    EXPECT_EQ(found.dtype(), dtype);
    EXPECT_EQ(found.rows(), matrix.rows);
    Matrix result{matrix.rows, matrix.columns, {}};
    if (dtype == DType::float32) {
      for (float value : read<float>(*stream_, found)) result.values.push_back(value * newton_schulz_factor());
    } else {
      for (bfloat16 value : read<bfloat16>(*stream_, found)) {
        result.values.push_back(static_cast<float>(value) * newton_schulz_factor());
      }
    }
    return result;
  }

  std::unique_ptr<Device> cpu_ = make_cpu_device();
  std::unique_ptr<Stream> stream_ = cpu_->create_stream("compute");
  PoisoningDevice device_{*cpu_};
  MemoryLedger ledger_{device_, *stream_};
  CountedProducts products_;
};

constexpr DType float_types[] = {DType::float32, DType::bfloat16};
// Wide, tall and square, sizes that no vector divides, single rows and columns.
constexpr std::pair<std::int64_t, std::int64_t> shapes[] = {{64, 32}, {32, 64}, {96, 24}, {37, 13},
                                                            {20, 20}, {1, 9},   {9, 1},   {10, 20}};

// What is expected of rounding is a root of summed squares (muon_reference.h); twice that leaves room for chance.
double allowed(const Matrix& matrix, DType dtype) {
  return 2 * muon_reference::newton_schulz_error(matrix, dtype == DType::float32 ? 0x1.0p-24 : 0x1.0p-8);
}

TEST_F(NewtonSchulz, IsThePolynomialInDouble) {
  for (DType dtype : float_types) {
    for (const auto& [rows, columns] : shapes) {
      const Matrix matrix = random(rows, columns), expected = muon_reference::newton_schulz(matrix);
      const double off = muon_reference::distance(orthogonalised(matrix, dtype), expected);
      EXPECT_LE(off, allowed(matrix, dtype)) << rows << " x " << columns << " in " << name_of(dtype);
      // A bound that would let anything pass is none.
      const double most = dtype == DType::float32 ? 1e-4 : 0.12;
      EXPECT_LE(allowed(matrix, dtype), most * muon_reference::norm(expected)) << rows << " x " << columns;
    }
  }
}

// In exact arithmetic five steps map [0.01, 1] into [0.6818, 1.1344]. Of a matrix of normal numbers singular values are
// within about sqrt(rows) +- sqrt(columns), all far above 0.01 of the norm here. An error moves a singular value by its
// own norm at most.
TEST_F(NewtonSchulz, BringsSingularValuesNearOne) {
  for (DType dtype : float_types) {
    for (const auto& [rows, columns] : {std::pair{96, 24}, std::pair{24, 96}, std::pair{64, 8}, std::pair{7, 80}}) {
      const Matrix matrix = random(rows, columns);
      const std::vector<double> before = muon_reference::singular_values(matrix);
      EXPECT_GE(before.back(), 0.01 * muon_reference::norm(matrix));
      const double rounding = allowed(matrix, dtype);
      for (double value : muon_reference::singular_values(orthogonalised(matrix, dtype))) {
        EXPECT_GE(value, 0.6818 - rounding) << rows << " x " << columns;
        EXPECT_LE(value, 1.1344 + rounding) << rows << " x " << columns;
      }
    }
  }
}

TEST_F(NewtonSchulz, TurnsWithItsMatrix) {
  for (DType dtype : float_types) {
    for (const auto& [rows, columns] : shapes) {
      const Matrix matrix = random(rows, columns);
      const Matrix turned = muon_reference::transposed(orthogonalised(muon_reference::transposed(matrix), dtype));
      EXPECT_LE(muon_reference::distance(turned, orthogonalised(matrix, dtype)), 2 * allowed(matrix, dtype));
    }
  }
}

// The norm is divided out, however large or small: by a power of two, without any rounding.
TEST_F(NewtonSchulz, DoesNotSeeTheSizeOfItsMatrix) {
  const Matrix matrix = random(37, 13);
  for (DType dtype : float_types) {
    const Matrix expected = orthogonalised(matrix, dtype);
    for (double factor : {0x1.0p-100, 0x1.0p-3, 0x1.0p100}) {
      Matrix scaled = matrix;
      for (double& value : scaled.values) value *= factor;
      EXPECT_EQ(orthogonalised(scaled, dtype).values, expected.values);
    }
  }
}

TEST_F(NewtonSchulz, KeepsZerosAndSpreadsNaN) {
  for (DType dtype : float_types) {
    Matrix matrix{6, 4, std::vector<double>(24, 0.0)};
    EXPECT_EQ(orthogonalised(matrix, dtype).values, matrix.values);
    matrix.at(3, 2) = std::numeric_limits<double>::quiet_NaN();
    for (double value : orthogonalised(matrix, dtype).values) EXPECT_TRUE(std::isnan(value));
  }
}

// 5 x (4 a^2 b + 2 a^3), the smaller side squared: counted from the products themselves.
TEST_F(NewtonSchulz, CostsWhatItSays) {
  for (const auto& [rows, columns] : shapes) {
    products_.flops = 0;
    orthogonalised(random(rows, columns), DType::float32);
    EXPECT_EQ(products_.flops, newton_schulz_flops(rows, columns));
    const std::int64_t small = std::min(rows, columns), large = std::max(rows, columns);
    EXPECT_EQ(products_.flops, 5 * (4 * small * small * large + 2 * small * small * small));
  }
}

TEST_F(NewtonSchulz, RefusesAnotherShapeOrDtype) {
  Tensor matrix = ledger_.allocate(Bucket::workspace, DType::float32, 4, 3);
  NewtonSchulzSpace turned(ledger_, 3, 4, DType::float32);
  EXPECT_THROW(newton_schulz(*stream_, products_, matrix, turned), Error);
  EXPECT_THROW(NewtonSchulzSpace(ledger_, 3, 4, DType::float64), Error);
}

}  // namespace
}  // namespace weft
