#include "layers/kernels/rotary.h"

#include "tests/layers/kernel_fixture.h"
#include "tests/layers/reference.h"

namespace weft {
namespace {

class RotaryTest : public KernelTest {
 protected:
  RotaryOptions options_for(const HeadShape& heads) {
    RotaryOptions options;
    options.heads = heads;
    const Range whole_sequence[] = {{0, heads.sequence_length}};
    table_ = poisoned(DType::float32, heads.sequence_length, heads.head_dim);
    write<float>(*stream, rotary_table(options, whole_sequence), table_);
    options.table = table_;
    return options;
  }
  // Empty without QK-norm.
  Tensor norm_weight(DType dtype, const HeadShape& heads, bool normalise, std::string_view name) {
    return random(name, dtype, normalise ? heads.head_dim : 0, 1);
  }
  // Central differences of <drotated, rotary(qkv)> in every element of `variable`, which the reference reads.
  std::vector<double> differences(const RotaryOptions& options, const std::vector<double>& drotated,
                                  const std::vector<double>& qkv, const reference::RotaryWeights& weights,
                                  std::vector<double>& variable) {
    constexpr double step = 1e-5;
    std::vector<double> gradient;
    for (double& element : variable) {
      const double at = element;
      element = at + step;
      const double above = reference::inner_product(drotated, reference::rotary(options, qkv, weights));
      element = at - step;
      const double below = reference::inner_product(drotated, reference::rotary(options, qkv, weights));
      element = at;
      gradient.push_back((above - below) / (2 * step));
    }
    return gradient;
  }
  // An element is two terms of at most 5 times a norm weight and sqrt(d), the largest inverse RMS share; statistics sum
  // d squares in float32, the cosines carry one rounding and the result one in its dtype.
  static double tolerance(DType dtype, const HeadShape& heads) {
    const double d = static_cast<double>(heads.head_dim);
    return 10 * std::min(5.0, std::sqrt(d)) * ((d + 6) * roundoff(DType::float32) + roundoff(dtype));
  }

 private:
  Tensor table_;
};

constexpr HeadShape rotary_shapes[] = {{2, 1, 2, 3}, {4, 2, 16, 7}, {1, 1, 6, 33}, {2, 2, 64, 5}};

TEST_F(RotaryTest, TurnsPairsAsTheFormulaSays) {
  for (DType dtype : float_types) {
    for (const HeadShape& heads : rotary_shapes) {
      for (bool normalise : {false, true}) {
        const RotaryOptions options = options_for(heads);
        const Tensor qkv = random("qkv", dtype, 2 * heads.sequence_length, heads.columns());
        const Tensor q_norm = norm_weight(dtype, heads, normalise, "q_norm");
        const Tensor k_norm = norm_weight(dtype, heads, normalise, "k_norm");
        Tensor rotated = poisoned(dtype, qkv.rows(), qkv.columns());
        rotary_forward(context, options, qkv, q_norm, k_norm, rotated);
        reference::expect_near(doubles(rotated),
                               reference::rotary(options, doubles(qkv), {doubles(q_norm), doubles(k_norm)}),
                               tolerance(dtype, heads), "rotated");
      }
    }
  }
}

TEST_F(RotaryTest, GradientIsTheDerivativeOfTheReference) {
  for (DType dtype : float_types) {
    for (const HeadShape& heads : rotary_shapes) {
      for (bool normalise : {false, true}) {
        const RotaryOptions options = options_for(heads);
        const std::int64_t tokens = 2 * heads.sequence_length;
        const Tensor qkv = random("qkv", dtype, tokens, heads.columns());
        const Tensor drotated = random("drotated", dtype, tokens, heads.columns());
        const Tensor q_norm = norm_weight(dtype, heads, normalise, "q_norm");
        const Tensor k_norm = norm_weight(dtype, heads, normalise, "k_norm");
        // Weight gradients are added to what is there.
        Tensor dq_norm = norm_weight(DType::float32, heads, normalise, "dq_norm");
        Tensor dk_norm = norm_weight(DType::float32, heads, normalise, "dk_norm");
        const std::vector<double> dq_before = doubles(dq_norm), dk_before = doubles(dk_norm);
        Tensor dqkv = poisoned(dtype, tokens, heads.columns());
        rotary_backward(context, options, drotated, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);

        std::vector<double> x = doubles(qkv);
        const std::vector<double> dy = doubles(drotated);
        reference::RotaryWeights weights{doubles(q_norm), doubles(k_norm)};
        const std::vector<double> dx = differences(options, dy, x, weights, x);
        // Differences of a sum S err by 2^-53 |S| / step, 1e-9 here. dx divides by the RMS, which may be small.
        const double largest = std::max(1.0, reference::largest_magnitude(dx));
        reference::expect_near(doubles(dqkv), dx, tolerance(dtype, heads) * largest + 1e-6, "dqkv");
        std::vector<double> dq = differences(options, dy, x, weights, weights.q);
        std::vector<double> dk = differences(options, dy, x, weights, weights.k);
        for (std::size_t i = 0; i < dq.size(); ++i) dq[i] += dq_before[i];
        for (std::size_t i = 0; i < dk.size(); ++i) dk[i] += dk_before[i];
        // Float32 sums over tokens and heads of terms of at most 25 sqrt(d), from inputs that are exact.
        const double terms = static_cast<double>(tokens * heads.query_heads);
        const double weight_tolerance = terms * tolerance(DType::float32, heads) * 5 + 1e-6;
        reference::expect_near(doubles(dq_norm), dq, weight_tolerance, "dq_norm");
        reference::expect_near(doubles(dk_norm), dk, weight_tolerance, "dk_norm");
      }
    }
  }
}

TEST_F(RotaryTest, BackwardMayWorkInPlace) {
  for (DType dtype : float_types) {
    for (bool normalise : {false, true}) {
      const HeadShape heads = rotary_shapes[1];
      const RotaryOptions options = options_for(heads);
      const Tensor qkv = random("qkv", dtype, heads.sequence_length, heads.columns());
      Tensor gradient = random("drotated", dtype, heads.sequence_length, heads.columns());
      Tensor elsewhere = poisoned(dtype, heads.sequence_length, heads.columns());
      const Tensor q_norm = norm_weight(dtype, heads, normalise, "q_norm");
      const Tensor k_norm = norm_weight(dtype, heads, normalise, "k_norm");
      Tensor dq_norm = norm_weight(DType::float32, heads, normalise, "dq_norm");
      Tensor dk_norm = norm_weight(DType::float32, heads, normalise, "dk_norm");
      rotary_backward(context, options, gradient, qkv, q_norm, k_norm, elsewhere, dq_norm, dk_norm);
      rotary_backward(context, options, gradient, qkv, q_norm, k_norm, gradient, dq_norm, dk_norm);
      EXPECT_EQ(doubles(gradient), doubles(elsewhere));
    }
  }
}

TEST_F(RotaryTest, BackwardNeedsNoInputWithoutNorm) {
  const HeadShape heads = rotary_shapes[1];
  const RotaryOptions options = options_for(heads);
  const Tensor qkv = random("qkv", DType::float32, heads.sequence_length, heads.columns());
  Tensor rotated = poisoned(DType::float32, qkv.rows(), qkv.columns());
  rotary_forward(context, options, qkv, {}, {}, rotated);
  Tensor back = poisoned(DType::float32, qkv.rows(), qkv.columns());
  rotary_backward(context, options, rotated, {}, {}, {}, back, {}, {});
  // A turn and its reverse: the transpose of a rotation is its inverse.
  reference::expect_near(doubles(back), doubles(qkv), tolerance(DType::float32, heads), "turned there and back");
}

TEST_F(RotaryTest, RefusesATableOfAnotherSequence) {
  RotaryOptions options = options_for({1, 1, 4, 8});
  options.heads.sequence_length = 9;
  const Tensor qkv = random("qkv", DType::float32, 9, 12);
  Tensor rotated = poisoned(DType::float32, 9, 12);
  EXPECT_THROW(rotary_forward(context, options, qkv, {}, {}, rotated), Error);
}

}  // namespace
}  // namespace weft
