#include "trainer/optimizer/adamw.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"

namespace weft {
namespace {

constexpr float example_scale = 0.37f;

struct State {
  std::vector<float> parameters, first, second;

  explicit State(std::size_t size) : parameters(size), first(size), second(size) {
    const RandomStream random(7, "parameters");
    for (std::size_t i = 0; i < size; ++i) parameters[i] = static_cast<float>(random.normal(i));
  }
  void update(const AdamwStep& step, std::span<const float> gradients, float gradient_scale = example_scale) {
    adamw_update(step, gradient_scale, parameters, gradients, first, second);
  }
};

// Normal numbers whose size differs from element to element by up to four orders of magnitude.
std::vector<float> gradients_of(std::int64_t step, std::size_t size) {
  const RandomStream random(11, "gradients");
  std::vector<float> gradients(size);
  for (std::size_t i = 0; i < size; ++i) {
    gradients[i] = static_cast<float>(random.normal(step * size + i) * std::pow(10.0, -static_cast<double>(i % 5)));
  }
  return gradients;
}

AdamwStep example(std::int64_t step) {
  return {.learning_rate = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step};
}

// One element in double, as in the paper, beside a bound on how far float32 may be from it. The bounds are first-order
// running error analysis: each rounded operation of the kernel adds unit x |result|, each rounded constant unit x
// |term|, and earlier errors are carried on through the derivative.
struct Reference {
  double parameter, first = 0, second = 0;
  double parameter_error = 0, first_error = 0, second_error = 0;

  void update(const AdamwStep& step, double raw_gradient) {
    constexpr double unit = 0x1p-24;
    const double rate1 = 1 - step.beta1, rate2 = 1 - step.beta2;
    const double gradient = static_cast<double>(example_scale) * raw_gradient;
    const double gradient_error = unit * std::abs(gradient);  // the product

    const double difference = gradient - first;
    first_error = step.beta1 * first_error + rate1 * (gradient_error + 2 * unit * std::abs(difference));
    first = step.beta1 * first + rate1 * gradient;
    first_error += unit * std::abs(first);

    const double second_difference = gradient * gradient - second;
    second_error = step.beta2 * second_error +
                   rate2 * (2 * std::abs(gradient) * gradient_error + 2 * unit * std::abs(second_difference));
    second = step.beta2 * second + rate2 * gradient * gradient;
    second_error += unit * second;

    const double corrected_first = first / (1 - std::pow(step.beta1, static_cast<double>(step.step)));
    const double corrected_second = second / (1 - std::pow(step.beta2, static_cast<double>(step.step)));
    const double ratio = corrected_first / (std::sqrt(corrected_second) + step.eps);
    // Constant, root and sum of the denominator, the division, the step size and its product: 6 roundings of the ratio,
    // and half the relative error of the second moment through the root.
    const double ratio_error = first_error / std::abs(first) + second_error / (2 * second) + 6 * unit;
    const double decay = step.learning_rate * step.weight_decay;
    const double change = decay * parameter + step.learning_rate * ratio;
    parameter_error = (1 + decay) * parameter_error + step.learning_rate * std::abs(ratio) * ratio_error +
                      unit * (decay * std::abs(parameter) + std::abs(change));
    parameter -= change;
    parameter_error += unit * std::abs(parameter);
  }
};

TEST(Adamw, FollowsADoublePrecisionReference) {
  constexpr std::size_t size = 300;
  constexpr std::int64_t steps = 50;
  State state(size);
  std::vector<Reference> references;
  for (float parameter : state.parameters) references.push_back({.parameter = parameter});
  // The terms of second order that the bounds leave out are smaller by a factor of about steps x 2^-24.
  constexpr double slack = 1.001;
  for (std::int64_t step = 1; step <= steps; ++step) {
    const std::vector<float> gradients = gradients_of(step, size);
    state.update(example(step), gradients);
    for (std::size_t i = 0; i < size; ++i) {
      Reference& reference = references[i];
      reference.update(example(step), gradients[i]);
      ASSERT_NEAR(state.first[i], reference.first, slack * reference.first_error) << step << " " << i;
      ASSERT_NEAR(state.second[i], reference.second, slack * reference.second_error) << step << " " << i;
      ASSERT_NEAR(state.parameters[i], reference.parameter, slack * reference.parameter_error) << step << " " << i;
      // The bound means something: far below what one step moves.
      ASSERT_LT(reference.parameter_error, 0.02 * 3e-3) << step << " " << i;
    }
  }
}

TEST(Adamw, TakesItsFirstStepByHand) {
  // In the first step the corrected moments are g and g^2, so the element moves by the learning rate against the sign
  // of its gradient, whatever its size: 2 - 0.5 and -1 + 0.5.
  std::vector<float> parameters{2, -1}, first(2), second(2);
  const std::vector<float> gradients{8, -0.25f};
  adamw_update({.learning_rate = 0.5, .beta1 = 0.5, .beta2 = 0.75, .eps = 0, .step = 1}, 1.0f, parameters, gradients,
               first, second);
  EXPECT_EQ(parameters, (std::vector<float>{1.5f, -0.5f}));
  EXPECT_EQ(first, (std::vector<float>{4, -0.125f}));
  EXPECT_EQ(second, (std::vector<float>{16, 0.015625f}));
}

TEST(Adamw, DecaysTheParameterApartFromTheMoments) {
  // Without a gradient only the decay acts: p (1 - lr wd) = p (1 - 0.5 x 0.25), exact in float32.
  std::vector<float> parameters{8, -16}, first(2), second(2);
  const std::vector<float> none(2);
  const AdamwStep step{.learning_rate = 0.5, .weight_decay = 0.25, .step = 1};
  adamw_update(step, 1.0f, parameters, none, first, second);
  EXPECT_EQ(parameters, (std::vector<float>{7, -14}));
  EXPECT_EQ(first, none);
  EXPECT_EQ(second, none);

  // With one, moments do not feel the decay (in Adam with an L2 penalty they would).
  State with(100), without(100);
  const std::vector<float> gradients = gradients_of(1, 100);
  AdamwStep undecayed = example(1);
  undecayed.weight_decay = 0;
  with.update(example(1), gradients);
  without.update(undecayed, gradients);
  EXPECT_EQ(with.first, without.first);
  EXPECT_EQ(with.second, without.second);
  EXPECT_NE(with.parameters, without.parameters);
}

TEST(Adamw, ScalesTheGradientBeforeAnythingElse) {
  // A power of two scales without rounding, so scaled and ready-made gradients must agree to the bit.
  State scaled(100), ready(100);
  for (std::int64_t step = 1; step <= 3; ++step) {
    std::vector<float> gradients = gradients_of(step, 100);
    scaled.update(example(step), gradients, 0.25f);
    for (float& gradient : gradients) gradient *= 0.25f;
    ready.update(example(step), gradients, 1.0f);
  }
  EXPECT_EQ(scaled.parameters, ready.parameters);
  EXPECT_EQ(scaled.second, ready.second);
}

TEST(Adamw, DoesNotDependOnHowAVectorIsCut) {
  constexpr std::size_t size = 259;
  // Whole vectors of 16 and 8, rests of every length, and single elements.
  for (std::size_t piece : {1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 100, 258}) {
    State whole(size), cut(size);
    for (std::int64_t step = 1; step <= 3; ++step) {
      const std::vector<float> gradients = gradients_of(step, size);
      whole.update(example(step), gradients);
      for (std::size_t begin = 0; begin < size; begin += piece) {
        const std::size_t count = std::min(piece, size - begin);
        const auto part = [&](auto& elements) { return std::span(elements).subspan(begin, count); };
        adamw_update(example(step), example_scale, part(cut.parameters), part(gradients), part(cut.first),
                     part(cut.second));
      }
    }
    const auto same_bits = [](const std::vector<float>& a, const std::vector<float>& b) {
      return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    EXPECT_TRUE(same_bits(whole.parameters, cut.parameters)) << "pieces of " << piece;
    EXPECT_TRUE(same_bits(whole.first, cut.first)) << "pieces of " << piece;
    EXPECT_TRUE(same_bits(whole.second, cut.second)) << "pieces of " << piece;
  }
}

TEST(Adamw, RefusesSpansThatDoNotMatch) {
  std::vector<float> three(3), two(2);
  EXPECT_THROW(adamw_update({.step = 1}, 1.0f, three, two, three, three), Error);
  EXPECT_THROW(adamw_update({.step = 1}, 1.0f, three, three, three, two), Error);
  EXPECT_THROW(adamw_update({.step = 0}, 1.0f, three, three, three, three), Error);
}

}  // namespace
}  // namespace weft
