#include "layers/kernels/routing.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "tests/layers/kernel_fixture.h"
#include "tests/layers/segment_case.h"

namespace weft {
namespace {

struct RouteCase {
  std::int64_t tokens, experts, choices;
  std::int64_t groups = 1, chosen_groups = 1;
  std::int64_t nulls = 0;

  std::int64_t logits() const { return experts + std::min<std::int64_t>(nulls, 1); }
  std::int64_t pool() const { return experts + nulls; }
  // Numbers of logits, the last once for each null slot.
  std::vector<double> of_pool(std::vector<double> row) const {
    if (nulls > 0) row.insert(row.end(), static_cast<std::size_t>(nulls - 1), row.back());
    return row;
  }
};
constexpr RouteCase cases[] = {{0, 4, 2},
                               {1, 1, 1},
                               {5, 3, 1},
                               {5, 3, 3},
                               {4, 17, 4},
                               {3, 100, 8},
                               {2, 256, 8},
                               {7, 12, 3, 4, 2},
                               {5, 64, 6, 8, 3},
                               {3, 256, 8, 8, 4},
                               {6, 32, 2, 32, 2},
                               {2, 1280, 5, 5, 2},
                               {9, 64, 12, 1, 1, 64},
                               {5, 3, 4, 1, 1, 2},
                               {6, 40, 5, 1, 1, 1},
                               {3, 100, 16, 1, 1, 200},
                               {3, 700, 9, 1, 1, 900}};

double score_of(double logit, Scoring scoring) {
  switch (scoring) {
    case Scoring::softmax:
      return std::exp(logit);
    case Scoring::sigmoid:
      return 1.0 / (1.0 + std::exp(-logit));
    case Scoring::sqrt_softplus:
      return std::sqrt(std::log1p(std::exp(logit)));
  }
  return 0.0;
}

std::vector<double> reference_scores(const std::vector<double>& logits, Scoring scoring) {
  std::vector<double> scores;
  for (double logit : logits) scores.push_back(score_of(logit, scoring));
  const double sum = scoring == Scoring::softmax ? std::accumulate(scores.begin(), scores.end(), 0.0) : 1.0;
  for (double& score : scores) score /= sum;
  return scores;
}

std::vector<double> reference_weights(const std::vector<double>& scores, const std::vector<std::int64_t>& chosen,
                                      const RoutingRule& rule) {
  std::vector<double> weights;
  const std::int64_t real = std::ssize(scores) - rule.null_copies;
  for (std::int64_t expert : chosen) weights.push_back(expert < real ? scores[expert] : 0.0);
  const double sum = rule.normalise ? std::accumulate(weights.begin(), weights.end(), 1e-20) : 1.0;
  for (double& weight : weights) weight *= static_cast<double>(rule.scaling) / sum;
  return weights;
}

// The rule in its plainest form: a stable sort keeps the lower one first among equals.
template <typename Values>
std::vector<std::int64_t> largest(const Values& values, std::int64_t count) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

std::vector<std::int64_t> reference_choice(std::vector<double> values, std::int64_t choices, const RoutingRule& rule) {
  const std::int64_t size = std::ssize(values) / rule.groups;
  std::vector<double> of_groups;
  for (std::int64_t g = 0; g < rule.groups; ++g) {
    std::vector<double> group(values.begin() + g * size, values.begin() + (g + 1) * size);
    std::sort(group.rbegin(), group.rend());
    of_groups.push_back(group[0] + (size > 1 ? group[1] : 0.0));
  }
  std::vector<bool> open(values.size(), false);
  for (std::int64_t g : largest(of_groups, rule.chosen_groups)) {
    std::fill_n(open.begin() + g * size, size, true);
  }
  for (std::size_t e = 0; e < values.size(); ++e) {
    if (!open[e]) values[e] = -std::numeric_limits<double>::infinity();
  }
  return largest(values, choices);
}

template <typename T>
std::vector<T> slice(const std::vector<T>& values, std::int64_t row, std::int64_t columns) {
  return {values.begin() + row * columns, values.begin() + (row + 1) * columns};
}

class Routing : public KernelTest {
 protected:
  // `bias` is empty for none.
  void for_each_case(
      const std::function<void(const RouteCase&, const RoutingRule&, const std::vector<double>& bias)>& check) {
    for (const RouteCase& shape : cases) {
      for (Scoring scoring : all_values<Scoring>) {
        for (bool normalise : {false, true}) {
          for (bool biased : {false, true}) {
            const RoutingRule rule{.scoring = scoring,
                                   .normalise = normalise,
                                   .scaling = biased ? 2.5f : 1.0f,
                                   .groups = shape.groups,
                                   .chosen_groups = shape.chosen_groups,
                                   .null_copies = shape.nulls};
            const std::vector<double> bias =
                biased ? doubles(random("bias", DType::float32, shape.logits(), 1)) : std::vector<double>();
            SCOPED_TRACE(fmt::format(
                "{} tokens {} experts {} null slots {} choices {} of {} groups, {}, normalise {}, biased {}",
                shape.tokens, shape.experts, shape.nulls, shape.choices, shape.chosen_groups, shape.groups,
                name_of(scoring), normalise, biased));
            check(shape, rule, bias);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  Tensor bias_tensor(const std::vector<double>& bias) {
    return bias.empty() ? Tensor() : tensor_of(DType::float32, std::ssize(bias), 1, bias);
  }
  std::vector<double> route(ConstTensorView logits, const RoutingRule& rule, std::int64_t choices,
                            const std::vector<double>& bias = {}) {
    const Tensor added = bias_tensor(bias);
    Tensor scores = poisoned(DType::float32, logits.rows(), logits.columns());
    Tensor indices = poisoned(DType::int32, logits.rows(), choices);
    Tensor weights = poisoned(DType::float32, logits.rows(), choices);
    route_forward(context, logits, rule, added, nullptr, scores, indices, weights);
    return doubles(indices);
  }
};

std::vector<double> biased_values(std::vector<double> scores, const std::vector<double>& bias) {
  for (std::size_t e = 0; e < bias.size(); ++e) scores[e] += bias[e];
  return scores;
}

TEST_F(Routing, ForwardMatchesReference) {
  for_each_case([&](const RouteCase& shape, const RoutingRule& rule, const std::vector<double>& bias) {
    const std::int64_t tokens = shape.tokens, experts = shape.pool(), choices = shape.choices;
    const Tensor logits = random("logits", DType::float32, tokens, shape.logits()), added = bias_tensor(bias);
    Tensor scores = poisoned(DType::float32, tokens, experts), indices = poisoned(DType::int32, tokens, choices);
    Tensor weights = poisoned(DType::float32, tokens, choices);
    route_forward(context, logits, rule, added, nullptr, scores, indices, weights);

    const std::vector<double> logit = doubles(logits), chosen_by_kernel = doubles(indices);
    const std::vector<double> added_bias = bias.empty() ? bias : shape.of_pool(bias);
    std::vector<double> expected, expected_weights, error, weight_error;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<double> row = shape.of_pool(slice(logit, token, shape.logits()));
      const std::vector<double> row_scores = reference_scores(row, rule.scoring);
      const auto [smallest, largest] = std::minmax_element(row.begin(), row.end());
      // e^x within 4 u of an argument that carries a rounding of logit - maximum; a positive sum; one division. The
      // series of a logarithm adds up to twelve roundings, a root halves them.
      const double relative = (sum_additions(experts) + 12.0 + (*largest - *smallest)) * float_roundoff;
      for (double score : row_scores) expected.push_back(score), error.push_back(relative * score);
      const std::vector<std::int64_t> chosen = reference_choice(biased_values(row_scores, added_bias), choices, rule);
      for (double weight : reference_weights(row_scores, chosen, rule)) {
        expected_weights.push_back(weight);
        weight_error.push_back((2.0 * relative + (choices + 3.0) * float_roundoff) * weight);
      }
      for (std::int64_t k = 0; k < choices; ++k) EXPECT_EQ(chosen_by_kernel[token * choices + k], chosen[k]);
    }
    expect_close(scores, expected, error);
    expect_close(weights, expected_weights, weight_error);
  });
}

TEST_F(Routing, TiesGoToTheLowerExpertInDescendingOrder) {
  const Tensor equal = zeros(DType::float32, 2, 6);
  EXPECT_EQ(route(equal, {}, 3), (std::vector<double>{0, 1, 2, 0, 1, 2}));
  // Equal groups: the lower ones. An expert with the best value lies in a group that its neighbours leave out.
  EXPECT_EQ(route(equal, {.groups = 3, .chosen_groups = 2}, 3), (std::vector<double>{0, 1, 2, 0, 1, 2}));
  const Tensor lonely = tensor_of(DType::float32, 1, 6, {3, -9, 2, 2, 1, 2});
  EXPECT_EQ(route(lonely, {.scoring = Scoring::sigmoid, .groups = 3, .chosen_groups = 1}, 2),
            (std::vector<double>{2, 3}));
  // 30 and 40 both have a sigmoid of exactly one in float32: the rule is about scores.
  const Tensor saturated = tensor_of(DType::float32, 1, 5, {0, 30, -1, 40, 0});
  EXPECT_EQ(route(saturated, {.scoring = Scoring::sigmoid}, 4), (std::vector<double>{1, 3, 0, 4}));
  // A bias may make values negative, or equal again: 0.5 - 1 and 1 - 1.5.
  EXPECT_EQ(route(saturated, {.scoring = Scoring::sigmoid}, 5, {-1, -1.5, -3, -2, -0.5}),
            (std::vector<double>{4, 0, 1, 3, 2}));

  const std::int64_t tokens = 40, experts = 30, choices = 7;
  std::vector<double> coarse = doubles(random("coarse", DType::float32, tokens, experts));
  for (double& logit : coarse) logit = std::round(logit);
  const Tensor logits = tensor_of(DType::float32, tokens, experts, coarse);
  for (Scoring scoring : all_values<Scoring>) {
    const std::vector<double> chosen = route(logits, {.scoring = scoring}, choices);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<std::int64_t> expected = reference_choice(slice(coarse, token, experts), choices, {});
      for (std::int64_t k = 0; k < choices; ++k) ASSERT_EQ(chosen[token * choices + k], expected[k]) << token;
    }
  }
}

TEST_F(Routing, NanStillChoosesDifferentExperts) {
  const Tensor logits = tensor_of(DType::float32, 2, 4, {1, NAN, 2, 3, NAN, NAN, NAN, NAN});
  for (Scoring scoring : all_values<Scoring>) {
    for (const RoutingRule& rule : {RoutingRule{scoring}, RoutingRule{scoring, true, 1.0f, 4, 3}}) {
      const std::vector<double> chosen = route(logits, rule, 3);
      for (std::int64_t token = 0; token < 2; ++token) {
        std::vector<double> row = slice(chosen, token, 3);
        std::sort(row.begin(), row.end());
        EXPECT_TRUE(row[0] >= 0 && row[0] < row[1] && row[1] < row[2] && row[2] < 4);
      }
    }
  }
}

TEST_F(Routing, PaddingGoesToNoExpertAndHasNoGradientThroughWeights) {
  const std::int64_t tokens = 5, experts = 7, choices = 2;
  const Tensor logits = random("logits", DType::float32, tokens, experts);
  const Tensor targets = tensor_of(DType::int32, tokens, 1, {3, padding_target, 0, -1, padding_target});
  Tensor scores = poisoned(DType::float32, tokens, experts), indices = poisoned(DType::int32, tokens, choices);
  Tensor weights = poisoned(DType::float32, tokens, choices), dlogits = poisoned(DType::float32, tokens, experts);
  for (Scoring scoring : all_values<Scoring>) {
    const RoutingRule rule{.scoring = scoring};
    const std::vector<double> all = route(logits, rule, choices);
    route_forward(context, logits, rule, {}, targets.as<std::int32_t>().data(), scores, indices, weights);
    route_backward(context, random("dweights", DType::float32, tokens, choices), {}, scores, indices, rule, dlogits);
    const std::vector<double> chosen = doubles(indices), weight = doubles(weights), gradient = doubles(dlogits);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const bool padding = token == 1 || token == 4;
      for (std::int64_t i = token * choices; i < (token + 1) * choices; ++i) {
        EXPECT_EQ(chosen[i], padding ? no_expert : all[i]);
        EXPECT_EQ(weight[i] == 0.0, padding);
      }
      const auto row = gradient.begin() + token * experts;
      EXPECT_EQ(std::all_of(row, row + experts, [](double value) { return value == 0.0; }), padding);
    }
  }
}

// Dealt in turn, every expert has the same load, and the weights are still the scores of those dealt.
TEST_F(Routing, DealtInTurn) {
  const std::int64_t tokens = 9, experts = 6, choices = 4;
  const Tensor logits = random("logits", DType::float32, tokens, experts);
  Tensor scores = poisoned(DType::float32, tokens, experts), indices = poisoned(DType::int32, tokens, choices);
  Tensor weights = poisoned(DType::float32, tokens, choices);
  const RoutingRule rule{.normalise = false, .in_turn = true};
  route_forward(context, logits, rule, {}, nullptr, scores, indices, weights);
  const std::vector<double> chosen = doubles(indices), score = doubles(scores), weight = doubles(weights);
  for (std::int64_t i = 0; i < tokens * choices; ++i) {
    EXPECT_EQ(chosen[i], i % experts);
    EXPECT_EQ(weight[i], score[i / choices * experts + i % experts]);
  }
}

// Tokens are dealt by their places in the text. A context rank has positions from both ends of each sequence, a tensor
// rank a slice of them, from the middle of a run on.
TEST_F(Routing, DealtInTurnByPlace) {
  constexpr std::int64_t experts = 7, choices = 3, first_place = 40, run = 3, first_row = 4, tokens = 11;
  // Two context ranks, sequences of 12. The second has positions 3 to 5 and 6 to 8, the first 0 to 2 and 9 to 11.
  for (const auto& [first, second] : {std::pair(3, 6), std::pair(0, 9)}) {
    std::vector<std::int64_t> places;
    for (std::int64_t sequence = 0; sequence < 3; ++sequence) {
      for (const std::int64_t begin : {first, second}) {
        for (std::int64_t i = 0; i < run; ++i) places.push_back(first_place + sequence * 12 + begin + i);
      }
    }
    const RoutingRule rule{.in_turn = true,
                           .places = {.first_place = first_place + first,
                                      .first_row = first_row,
                                      .run = run,
                                      .inside = second - first - run,
                                      .between = 12 - second - run + first}};
    const Tensor logits = random("logits", DType::float32, tokens, experts);
    Tensor scores = poisoned(DType::float32, tokens, experts), indices = poisoned(DType::int32, tokens, choices);
    Tensor weights = poisoned(DType::float32, tokens, choices);
    route_forward(context, logits, rule, {}, nullptr, scores, indices, weights);
    const std::vector<double> chosen = doubles(indices);
    for (std::int64_t i = 0; i < tokens * choices; ++i) {
      EXPECT_EQ(chosen[i], (places[first_row + i / choices] * choices + i % choices) % experts) << "choice " << i;
    }
  }
}

// A token goes to the experts that are worth more than the null slots, or as much; to none if there are none. Dealt in
// turn, null slots have the load of experts.
TEST_F(Routing, NullSlotsTakeChoicesFromExperts) {
  const Tensor logits = tensor_of(DType::float32, 3, 4, {1, -1, 2, 0, -1, -2, -3, 0, 0, 0, 0, 0});
  Tensor scores = poisoned(DType::float32, 3, 6), indices = poisoned(DType::int32, 3, 3);
  Tensor weights = poisoned(DType::float32, 3, 3), dlogits = poisoned(DType::float32, 3, 4);
  RoutingRule rule{.scoring = Scoring::sigmoid, .null_copies = 3};
  route_forward(context, logits, rule, {}, nullptr, scores, indices, weights);
  EXPECT_EQ(doubles(indices), (std::vector<double>{2, 0, 3, 3, 4, 5, 0, 1, 2}));
  const std::vector<double> weight = doubles(weights);
  EXPECT_NEAR(weight[0] + weight[1], 1.0, 1e-6);
  EXPECT_EQ(std::vector(weight.begin() + 2, weight.begin() + 6), std::vector<double>(4));
  route_backward(context, random("dweights", DType::float32, 3, 3), {}, scores, indices, rule, dlogits);
  const std::vector<double> gradient = doubles(dlogits);
  EXPECT_EQ(std::vector(gradient.begin() + 4, gradient.begin() + 8), std::vector<double>(4));  // finite too

  rule.in_turn = true;
  route_forward(context, logits, rule, {}, nullptr, scores, indices, weights);
  EXPECT_EQ(doubles(indices), (std::vector<double>{0, 1, 2, 3, 4, 5, 0, 1, 2}));
}

// As many logits as null slots would have, each a column of its own.
TEST_F(Routing, NullSlotsAreCopiesOfOneLogit) {
  constexpr std::int64_t tokens = 30, experts = 20, copies = 12, choices = 7;
  const RouteCase shape{.tokens = tokens, .experts = experts, .choices = choices, .nulls = copies};
  const Tensor logits = random("logits", DType::float32, tokens, experts + 1);
  std::vector<double> all;
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::vector<double> row = shape.of_pool(slice(doubles(logits), token, experts + 1));
    all.insert(all.end(), row.begin(), row.end());
  }
  const Tensor spread = tensor_of(DType::float32, tokens, experts + copies, all);
  for (const Scoring scoring : all_values<Scoring>) {
    Tensor scores[2], indices[2];
    for (const bool copied : {false, true}) {
      scores[copied] = poisoned(DType::float32, tokens, experts + copies);
      indices[copied] = poisoned(DType::int32, tokens, choices);
      Tensor weights = poisoned(DType::float32, tokens, choices);
      route_forward(context, copied ? logits : spread, {.scoring = scoring, .null_copies = copied ? copies : 0}, {},
                    nullptr, scores[copied], indices[copied], weights);
    }
    EXPECT_EQ(doubles(scores[0]), doubles(scores[1]));
    EXPECT_EQ(doubles(indices[0]), doubles(indices[1]));
  }
}

TEST_F(Routing, BackwardMatchesFiniteDifference) {
  for_each_case([&](const RouteCase& shape, const RoutingRule& rule, const std::vector<double>& bias) {
    const std::int64_t tokens = shape.tokens, experts = shape.pool(), choices = shape.choices, columns = shape.logits();
    if (experts > 400) return;  // the difference quotients of a row cost the square of its experts
    const Tensor logits = random("logits", DType::float32, tokens, columns);
    const std::vector<double> added_bias = bias.empty() ? bias : shape.of_pool(bias);
    const Tensor dweights = random("dweights", DType::float32, tokens, choices);
    const std::vector<double> logit = doubles(logits), dweight = doubles(dweights);
    std::vector<double> score, choice;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<double> row = reference_scores(shape.of_pool(slice(logit, token, columns)), rule.scoring);
      score.insert(score.end(), row.begin(), row.end());
      for (std::int64_t expert : reference_choice(biased_values(row, added_bias), choices, rule)) {
        choice.push_back(static_cast<double>(expert));
      }
    }
    const Tensor scores = tensor_of(DType::float32, tokens, experts, score);
    const Tensor indices = tensor_of(DType::int32, tokens, choices, choice);
    for (bool direct : {false, true}) {
      const Tensor dscores = direct ? random("dscores", DType::float32, tokens, experts) : Tensor();
      const std::vector<double> dscore = direct ? doubles(dscores) : std::vector<double>(tokens * experts);
      Tensor dlogits = poisoned(DType::float32, tokens, columns);
      route_backward(context, dweights, dscores, scores, indices, rule, dlogits);

      std::vector<double> expected, error;
      for (std::int64_t token = 0; token < tokens; ++token) {
        const std::vector<double> row = slice(logit, token, columns), row_scores = slice(score, token, experts);
        const std::vector<double> out = slice(dweight, token, choices), direct_out = slice(dscore, token, experts);
        const std::vector<double> experts_of_row = slice(choice, token, choices);
        const std::vector<std::int64_t> chosen(experts_of_row.begin(), experts_of_row.end());
        const auto loss = [&](const std::vector<double>& x) {
          const std::vector<double> s = reference_scores(shape.of_pool(x), rule.scoring),
                                    w = reference_weights(s, chosen, rule);
          return std::inner_product(w.begin(), w.end(), out.begin(), 0.0) +
                 std::inner_product(s.begin(), s.end(), direct_out.begin(), 0.0);
        };
        // Magnitudes of the terms of ds and dl as the kernel adds them, so that cancellation is paid for.
        std::vector<double> terms;
        double chosen_scores = 1.0, mean = 0.0, score_mean = 0.0;
        if (rule.normalise) {
          chosen_scores = 1e-20;
          for (std::int64_t expert : chosen) chosen_scores += expert < shape.experts ? row_scores[expert] : 0.0;
          for (std::int64_t k = 0; k < choices; ++k) {
            if (chosen[k] < shape.experts) mean += std::abs(out[k]) * row_scores[chosen[k]] / chosen_scores;
          }
        }
        for (double value : direct_out) terms.push_back(std::abs(value));
        for (std::int64_t k = 0; k < choices; ++k) {
          if (chosen[k] < shape.experts)
            terms[chosen[k]] += static_cast<double>(rule.scaling) * (std::abs(out[k]) + mean) / chosen_scores;
        }
        for (std::int64_t e = 0; e < experts; ++e) score_mean += terms[e] * row_scores[e];
        for (std::int64_t e = 0; e < columns; ++e) {
          expected.push_back(derivative(loss, row, e));
          const double copies = static_cast<double>(e < shape.experts ? 1 : shape.nulls);
          double parts = 0.0;  // of null slots, whose gradients are added
          for (std::int64_t slot = e; slot < (e < shape.experts ? e + 1 : experts); ++slot) {
            parts += rule.scoring == Scoring::softmax ? terms[slot] + score_mean : terms[slot];
          }
          error.push_back((sum_additions(experts) + 2.0 * choices + 14.0 + copies) * float_roundoff * row_scores[e] *
                              parts +
                          1e-11 * static_cast<double>(rule.scaling));
        }
      }
      expect_close(dlogits, expected, error);
    }
  });
}

// Far logits: the root of a softplus is as exact where the sum 1 + e^x is not, and has its slope at both ends.
TEST_F(Routing, SqrtSoftplusIsExactAtItsEnds) {
  const std::vector<double> far = {-80, -40, -20, -10, -3, -1e-4, 0, 1e-4, 0.25, 1, 5, 20, 60, 1000};
  const auto count = std::ssize(far);
  const Tensor logits = tensor_of(DType::float32, 1, count, far);
  const RoutingRule rule{.scoring = Scoring::sqrt_softplus, .normalise = false};
  Tensor scores = poisoned(DType::float32, 1, count), indices = poisoned(DType::int32, 1, count);
  Tensor weights = poisoned(DType::float32, 1, count), dlogits = poisoned(DType::float32, 1, count);
  route_forward(context, logits, rule, {}, nullptr, scores, indices, weights);
  const Tensor ones = tensor_of(DType::float32, 1, count, std::vector<double>(far.size(), 1.0));
  route_backward(context, ones, {}, scores, indices, rule, dlogits);
  std::vector<double> score, slope, error, slope_error;
  for (const double logit : doubles(logits)) {
    const double softplus = std::max(logit, 0.0) + std::log1p(std::exp(-std::abs(logit)));
    score.push_back(std::sqrt(softplus));
    slope.push_back(1.0 / (1.0 + std::exp(-logit)) / (2.0 * score.back()));
    // e^x of a large argument carries the rounding of that argument.
    error.push_back((12.0 + std::abs(logit)) * float_roundoff * score.back());
    slope_error.push_back((40.0 + std::abs(logit)) * float_roundoff * slope.back());
  }
  expect_close(scores, score, error);
  expect_close(dlogits, slope, slope_error);
}

// To the bit of the formula in wide numbers, on every device; even over tokens and over columns.
TEST_F(Routing, NoiseIsAFunctionOfTokenAndColumn) {
  constexpr std::int64_t tokens = 700, columns = 300;
  constexpr float noise = 0.1f;
  std::vector<std::int32_t> keys;
  for (std::int64_t t = 0; t < tokens; ++t) keys.push_back(static_cast<std::int32_t>(noise_key(t)));
  Tensor key = zeros(DType::int32, tokens, 1);
  write<std::int32_t>(*stream, keys, key);
  const Tensor ones = tensor_of(DType::float32, tokens, columns, std::vector<double>(tokens * columns, 1.0));
  Tensor y = poisoned(DType::float32, tokens, columns);
  jitter_rows(context, ones, key, 5, noise, y);
  const std::vector<double> found = doubles(y);
  double sum = 0.0, squares = 0.0, along = 0.0, across = 0.0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const double factor = found[static_cast<std::size_t>(t * columns + c)];
      const auto expected = static_cast<float>(noise_factor(noise_key(t) ^ 5u, static_cast<std::uint64_t>(c), noise));
      ASSERT_EQ(factor, expected) << t << " " << c;
      const double deviation = (factor - 1.0) / static_cast<double>(noise);
      ASSERT_LE(std::abs(deviation), 1.0 + 1e-6);
      sum += deviation;
      squares += deviation * deviation;
      if (c > 0) along += deviation * (found[static_cast<std::size_t>(t * columns + c - 1)] - 1.0) / noise;
      if (t > 0) across += deviation * (found[static_cast<std::size_t>((t - 1) * columns + c)] - 1.0) / noise;
    }
  }
  // Means of 210,000 numbers from [-1, 1], five standard deviations around those of even and independent ones.
  constexpr double all = tokens * columns;
  EXPECT_NEAR(sum / all, 0.0, 5.0 * std::sqrt(1.0 / 3.0 / all));
  EXPECT_NEAR(squares / all, 1.0 / 3.0, 5.0 * std::sqrt(4.0 / 45.0 / all));
  EXPECT_NEAR(along / all, 0.0, 5.0 / 3.0 / std::sqrt(all));
  EXPECT_NEAR(across / all, 0.0, 5.0 / 3.0 / std::sqrt(all));
  // In place, and without noise.
  jitter_rows(context, y, key, 5, 0.0f, y);
  EXPECT_EQ(doubles(y), found);
}

}  // namespace
}  // namespace weft
