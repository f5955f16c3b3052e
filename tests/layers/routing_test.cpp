#include "layers/kernels/routing.h"

#include <algorithm>
#include <numeric>

#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

struct RouteShape {
  std::int64_t tokens, experts, choices;
};
constexpr RouteShape routing_shapes[] = {{0, 4, 2},  {1, 1, 1},   {5, 3, 1},  {5, 3, 3},
                                         {4, 17, 4}, {3, 100, 8}, {2, 256, 8}};

std::vector<double> reference_scores(const std::vector<double>& logits, Scoring scoring) {
  std::vector<double> scores;
  double sum = 0.0;
  for (double logit : logits) {
    scores.push_back(scoring == Scoring::softmax ? std::exp(logit) : 1.0 / (1.0 + std::exp(-logit)));
    sum += scores.back();
  }
  for (double& score : scores) score /= scoring == Scoring::softmax ? sum : 1.0;
  return scores;
}

std::vector<double> reference_weights(const std::vector<double>& scores, const std::vector<std::int64_t>& chosen,
                                      bool normalise) {
  std::vector<double> weights;
  for (std::int64_t expert : chosen) weights.push_back(scores[expert]);
  const double sum = normalise ? std::accumulate(weights.begin(), weights.end(), 1e-20) : 1.0;
  for (double& weight : weights) weight /= sum;
  return weights;
}

// The rule in its plainest form: a stable sort keeps the lower expert first among equals.
template <typename Scores>
std::vector<std::int64_t> reference_choice(const Scores& scores, std::int64_t choices) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return scores[a] > scores[b]; });
  order.resize(choices);
  return order;
}

template <typename T>
std::vector<T> slice(const std::vector<T>& values, std::int64_t row, std::int64_t columns) {
  return {values.begin() + row * columns, values.begin() + (row + 1) * columns};
}

class Routing : public KernelTest {
 protected:
  void for_each_case(const std::function<void(const RouteShape&, Scoring, bool)>& check) {
    for (const RouteShape& shape : routing_shapes) {
      for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid}) {
        for (bool normalise : {false, true}) {
          SCOPED_TRACE(fmt::format("{} tokens {} experts {} choices, {}, normalise {}", shape.tokens, shape.experts,
                                   shape.choices, scoring == Scoring::softmax ? "softmax" : "sigmoid", normalise));
          check(shape, scoring, normalise);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
  std::vector<double> route(ConstTensorView logits, Scoring scoring, std::int64_t choices) {
    Tensor scores = poisoned(DType::float32, logits.rows(), logits.columns());
    Tensor indices = poisoned(DType::int32, logits.rows(), choices);
    Tensor weights = poisoned(DType::float32, logits.rows(), choices);
    route_forward(context, logits, scoring, true, scores, indices, weights);
    return doubles(indices);
  }
};

TEST_F(Routing, ForwardMatchesReference) {
  for_each_case([&](const RouteShape& shape, Scoring scoring, bool normalise) {
    const auto [tokens, experts, choices] = shape;
    const Tensor logits = random("logits", DType::float32, tokens, experts);
    Tensor scores = poisoned(DType::float32, tokens, experts), indices = poisoned(DType::int32, tokens, choices);
    Tensor weights = poisoned(DType::float32, tokens, choices);
    route_forward(context, logits, scoring, normalise, scores, indices, weights);

    const std::vector<double> logit = doubles(logits), chosen_by_kernel = doubles(indices);
    std::vector<double> expected, expected_weights, error, weight_error;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<double> row = slice(logit, token, experts), row_scores = reference_scores(row, scoring);
      const auto [smallest, largest] = std::minmax_element(row.begin(), row.end());
      // e^x within 4 u of an argument that carries a rounding of logit - maximum; a positive sum; one division.
      const double relative = (sum_additions(experts) + 8.0 + (*largest - *smallest)) * float_roundoff;
      for (double score : row_scores) expected.push_back(score), error.push_back(relative * score);
      const std::vector<std::int64_t> chosen = reference_choice(row_scores, choices);
      for (double weight : reference_weights(row_scores, chosen, normalise)) {
        expected_weights.push_back(weight);
        weight_error.push_back((2.0 * relative + (choices + 2.0) * float_roundoff) * weight);
      }
      for (std::int64_t k = 0; k < choices; ++k) EXPECT_EQ(chosen_by_kernel[token * choices + k], chosen[k]);
    }
    expect_close(scores, expected, error);
    expect_close(weights, expected_weights, weight_error);
  });
}

TEST_F(Routing, TiesGoToTheLowerExpertInDescendingOrder) {
  const Tensor equal = zeros(DType::float32, 2, 6);
  EXPECT_EQ(route(equal, Scoring::softmax, 3), (std::vector<double>{0, 1, 2, 0, 1, 2}));
  // 30 and 40 both have a sigmoid of exactly one in float32: the rule is about scores.
  const Tensor saturated = tensor_of(DType::float32, 1, 5, {0, 30, -1, 40, 0});
  EXPECT_EQ(route(saturated, Scoring::sigmoid, 4), (std::vector<double>{1, 3, 0, 4}));

  const std::int64_t tokens = 40, experts = 29, choices = 7;
  std::vector<double> coarse = doubles(random("coarse", DType::float32, tokens, experts));
  for (double& logit : coarse) logit = std::round(logit);
  const Tensor logits = tensor_of(DType::float32, tokens, experts, coarse);
  for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid}) {
    const std::vector<double> chosen = route(logits, scoring, choices);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<std::int64_t> expected = reference_choice(slice(coarse, token, experts), choices);
      for (std::int64_t k = 0; k < choices; ++k) ASSERT_EQ(chosen[token * choices + k], expected[k]) << token;
    }
  }
}

TEST_F(Routing, NanStillChoosesDifferentExperts) {
  const Tensor logits = tensor_of(DType::float32, 2, 4, {1, NAN, 2, 3, NAN, NAN, NAN, NAN});
  for (Scoring scoring : {Scoring::softmax, Scoring::sigmoid}) {
    const std::vector<double> chosen = route(logits, scoring, 3);
    for (std::int64_t token = 0; token < 2; ++token) {
      std::vector<double> row = slice(chosen, token, 3);
      std::sort(row.begin(), row.end());
      EXPECT_TRUE(row[0] >= 0 && row[0] < row[1] && row[1] < row[2] && row[2] < 4);
    }
  }
}

TEST_F(Routing, BackwardMatchesFiniteDifference) {
  for_each_case([&](const RouteShape& shape, Scoring scoring, bool normalise) {
    const auto [tokens, experts, choices] = shape;
    const Tensor logits = random("logits", DType::float32, tokens, experts);
    const Tensor dweights = random("dweights", DType::float32, tokens, choices);
    const std::vector<double> logit = doubles(logits), dweight = doubles(dweights);
    std::vector<double> score, choice;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::vector<double> row = reference_scores(slice(logit, token, experts), scoring);
      score.insert(score.end(), row.begin(), row.end());
      for (std::int64_t expert : reference_choice(row, choices)) choice.push_back(static_cast<double>(expert));
    }
    const Tensor scores = tensor_of(DType::float32, tokens, experts, score);
    const Tensor indices = tensor_of(DType::int32, tokens, choices, choice);
    for (bool direct : {false, true}) {
      const Tensor dscores = direct ? random("dscores", DType::float32, tokens, experts) : Tensor();
      const std::vector<double> dscore = direct ? doubles(dscores) : std::vector<double>(tokens * experts);
      Tensor dlogits = poisoned(DType::float32, tokens, experts);
      route_backward(context, dweights, dscores, scores, indices, scoring, normalise, dlogits);

      std::vector<double> expected, error;
      for (std::int64_t token = 0; token < tokens; ++token) {
        const std::vector<double> row = slice(logit, token, experts), row_scores = slice(score, token, experts);
        const std::vector<double> out = slice(dweight, token, choices), direct_out = slice(dscore, token, experts);
        const std::vector<std::int64_t> chosen = reference_choice(row_scores, choices);
        const auto loss = [&](const std::vector<double>& x) {
          const std::vector<double> s = reference_scores(x, scoring), w = reference_weights(s, chosen, normalise);
          return std::inner_product(w.begin(), w.end(), out.begin(), 0.0) +
                 std::inner_product(s.begin(), s.end(), direct_out.begin(), 0.0);
        };
        // Magnitudes of the terms of ds and dl as the kernel adds them, so that cancellation is paid for.
        std::vector<double> terms;
        double chosen_scores = 1.0, mean = 0.0, score_mean = 0.0;
        if (normalise) {
          chosen_scores = 0.0;
          for (std::int64_t expert : chosen) chosen_scores += row_scores[expert];
          for (std::int64_t k = 0; k < choices; ++k) mean += std::abs(out[k]) * row_scores[chosen[k]] / chosen_scores;
        }
        for (double value : direct_out) terms.push_back(std::abs(value));
        for (std::int64_t k = 0; k < choices; ++k) terms[chosen[k]] += (std::abs(out[k]) + mean) / chosen_scores;
        for (std::int64_t e = 0; e < experts; ++e) score_mean += terms[e] * row_scores[e];
        for (std::int64_t e = 0; e < experts; ++e) {
          expected.push_back(derivative(loss, row, e));
          const double parts = scoring == Scoring::softmax ? terms[e] + score_mean : terms[e];
          error.push_back((sum_additions(experts) + 2.0 * choices + 12.0) * float_roundoff * row_scores[e] * parts +
                          1e-11);
        }
      }
      expect_close(dlogits, expected, error);
    }
  });
}

}  // namespace
}  // namespace weft
