// Every update rule against its formula in double, and what must hold for all of them. The cut of a parameter into runs
// changes no bit, and elements outside a run are not touched. A step that is skipped changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <vector>

#include "parallel/runtime/error.h"
#include "tests/trainer/update_arrays.h"

namespace weft {
namespace {

constexpr float example_scale = 0.37f;

GroupStep example(UpdateRule rule, std::int64_t step, double momentum = 0.9) {
  return {.rule = rule,
          .learning_rate = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .eps = 1e-8,
          .weight_decay = 0.1,
          .momentum = momentum,
          .step = step};
}

// A number in double beside a bound on how far float32 may be from it. The bounds are first-order running error
// analysis. Each rounded operation of the kernel adds unit x |result|, each rounded constant unit x |term|. Earlier
// errors are carried on through the derivative. The terms of second order that this leaves out are smaller by a factor
// of about steps x 2^-24, which `slack` covers.
constexpr double unit = 0x1p-24, slack = 1.001;
struct Bounded {
  double value = 0, error = 0;
};

// One element as in the papers.
struct Reference {
  Bounded parameter, first, second;
  bool undecided = false;  // a sign that float32 may see otherwise

  static Bounded scaled(double gradient) {
    const double value = static_cast<double>(example_scale) * gradient;
    return {value, unit * std::abs(value)};
  }
  // m = beta m + (1 - beta) g, computed as m + rate (g - m).
  static Bounded moved(const Bounded& moment, double beta, const Bounded& gradient) {
    const double rate = 1 - beta, value = beta * moment.value + rate * gradient.value;
    const double difference = std::abs(gradient.value - moment.value);
    return {value, beta * moment.error + rate * (gradient.error + 2 * unit * difference) + unit * std::abs(value)};
  }

  // Adamw's bracket, with its two moments.
  Bounded direction(const GroupStep& step, double raw_gradient) {
    const Bounded gradient = scaled(raw_gradient);
    first = moved(first, step.beta1, gradient);
    const double square = gradient.value * gradient.value;
    second = moved(second, step.beta2, {square, 2 * std::abs(gradient.value) * gradient.error});
    const double corrected_first = first.value / (1 - std::pow(step.beta1, static_cast<double>(step.step)));
    const double corrected_second = second.value / (1 - std::pow(step.beta2, static_cast<double>(step.step)));
    const double ratio = corrected_first / (std::sqrt(corrected_second) + step.eps);
    // Constant, root and sum of the denominator, the division, the step size and its product are 6 roundings of the
    // ratio. Half the relative error of the second moment comes through the root.
    const double relative = first.error / std::abs(first.value) + second.error / (2 * second.value) + 6 * unit;
    const double decayed = step.weight_decay * parameter.value, value = decayed + ratio;
    return {value, step.weight_decay * parameter.error + std::abs(ratio) * relative +
                       unit * (std::abs(decayed) + std::abs(value))};
  }
  // p -= change.
  void subtract(const Bounded& change) {
    parameter.value -= change.value;
    parameter.error += change.error + unit * std::abs(parameter.value);
  }
  // p -= learning_rate (pull + decay p), where the rate times the pull costs two roundings more.
  void pull(const GroupStep& step, const Bounded& pull) {
    const double decay = step.learning_rate * step.weight_decay, rate = step.learning_rate;
    const double value = rate * pull.value + decay * parameter.value;
    subtract({value, rate * (pull.error + 2 * unit * std::abs(pull.value)) + decay * parameter.error +
                         unit * (decay * std::abs(parameter.value) + std::abs(value))});
  }
};

void update(std::vector<Reference>& all, const GroupStep& step, const std::vector<float>& gradients) {
  std::vector<Bounded> directions;
  double parameter_squares = 0, direction_squares = 0, parameter_errors = 0, direction_errors = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    Reference& of = all[i];
    const Bounded gradient = Reference::scaled(gradients[i]);
    switch (step.rule) {
      case UpdateRule::adamw: {
        const Bounded direction = of.direction(step, gradients[i]);
        of.subtract({step.learning_rate * direction.value, step.learning_rate * direction.error});
        break;
      }
      case UpdateRule::sgd: {
        const double value = step.momentum * of.first.value + gradient.value;
        // The constant, and the sum; without momentum there is nothing to add.
        const double rounding = unit * (std::abs(step.momentum * of.first.value) + std::abs(value));
        of.first = {value, step.momentum * of.first.error + gradient.error + (step.momentum > 0 ? rounding : 0.0)};
        of.pull(step, of.first);
        break;
      }
      case UpdateRule::lion: {
        const Bounded interpolated = Reference::moved(of.first, step.beta1, gradient);
        of.undecided |= std::abs(interpolated.value) <= slack * interpolated.error;
        of.pull(step, {interpolated.value > 0 ? 1.0 : -1.0, 0});
        of.first = Reference::moved(of.first, step.beta2, gradient);
        break;
      }
      case UpdateRule::lamb:
        directions.push_back(of.direction(step, gradients[i]));
        parameter_squares += std::pow(of.parameter.value, 2);
        parameter_errors += std::pow(of.parameter.error, 2);
        direction_squares += std::pow(directions.back().value, 2);
        direction_errors += std::pow(directions.back().error, 2);
        break;
      case UpdateRule::muon:
        FAIL();
    }
  }
  if (step.rule != UpdateRule::lamb) return;
  const double rate = step.learning_rate * std::sqrt(parameter_squares / direction_squares);
  // A norm is off by at most the norm of the errors; the rate is rounded twice more.
  const double relative =
      std::sqrt(parameter_errors / parameter_squares) + std::sqrt(direction_errors / direction_squares) + 2 * unit;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& [value, error] = directions[i];
    all[i].subtract({rate * value, rate * (error + relative * std::abs(value))});
  }
}

struct RuleCase {
  std::string name;
  UpdateRule rule;
  double momentum = 0.9;
};
void PrintTo(const RuleCase& rule, std::ostream* out) {
  *out << rule.name;
}
const RuleCase rule_cases[] = {{"adamw", UpdateRule::adamw},
                               {"sgd", UpdateRule::sgd, 0.0},
                               {"momentum", UpdateRule::sgd},
                               {"lion", UpdateRule::lion},
                               {"lamb", UpdateRule::lamb}};
std::string name_of_case(const ::testing::TestParamInfo<RuleCase>& info) {
  return info.param.name;
}

class UpdateRules : public ::testing::TestWithParam<RuleCase> {
 protected:
  GroupStep step_of(std::int64_t step) const { return example(GetParam().rule, step, GetParam().momentum); }
  template <typename P, typename S>
  UpdateArrays<P, S> arrays(std::size_t size) const {
    return {GetParam().rule, GetParam().momentum, size};
  }
  // Calls `with` with arrays of every pair of types.
  template <typename With>
  void for_all_types(std::size_t size, With with) const {
    with(arrays<float, float>(size));
    with(arrays<float, bfloat16>(size));
    with(arrays<bfloat16, float>(size));
    with(arrays<bfloat16, bfloat16>(size));
  }
  CpuStepper stepper;
};

TEST_P(UpdateRules, FollowsItsFormulaInDouble) {
  constexpr std::size_t size = 300;
  constexpr std::int64_t steps = 50;
  auto arrays = this->arrays<float, float>(size);
  std::vector<Reference> references(size);
  for (std::size_t i = 0; i < size; ++i) references[i].parameter.value = arrays.parameters[i];
  for (std::int64_t step = 1; step <= steps; ++step) {
    arrays.draw_gradients(step);
    stepper.step({arrays.whole()}, step_of(step), example_scale);
    update(references, step_of(step), arrays.gradients);
    for (std::size_t i = 0; i < size; ++i) {
      const Reference& reference = references[i];
      const auto expect_near = [&](float found, const Bounded& expected, const char* what) {
        EXPECT_NEAR(found, expected.value, slack * expected.error) << what << " " << i << " in step " << step;
      };
      if (arrays.states > 0) expect_near(arrays.first[i], reference.first, "first state");
      if (arrays.states > 1) expect_near(arrays.second[i], reference.second, "second state");
      if (!reference.undecided) expect_near(arrays.parameters[i], reference.parameter, "parameter");
      ASSERT_FALSE(HasFailure());
      // The bound means something: far below what one step of a rule that normalises moves. (Sgd's steps are as large
      // as the gradients, and no bound of theirs is above that of the parameter itself.)
      ASSERT_LT(reference.parameter.error, 0.02 * 3e-3) << step << " " << i;
    }
  }
  EXPECT_LT(std::ranges::count_if(references, &Reference::undecided), 3);
}

TEST_P(UpdateRules, DoesNotDependOnHowAParameterIsCut) {
  constexpr std::size_t size = 259;
  // Whole vectors of 16 and 8, rests of every length, and single elements.
  for (std::size_t piece : {1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 100, 258}) {
    for_all_types(size, [&](auto whole) {
      auto cut = whole;
      for (std::int64_t step = 1; step <= 3; ++step) {
        whole.draw_gradients(step);
        cut.draw_gradients(step);
        // The sums of runs are those of the whole but for the order of additions; here both are given the same.
        std::vector<double> sums;
        if (needs_of(whole.rule) == Needs::tensor_norms) {
          sums = stepper.norms({whole.whole()}, step_of(step), example_scale);
        }
        stepper.run({whole.whole()}, step_of(step), example_scale, sums);
        std::vector<UpdateRows> runs;
        for (std::size_t begin = 0; begin < size; begin += piece) {
          runs.push_back(cut.run(begin, std::min(piece, size - begin)));
        }
        std::ranges::reverse(runs);
        stepper.run(runs, step_of(step), example_scale, sums);
      }
      EXPECT_TRUE(whole.same_bits(cut)) << "pieces of " << piece;
    });
  }
}

// Rows of other ranks lie between those of this one in nothing but a test; what they hold must not matter.
TEST_P(UpdateRules, NeitherReadsNorWritesBesideItsRuns) {
  constexpr std::size_t size = 97, begin = 13, count = 70;
  for_all_types(size, [&](auto clean) {
    auto poisoned = clean;
    const auto poison = [&](auto& elements, float value) {
      for (std::size_t i = 0; i < elements.size(); ++i) {
        if (i < begin || i >= begin + count) assign(elements[i], value);
      }
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    clean.draw_gradients(1);
    poisoned.draw_gradients(1);
    poison(poisoned.parameters, nan);
    poison(poisoned.gradients, nan);
    poison(poisoned.first, nan);
    poison(poisoned.second, nan);
    const auto before = poisoned;
    stepper.step({clean.run(begin, count)}, step_of(1), example_scale);
    stepper.step({poisoned.run(begin, count)}, step_of(1), example_scale);
    EXPECT_FALSE(poisoned.same_bits(before));
    poison(clean.parameters, nan);
    poison(clean.first, nan);
    poison(clean.second, nan);
    EXPECT_TRUE(poisoned.same_bits(clean));
  });
}

TEST_P(UpdateRules, SkipsAStepWhoseGradientScaleIsNotFinite) {
  for_all_types(100, [&](auto arrays) {
    arrays.draw_gradients(1);
    stepper.step({arrays.whole()}, step_of(1), example_scale);
    const auto before = arrays;
    for (const float scale : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      stepper.step({arrays.whole()}, step_of(2), scale);
      EXPECT_TRUE(arrays.same_bits(before)) << scale;
    }
    stepper.step({arrays.whole()}, step_of(2), example_scale);
    EXPECT_FALSE(arrays.same_bits(before));
  });
}

TEST_P(UpdateRules, PassesOverWhatHasNoGradient) {
  auto arrays = this->arrays<float, float>(10);
  const auto before = arrays;
  UpdateRows frozen = arrays.whole();
  frozen.gradients = {};
  frozen.first_state = frozen.second_state = {};
  stepper.step({frozen}, step_of(1), example_scale);
  EXPECT_TRUE(arrays.same_bits(before));
}

TEST_P(UpdateRules, ScalesTheGradientBeforeAnythingElse) {
  // A power of two scales without rounding, so scaled and ready-made gradients must agree to the bit.
  auto scaled = arrays<float, float>(100), ready = arrays<float, float>(100);
  for (std::int64_t step = 1; step <= 3; ++step) {
    scaled.draw_gradients(step);
    ready.draw_gradients(step);
    for (float& gradient : ready.gradients) gradient *= 0.25f;
    stepper.step({scaled.whole()}, step_of(step), 0.25f);
    stepper.step({ready.whole()}, step_of(step), 1.0f);
  }
  EXPECT_TRUE(scaled.same_bits(ready));
}

TEST_P(UpdateRules, DecaysTheParameterApartFromTheStates) {
  auto with = arrays<float, float>(100), without = arrays<float, float>(100);
  with.draw_gradients(1);
  without.draw_gradients(1);
  GroupStep undecayed = step_of(1);
  undecayed.weight_decay = 0;
  stepper.step({with.whole()}, step_of(1), example_scale);
  stepper.step({without.whole()}, undecayed, example_scale);
  EXPECT_EQ(with.first, without.first);
  EXPECT_EQ(with.second, without.second);
  EXPECT_NE(with.parameters, without.parameters);
}

TEST_P(UpdateRules, RefusesRowsThatDoNotMatch) {
  auto arrays = this->arrays<float, float>(10);
  const auto refuses = [&](const UpdateRows& rows, GroupStep step) {
    EXPECT_THROW(stepper.step({rows}, step, 1.0f), Error);
  };
  refuses(arrays.whole(), step_of(0));  // steps count from 1
  UpdateRows rows = arrays.whole();
  rows.gradients = rows.gradients.rows_from(0, 9);
  refuses(rows, step_of(1));
  rows = arrays.whole();
  rows.parameters = {};
  refuses(rows, step_of(1));
  if (arrays.states > 0) {
    rows = arrays.whole();
    (arrays.states > 1 ? rows.second_state : rows.first_state) = rows.first_state.rows_from(0, 9);
    refuses(rows, step_of(1));
  }
  GroupStep whole_matrices = step_of(1);
  whole_matrices.rule = UpdateRule::muon;
  refuses(arrays.whole(), whole_matrices);
}

INSTANTIATE_TEST_SUITE_P(All, UpdateRules, ::testing::ValuesIn(rule_cases), name_of_case);

// By hand, in numbers that float32 has exactly.
class UpdateByHand : public ::testing::Test {
 protected:
  UpdateArrays<float, float> arrays(UpdateRule rule, double momentum, std::vector<float> parameters,
                                    std::vector<float> gradients) {
    UpdateArrays<float, float> result(rule, momentum, parameters.size());
    result.parameters = std::move(parameters);
    result.gradients = std::move(gradients);
    return result;
  }
  CpuStepper stepper;
};

TEST_F(UpdateByHand, AdamwTakesItsFirstStepByTheSignOfTheGradient) {
  // In the first step the corrected moments are g and g^2. The element moves by the learning rate against the sign of
  // its gradient, whatever its size: 2 - 0.5 and -1 + 0.5.
  auto of = arrays(UpdateRule::adamw, 0, {2, -1}, {8, -0.25f});
  stepper.step({of.whole()}, {.learning_rate = 0.5, .beta1 = 0.5, .beta2 = 0.75, .eps = 0}, 1.0f);
  EXPECT_EQ(of.parameters, (std::vector<float>{1.5f, -0.5f}));
  EXPECT_EQ(of.first, (std::vector<float>{4, -0.125f}));
  EXPECT_EQ(of.second, (std::vector<float>{16, 0.015625f}));
}

TEST_F(UpdateByHand, AdamwDecaysWithoutAGradient) {
  // p (1 - lr wd) = p (1 - 0.5 x 0.25).
  auto of = arrays(UpdateRule::adamw, 0, {8, -16}, {0, 0});
  stepper.step({of.whole()}, {.learning_rate = 0.5, .weight_decay = 0.25}, 1.0f);
  EXPECT_EQ(of.parameters, (std::vector<float>{7, -14}));
  EXPECT_EQ(of.first, (std::vector<float>{0, 0}));
  EXPECT_EQ(of.second, (std::vector<float>{0, 0}));
}

TEST_F(UpdateByHand, SgdAddsUpItsMomentum) {
  // v = 4, p = 8 - 0.5 (4 + 0.25 x 8) = 5; then v = 0.5 x 4 + 4 = 6, p = 5 - 0.5 (6 + 1.25) = 1.375.
  auto of = arrays(UpdateRule::sgd, 0.5, {8}, {4});
  GroupStep step{.rule = UpdateRule::sgd, .learning_rate = 0.5, .weight_decay = 0.25, .momentum = 0.5};
  stepper.step({of.whole()}, step, 1.0f);
  EXPECT_EQ(of.parameters.front(), 5.0f);
  step.step = 2;
  stepper.step({of.whole()}, step, 1.0f);
  EXPECT_EQ(of.first.front(), 6.0f);
  EXPECT_EQ(of.parameters.front(), 1.375f);
}

TEST_F(UpdateByHand, LionStepsByTheSignAndNotWithoutAGradient) {
  auto of = arrays(UpdateRule::lion, 0, {2, 2, 2}, {1e-6f, -100, 0});
  stepper.step({of.whole()}, {.rule = UpdateRule::lion, .learning_rate = 0.5, .beta1 = 0.5, .beta2 = 0.75}, 1.0f);
  EXPECT_EQ(of.parameters, (std::vector<float>{1.5f, 2.5f, 2}));
  EXPECT_EQ(of.first, (std::vector<float>{0.25e-6f, -25, 0}));
}

TEST_F(UpdateByHand, LambMovesByTheNormOfTheParameter) {
  // In the first step the direction is the sign, of norm 2 over 4 elements. The parameter has norm 10, so each element
  // moves by 0.25 x 10 / 2.
  const GroupStep step{.rule = UpdateRule::lamb, .learning_rate = 0.25, .beta1 = 0.5, .beta2 = 0.75, .eps = 0};
  auto of = arrays(UpdateRule::lamb, 0, {5, 5, -5, 5}, {3, -1, 2, 0.5f});
  EXPECT_EQ(stepper.norms({of.whole()}, step, 1.0f), (std::vector<double>{100, 4}));
  stepper.step({of.whole()}, step, 1.0f);
  EXPECT_EQ(of.parameters, (std::vector<float>{3.75f, 6.25f, -6.25f, 3.75f}));
  // Of a parameter that is zero the ratio is 1.
  of = arrays(UpdateRule::lamb, 0, {0, 0}, {3, -1});
  stepper.step({of.whole()}, step, 1.0f);
  EXPECT_EQ(of.parameters, (std::vector<float>{-0.25f, 0.25f}));
  // Without a direction nothing moves, and nothing is divided by zero.
  of = arrays(UpdateRule::lamb, 0, {5, 5}, {0, 0});
  GroupStep without = step;
  without.eps = 1e-8;
  stepper.step({of.whole()}, without, 1.0f);
  EXPECT_EQ(of.parameters, (std::vector<float>{5, 5}));
}

}  // namespace
}  // namespace weft
