#include "layers/kernels/token_kernels.h"

#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

double logistic_of(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}
double silu(double x) {
  return x * logistic_of(x);
}

// Where e^x leaves the range of float32 the kernel rounds the logistic to zero.
constexpr double underflow = 1e-35;

class Swiglu : public KernelTest {
 protected:
  void for_each_shape(const std::function<void(DType, std::int64_t, std::int64_t)>& check) {
    for (DType dtype : float_types) {
      for (std::int64_t rows : {0, 1, 5}) {
        for (std::int64_t width : odd_sizes) {
          SCOPED_TRACE(fmt::format("{} {} x {}", name_of(dtype), rows, width));
          check(dtype, rows, width);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  // Normal numbers, and in the gates also zero and both far ends.
  Tensor inputs(DType dtype, std::int64_t rows, std::int64_t width) {
    std::vector<double> values = doubles(random("gate_up", dtype, rows, 2 * width));
    const double gates[] = {0.0, -100.0, 100.0, -88.5, 88.5, -20.0, 20.0};
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(std::size(gates)) && i < width; ++i) {
      if (rows > 1) values[2 * width + i] = gates[i];
    }
    return tensor_of(dtype, rows, 2 * width, values);
  }
  struct Gradient {
    std::vector<double> expected, error;
  };
  Gradient gradient(ConstTensorView dy, ConstTensorView gate_up) {
    const std::int64_t width = dy.columns();
    const std::vector<double> values = doubles(gate_up), dys = doubles(dy);
    Gradient result{std::vector<double>(values.size()), std::vector<double>(values.size())};
    for (std::int64_t row = 0; row < dy.rows(); ++row) {
      for (std::int64_t i = 0; i < width; ++i) {
        const std::int64_t at = row * 2 * width + i;
        const double gate = values[at], up = values[at + width], out = dys[row * width + i];
        const auto loss = [out](const std::vector<double>& x) { return out * silu(x[0]) * x[1]; };
        result.expected[at] = derivative(loss, {gate, up}, 0);
        result.expected[at + width] = derivative(loss, {gate, up}, 1);
        // Eight roundings of the logistic (four of them in e^x) and four operations, on terms that may cancel.
        const double s = logistic_of(gate);
        const double terms = std::abs(out * up) * (s + std::abs(gate) * s);
        const double noise = 1e-12 * (1.0 + std::abs(out * up * gate));
        result.error[at] = 16.0 * float_roundoff * terms + noise;
        result.error[at + width] = 12.0 * float_roundoff * std::abs(out * silu(gate)) + noise;
      }
    }
    return result;
  }
};

TEST_F(Swiglu, ForwardMatchesReference) {
  for_each_shape([&](DType dtype, std::int64_t rows, std::int64_t width) {
    const Tensor gate_up = inputs(dtype, rows, width);
    Tensor y = poisoned(dtype, rows, width);
    swiglu_forward(context, gate_up, {}, y);

    const std::vector<double> values = doubles(gate_up);
    std::vector<double> expected, error;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t i = 0; i < width; ++i) {
        const double gate = values[row * 2 * width + i], up = values[row * 2 * width + width + i];
        expected.push_back(silu(gate) * up);
        // e^x is within 4 u, adding one and dividing cost 2 u, the two products 2 u more.
        error.push_back(8.0 * float_roundoff * std::abs(expected.back()) + underflow);
      }
    }
    expect_close(y, expected, error);
  });
}

TEST_F(Swiglu, BackwardMatchesFiniteDifference) {
  for_each_shape([&](DType dtype, std::int64_t rows, std::int64_t width) {
    const Tensor gate_up = inputs(dtype, rows, width), dy = random("dy", dtype, rows, width);
    Tensor dgate_up = poisoned(dtype, rows, 2 * width);
    swiglu_backward(context, dy, gate_up, {}, dgate_up, {});
    const Gradient reference = gradient(dy, gate_up);
    expect_close(dgate_up, reference.expected, reference.error);
  });
}

TEST_F(Swiglu, BackwardInPlaceGivesTheSameBits) {
  for_each_shape([&](DType dtype, std::int64_t rows, std::int64_t width) {
    Tensor gate_up = inputs(dtype, rows, width);
    const Tensor dy = random("dy", dtype, rows, width);
    Tensor apart = poisoned(dtype, rows, 2 * width);
    swiglu_backward(context, dy, gate_up, {}, apart, {});
    swiglu_backward(context, dy, gate_up, {}, gate_up, {});
    EXPECT_EQ(doubles(gate_up), doubles(apart));
  });
}

// As without weights, times them; the gradient of a weight is the product of dy with what it multiplies.
TEST_F(Swiglu, WeightsMultiplyRowsAndHaveTheirGradients) {
  for_each_shape([&](DType dtype, std::int64_t rows, std::int64_t width) {
    const Tensor gate_up = inputs(dtype, rows, width), dy = random("dy", dtype, rows, width);
    const Tensor weights = random("weights", DType::float32, rows, 1);
    const std::vector<double> values = doubles(gate_up), dys = doubles(dy), weight = doubles(weights);
    Tensor y = poisoned(dtype, rows, width);
    swiglu_forward(context, gate_up, weights, y);
    std::vector<double> weighted_dys, outputs, output_error, dweight(weight.size()), dweight_error(weight.size());
    for (std::size_t at = 0; at < dys.size(); ++at) {
      const auto row = at / static_cast<std::size_t>(width), i = at % static_cast<std::size_t>(width);
      const double gate = values[2 * row * static_cast<std::size_t>(width) + i];
      const double product = silu(gate) * values[(2 * row + 1) * static_cast<std::size_t>(width) + i];
      outputs.push_back(product * weight[row]);
      output_error.push_back(9.0 * float_roundoff * std::abs(outputs.back()) + underflow);
      dweight[row] += dys[at] * product;
      // A sum in lanes of a few terms each, so that roundings do not add up over the whole row.
      dweight_error[row] +=
          (10.0 + std::sqrt(static_cast<double>(width))) * float_roundoff * std::abs(dys[at] * product) + underflow;
      weighted_dys.push_back(dys[at] * weight[row]);
    }
    expect_close(y, outputs, output_error);

    Tensor dgate_up = poisoned(dtype, rows, 2 * width), dweights = poisoned(DType::float32, rows, 1);
    swiglu_backward(context, dy, gate_up, weights, dgate_up, dweights);
    const Gradient reference = gradient(tensor_of(DType::float32, rows, width, weighted_dys), gate_up);
    std::vector<double> error = reference.error;
    for (std::size_t at = 0; at < error.size(); ++at)
      error[at] += 2.0 * float_roundoff * std::abs(reference.expected[at]);
    expect_close(dgate_up, reference.expected, error);
    expect_close(dweights, dweight, dweight_error);
  });
}

TEST_F(Swiglu, NanReachesItsOwnElementOnly) {
  const Tensor gate_up = tensor_of(DType::float32, 1, 4, {NAN, 1.0, 1.0, 1.0});
  Tensor y = zeros(DType::float32, 1, 2);
  swiglu_forward(context, gate_up, {}, y);
  const std::vector<double> found = doubles(y);
  EXPECT_TRUE(std::isnan(found[0]));
  EXPECT_FALSE(std::isnan(found[1]));
}

}  // namespace
}  // namespace weft
