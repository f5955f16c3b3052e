#include "layers/kernels/token_kernels.h"

#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

// Large enough that rows of one small element stay smooth at the scale of the finite difference.
constexpr double eps = 0.01;
constexpr std::int64_t row_counts[] = {0, 1, 5, 19};

double reference_inverse(const std::vector<double>& row) {
  double squares = 0.0;
  for (double value : row) squares += value * value;
  return 1.0 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
}

std::vector<double> row_of(const std::vector<double>& values, std::int64_t row, std::int64_t hidden) {
  return {values.begin() + row * hidden, values.begin() + (row + 1) * hidden};
}

class RmsNorm : public KernelTest {
 protected:
  void for_each_shape(const std::function<void(DType, std::int64_t, std::int64_t)>& check) {
    for (DType dtype : float_types) {
      for (std::int64_t rows : row_counts) {
        for (std::int64_t hidden : odd_sizes) {
          SCOPED_TRACE(fmt::format("{} {} x {}", name_of(dtype), rows, hidden));
          check(dtype, rows, hidden);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  // The statistics as the backward takes them, from the double reference and not from the kernel.
  Tensor inverse_of(ConstTensorView x) {
    const std::vector<double> values = doubles(x);
    std::vector<double> inverse;
    for (std::int64_t row = 0; row < x.rows(); ++row)
      inverse.push_back(reference_inverse(row_of(values, row, x.columns())));
    return tensor_of(DType::float32, x.rows(), 1, inverse);
  }
};

TEST_F(RmsNorm, ForwardMatchesReference) {
  for_each_shape([&](DType dtype, std::int64_t rows, std::int64_t hidden) {
    const Tensor x = random("x", dtype, rows, hidden), weight = random("weight", dtype, hidden, 1);
    Tensor y = poisoned(dtype, rows, hidden), inverse_rms = poisoned(DType::float32, rows, 1);
    rms_norm_forward(context, x, weight, eps, y, inverse_rms);

    const std::vector<double> xs = doubles(x), weights = doubles(weight);
    // Squares, their sum, the division and eps are relative errors of a positive number; the root halves them.
    const double relative = (sum_additions(hidden) / 2.0 + 6.0) * float_roundoff;
    std::vector<double> expected, error, inverse, inverse_error;
    for (std::int64_t row = 0; row < rows; ++row) {
      inverse.push_back(reference_inverse(row_of(xs, row, hidden)));
      inverse_error.push_back(relative * inverse.back());
      for (std::int64_t i = 0; i < hidden; ++i) {
        expected.push_back(xs[row * hidden + i] * inverse.back() * weights[i]);
        error.push_back((relative + 2.0 * float_roundoff) * std::abs(expected.back()));
      }
    }
    expect_close(y, expected, error);
    expect_close(inverse_rms, inverse, inverse_error);
  });
}

// Onto what is there, onto what stands elsewhere, and onto nothing.
TEST_F(RmsNorm, BackwardInputAddsTheFiniteDifference) {
  enum class Residual { in_place, elsewhere, none };
  for (const Residual where : {Residual::in_place, Residual::elsewhere, Residual::none})
    for_each_shape([&](DType dtype, std::int64_t rows, std::int64_t hidden) {
      const Tensor x = random("x", dtype, rows, hidden), weight = random("weight", dtype, hidden, 1);
      const Tensor dy = random("dy", dtype, rows, hidden), inverse_rms = inverse_of(x);
      Tensor residual = random("residual", dtype, rows, hidden), dx = poisoned(dtype, rows, hidden);
      std::vector<double> before = doubles(residual);
      const std::vector<double> xs = doubles(x), weights = doubles(weight), dys = doubles(dy);
      if (where == Residual::in_place) dx = std::move(residual);
      if (where == Residual::none) std::ranges::fill(before, 0.0);
      const ConstTensorView onto[] = {dx.view(), residual.view(), {}};
      rms_norm_backward(context, dy, x, weight, inverse_rms, onto[static_cast<int>(where)], dx, {});

      std::vector<double> expected, error;
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::vector<double> x_row = row_of(xs, row, hidden), dy_row = row_of(dys, row, hidden);
        const auto loss = [&](const std::vector<double>& values) {
          const double inverse = reference_inverse(values);
          double sum = 0.0;
          for (std::int64_t i = 0; i < hidden; ++i) sum += dy_row[i] * weights[i] * values[i] * inverse;
          return sum;
        };
        const double inverse = reference_inverse(x_row);
        double magnitude = 0.0;
        for (std::int64_t i = 0; i < hidden; ++i) magnitude += std::abs(dy_row[i] * weights[i] * x_row[i]);
        magnitude *= inverse * inverse / static_cast<double>(hidden);
        for (std::int64_t i = 0; i < hidden; ++i) {
          const double old = before[row * hidden + i];
          expected.push_back(old + derivative(loss, x_row, i));
          // The dot product carries its sum, two roundings a term and three of the inverse; then six more operations.
          const double parts = inverse * (std::abs(dy_row[i] * weights[i]) + std::abs(x_row[i]) * magnitude);
          error.push_back((sum_additions(hidden) + 12.0) * float_roundoff * (std::abs(old) + parts));
        }
      }
      expect_close(dx, expected, error);
    });
}

// Rows that one block of a GPU computes after each other, and rows wider than its registers, too.
TEST_F(RmsNorm, BackwardSumsTheWeightsGradientOverTokens) {
  const auto check = [&](DType dtype, std::int64_t rows, std::int64_t hidden) {
    const Tensor x = random("x", dtype, rows, hidden), dy = random("dy", dtype, rows, hidden);
    const Tensor weight = random("weight", dtype, hidden, 1), inverse_rms = inverse_of(x);
    Tensor dx = poisoned(dtype, rows, hidden), alone = poisoned(dtype, rows, hidden);
    Tensor dweight = poisoned(DType::float32, hidden, 1);
    std::vector<double> expected(hidden), error(hidden);
    const std::vector<double> xs = doubles(x), dys = doubles(dy), inverses = doubles(inverse_rms);
    rms_norm_backward(context, dy, x, weight, inverse_rms, {}, dx, dweight);
    rms_norm_backward(context, dy, x, weight, inverse_rms, {}, alone, {});
    EXPECT_EQ(doubles(dx), doubles(alone)) << "the input's gradient does not depend on who asks for the weight's";

    for (std::int64_t i = 0; i < hidden; ++i) {
      double magnitude = 0.0;
      for (std::int64_t row = 0; row < rows; ++row) {
        // y is linear in the weight, so the normalised input is the derivative itself.
        const double term = dys[row * hidden + i] * xs[row * hidden + i] * inverses[row];
        expected[i] += term;
        magnitude += std::abs(term);
      }
      // One addition a row at most, three roundings a term.
      error[i] = (static_cast<double>(rows) + 4.0) * float_roundoff * magnitude;
    }
    expect_close(dweight, expected, error);
  };
  for_each_shape(check);
  for (DType dtype : float_types) {
    check(dtype, 4500, 33);
    check(dtype, 300, 4096);
    check(dtype, 300, 4100);
  }
}

TEST_F(RmsNorm, CountsAsElementwiseTime) {
  const Tensor x = random("x", DType::float32, 4, 256), weight = random("weight", DType::float32, 256, 1);
  Tensor y = poisoned(DType::float32, 4, 256), inverse_rms = poisoned(DType::float32, 4, 1);
  rms_norm_forward(context, x, weight, eps, y, inverse_rms);
  EXPECT_GT(clock.seconds(Phase::elementwise), 0.0);
}

TEST_F(RmsNorm, RefusesShapesThatDoNotFit) {
  const Tensor x = random("x", DType::float32, 4, 8), weight = random("weight", DType::float32, 7, 1);
  Tensor y = poisoned(DType::float32, 4, 8), inverse_rms = poisoned(DType::float32, 4, 1);
  EXPECT_THROW(rms_norm_forward(context, x, weight, eps, y, inverse_rms), Error);
}

}  // namespace
}  // namespace weft
