#include "layers/kernels/token_kernels.h"

#include "parallel/runtime/elementwise.h"
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
  // An element is two terms of at most 5 times a norm weight and sqrt(d), the largest inverse RMS share. Statistics
  // sum d squares in float32, the cosines carry one rounding and the result one in its dtype.
  static double tolerance(DType dtype, const HeadShape& heads) {
    const double d = static_cast<double>(heads.head_dim);
    return 10 * std::min(5.0, std::sqrt(d)) * ((d + 6) * roundoff(DType::float32) + roundoff(dtype));
  }

 private:
  Tensor table_;
};

constexpr HeadShape rotary_shapes[] = {{2, 1, 2, 3},  {4, 2, 16, 7},     {1, 1, 6, 33},
                                       {2, 2, 64, 5}, {4, 2, 16, 7, 10}, {2, 1, 64, 5, 3}};

// In place, and into a matrix of q and k alone.
TEST_F(RotaryTest, TurnsPairsAsTheFormulaSays) {
  for (DType dtype : float_types) {
    for (const HeadShape& heads : rotary_shapes) {
      for (bool normalise : {false, true}) {
        const RotaryOptions options = options_for(heads);
        Tensor qkv = random("qkv", dtype, 2 * heads.sequence_length, heads.columns());
        const Tensor q_norm = norm_weight(dtype, heads, normalise, "q_norm");
        const Tensor k_norm = norm_weight(dtype, heads, normalise, "k_norm");
        const std::vector<double> expected =
            reference::rotary(options, doubles(qkv), {doubles(q_norm), doubles(k_norm)});
        const std::int64_t turned = heads.value_column();
        Tensor rotated = poisoned(dtype, qkv.rows(), turned), back = poisoned(dtype, qkv.rows(), heads.columns());
        rotary_forward(context, options, qkv, q_norm, k_norm, rotated);
        copy_columns(*stream, rotated, 0, back, 0, turned);
        copy_columns(*stream, qkv, turned, back, turned, heads.columns() - turned);
        rotary_forward(context, options, qkv, q_norm, k_norm, qkv);
        reference::expect_near(doubles(qkv), expected, tolerance(dtype, heads), "rotated");
        EXPECT_EQ(doubles(back), doubles(qkv));
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
        Tensor dqkv = random("drotated", dtype, tokens, heads.columns());
        const std::vector<double> dy = doubles(dqkv);
        const Tensor q_norm = norm_weight(dtype, heads, normalise, "q_norm");
        const Tensor k_norm = norm_weight(dtype, heads, normalise, "k_norm");
        Tensor dq_norm = poisoned(DType::float32, q_norm.rows(), 1),
               dk_norm = poisoned(DType::float32, k_norm.rows(), 1);
        rotary_backward(context, options, qkv, q_norm, k_norm, dqkv, dq_norm, dk_norm);

        std::vector<double> x = doubles(qkv);
        reference::RotaryWeights weights{doubles(q_norm), doubles(k_norm)};
        const std::vector<double> dx = differences(options, dy, x, weights, x);
        // Differences of a sum S err by 2^-53 |S| / step, 1e-9 here. dx divides by the RMS, which may be small.
        const double largest = std::max(1.0, reference::largest_magnitude(dx));
        reference::expect_near(doubles(dqkv), dx, tolerance(dtype, heads) * largest + 1e-6, "dqkv");
        const std::vector<double> dq = differences(options, dy, x, weights, weights.q);
        const std::vector<double> dk = differences(options, dy, x, weights, weights.k);
        // Float32 sums over tokens and heads of terms of at most 25 sqrt(d), from inputs that are exact.
        const double terms = static_cast<double>(tokens * heads.query_heads);
        const double weight_tolerance = terms * tolerance(DType::float32, heads) * 5 + 1e-6;
        reference::expect_near(doubles(dq_norm), dq, weight_tolerance, "dq_norm");
        reference::expect_near(doubles(dk_norm), dk, weight_tolerance, "dk_norm");
      }
    }
  }
}

TEST_F(RotaryTest, BackwardNeedsNoInputWithoutNorm) {
  const HeadShape heads = rotary_shapes[1];
  const RotaryOptions options = options_for(heads);
  Tensor qkv = random("qkv", DType::float32, heads.sequence_length, heads.columns());
  const std::vector<double> before = doubles(qkv);
  rotary_forward(context, options, qkv, {}, {}, qkv);
  rotary_backward(context, options, {}, {}, {}, qkv, {}, {});
  // A turn and its reverse: the transpose of a rotation is its inverse.
  reference::expect_near(doubles(qkv), before, tolerance(DType::float32, heads), "turned there and back");
}

TEST_F(RotaryTest, RefusesATableOfAnotherSequence) {
  RotaryOptions options = options_for({1, 1, 4, 8});
  options.heads.sequence_length = 9;
  const Tensor qkv = random("qkv", DType::float32, 9, 12);
  Tensor rotated = poisoned(DType::float32, 9, 12);
  EXPECT_THROW(rotary_forward(context, options, qkv, {}, {}, rotated), Error);
}

TEST_F(RotaryTest, RefusesAResultWithoutRoomForEveryKey) {
  const RotaryOptions options = options_for({2, 1, 4, 8});
  const Tensor qkv = random("qkv", DType::float32, 8, 16);
  for (std::int64_t columns : {8, 11}) {
    Tensor rotated = poisoned(DType::float32, 8, columns);
    EXPECT_THROW(rotary_forward(context, options, qkv, {}, {}, rotated), Error) << columns;
  }
  Tensor exact = poisoned(DType::float32, 8, 12), wide = poisoned(DType::float32, 8, 13);
  rotary_forward(context, options, qkv, {}, {}, exact);
  rotary_forward(context, options, qkv, {}, {}, wide);
  Tensor part = poisoned(DType::float32, 8, 12);
  copy_columns(*stream, wide, 0, part, 0, 12);
  EXPECT_EQ(doubles(part), doubles(exact));
}

}  // namespace
}  // namespace weft
