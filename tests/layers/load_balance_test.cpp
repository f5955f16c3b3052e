
#include <algorithm>
#include <numeric>

#include "layers/kernels/routing.h"
#include "tests/layers/kernel_fixture.h"

namespace weft {
namespace {

constexpr std::int64_t sequence_length = 6, sequences = 3, tokens = sequences * sequence_length, choices = 2;
constexpr std::int64_t expert_counts[] = {2, 3, 17, 100};
constexpr Scoring scorings[] = {Scoring::softmax, Scoring::sigmoid, Scoring::sqrt_softplus};

struct Statistics {
  Tensor counts, score_sums;
};

class LoadBalance : public KernelTest {
 protected:
  // Scores and choices of random logits.
  void route(std::int64_t experts, Scoring scoring) {
    const Tensor logits = random("logits", DType::float32, tokens, experts);
    scores = poisoned(DType::float32, tokens, experts);
    indices = poisoned(DType::int32, tokens, choices);
    Tensor weights = poisoned(DType::float32, tokens, choices);
    route_forward(context, logits, {.scoring = scoring}, {}, nullptr, scores, indices, weights);
  }
  Statistics statistics(Scoring scoring, std::int64_t first_token, std::int64_t count) {
    Statistics result{poisoned(DType::float32, sequences, scores.columns()),
                      poisoned(DType::float32, sequences, scores.columns())};
    expert_statistics(context, scores.view().rows_from(first_token, count),
                      indices.view().rows_from(first_token, count), scoring,
                      {first_token, sequence_length, sequence_length}, result.counts, result.score_sums);
    return result;
  }
  // Of whole statistics, without a factor.
  double loss_of(const Statistics& whole, std::int64_t choices_of_token) {
    Tensor loss = zeros(DType::float64, 1, 1);
    auxiliary_loss(context, whole.counts, whole.score_sums, choices_of_token, sequence_length, 1.0, loss);
    return number(loss);
  }
  template <typename Check>
  void for_each_case(Check check) {
    for (std::int64_t experts : expert_counts) {
      for (Scoring scoring : scorings) {
        SCOPED_TRACE(fmt::format("{} experts, {}", experts, name_of(scoring)));
        route(experts, scoring);
        check(experts, scoring);
        if (HasFatalFailure()) return;
      }
    }
  }

  Tensor scores, indices;
};

std::vector<double> normalised(std::vector<double> row, Scoring scoring) {
  const double sum = scoring != Scoring::softmax ? std::accumulate(row.begin(), row.end(), 0.0) : 1.0;
  for (double& score : row) score /= sum;
  return row;
}

// Quotients in double that lie between two floats by far more than a double's rounding.
TEST_F(LoadBalance, CountsAreSharesRoundedOnce) {
  const std::vector<double> chosen = {0x1.0p40 + 3, 2, 0, 7};
  const double sum = 0x1.0p40 + 12;
  Tensor counts = poisoned(DType::float32, 1, 4);
  scale_counts(context, tensor_of(DType::float64, 4, 1, chosen), 3.0, counts);
  std::vector<double> expected;
  for (const double choices : chosen) expected.push_back(static_cast<float>(3.0 * choices / sum));
  EXPECT_EQ(doubles(counts), expected);
  // More experts than a block has threads, as many choices as a double can tell.
  std::vector<double> many(3000, 1.0);
  many[2999] = 0x1.0p53 - 2999;
  Tensor shares = poisoned(DType::float32, 1, 3000);
  scale_counts(context, tensor_of(DType::float64, 3000, 1, many), 0x1.0p53, shares);
  for (double& choices : many) choices = static_cast<float>(choices);
  EXPECT_EQ(doubles(shares), many);
}

TEST_F(LoadBalance, NoChoicesHaveNoShares) {
  Tensor counts = poisoned(DType::float32, 1, 3);
  scale_counts(context, zeros(DType::float64, 3, 1), 2.0, counts);
  EXPECT_EQ(doubles(counts), std::vector<double>(3, 0.0));
}

TEST_F(LoadBalance, StatisticsMatchReference) {
  for_each_case([&](std::int64_t experts, Scoring scoring) {
    const Statistics kernel = statistics(scoring, 0, tokens);
    const std::vector<double> score = doubles(scores), chosen = doubles(indices);
    std::vector<double> counts(sequences * experts), sums(sequences * experts), error;
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t begin = token / sequence_length * experts;
      const auto row = score.begin() + token * experts;
      const std::vector<double> probability = normalised({row, row + experts}, scoring);
      for (std::int64_t e = 0; e < experts; ++e) sums[begin + e] += probability[e];
      for (std::int64_t k = 0; k < choices; ++k)
        ++counts[begin + static_cast<std::int64_t>(chosen[token * choices + k])];
    }
    // A positive sum over tokens of quotients by a positive sum over experts.
    const double relative = (sequence_length + sum_additions(experts) + 4.0) * float_roundoff;
    for (double sum : sums) error.push_back(relative * sum);
    EXPECT_EQ(doubles(kernel.counts), counts);
    expect_close(kernel.score_sums, sums, error);
  });
}

TEST_F(LoadBalance, UniformRoutingCostsOneASequenceAndCollapseTheNumberOfExperts) {
  constexpr std::int64_t experts = 4;
  // Six tokens of two choices give every one of four experts three choices.
  std::vector<double> round_robin;
  for (std::int64_t i = 0; i < tokens * choices; ++i) round_robin.push_back(static_cast<double>(i % experts));
  indices = tensor_of(DType::int32, tokens, choices, round_robin);
  // Sigmoids need not sum to one, only be equal.
  for (const auto& [scoring, score] : {std::pair(Scoring::softmax, 0.25), std::pair(Scoring::sigmoid, 0.5)}) {
    scores = tensor_of(DType::float32, tokens, experts, std::vector<double>(tokens * experts, score));
    const Statistics uniform = statistics(scoring, 0, tokens);
    EXPECT_DOUBLE_EQ(loss_of(uniform, choices), sequences);
  }
  // All scores on expert 0 and one choice a token, of expert 0.
  std::vector<double> one_hot(tokens * experts);
  for (std::int64_t token = 0; token < tokens; ++token) one_hot[token * experts] = 1.0;
  scores = tensor_of(DType::float32, tokens, experts, one_hot);
  indices = zeros(DType::int32, tokens, 1);
  const Statistics collapsed = statistics(Scoring::softmax, 0, tokens);
  EXPECT_DOUBLE_EQ(loss_of(collapsed, 1), sequences * experts);
}

TEST_F(LoadBalance, LossTimesItsFactorIsAdded) {
  route(17, Scoring::sigmoid);
  const Statistics whole = statistics(Scoring::sigmoid, 0, tokens);
  const std::vector<double> counts = doubles(whole.counts), sums = doubles(whole.score_sums);
  const double product = std::inner_product(counts.begin(), counts.end(), sums.begin(), 0.0);
  constexpr double before = 0.5, factor = 0.3;
  Tensor loss = tensor_of(DType::float64, 1, 1, {before});
  auxiliary_loss(context, whole.counts, whole.score_sums, choices, sequence_length, factor, loss);
  const double expected = before + factor * 17.0 / (choices * sequence_length * sequence_length) * product;
  // Products of float32 are exact in double; 51 of them are added there.
  EXPECT_NEAR(number(loss), expected, 64.0 * 0x1.0p-53 * expected);
}

// A cut inside a sequence: what two ranks of a tensor group hold under sequence parallelism.
TEST_F(LoadBalance, SlicesAddUpToTheWhole) {
  constexpr std::int64_t cut = 8;
  for_each_case([&](std::int64_t experts, Scoring scoring) {
    const Statistics whole = statistics(scoring, 0, tokens);
    const Statistics first = statistics(scoring, 0, cut), second = statistics(scoring, cut, tokens - cut);
    std::vector<double> counts = doubles(first.counts), sums = doubles(first.score_sums), error;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      counts[i] += doubles(second.counts)[i];
      sums[i] += doubles(second.score_sums)[i];
      // The same terms in another order, each order off by at most its additions.
      error.push_back(2.0 * sequence_length * float_roundoff * sums[i]);
    }
    EXPECT_EQ(doubles(whole.counts), counts);
    expect_close(whole.score_sums, sums, error);

    Tensor together = zeros(DType::float32, tokens, experts), apart = zeros(DType::float32, tokens, experts);
    auxiliary_loss_backward(context, scores, whole.counts, scoring, {0, sequence_length, sequence_length}, choices,
                            0.3f, together);
    for (const auto& [begin, count] : {std::pair(std::int64_t{0}, cut), std::pair(cut, tokens - cut)}) {
      auxiliary_loss_backward(context, scores.view().rows_from(begin, count), whole.counts, scoring,
                              {begin, sequence_length, sequence_length}, choices, 0.3f,
                              apart.view().rows_from(begin, count));
    }
    EXPECT_EQ(doubles(apart), doubles(together));
  });
}

TEST_F(LoadBalance, BackwardAddsTheFiniteDifference) {
  constexpr double factor = 0.75;
  for_each_case([&](std::int64_t experts, Scoring scoring) {
    const Statistics whole = statistics(scoring, 0, tokens);
    Tensor dscores = random("dscores", DType::float32, tokens, experts);
    std::vector<double> expected = doubles(dscores), error;
    const std::vector<double> score = doubles(scores), count = doubles(whole.counts);
    auxiliary_loss_backward(context, scores, whole.counts, scoring, {0, sequence_length, sequence_length}, choices,
                            factor, dscores);
    const double scale = factor * static_cast<double>(experts) / (choices * sequence_length * sequence_length);
    for (std::int64_t token = 0; token < tokens; ++token) {
      const auto counts_of_sequence = count.begin() + token / sequence_length * experts;
      const std::vector<double> row(score.begin() + token * experts, score.begin() + (token + 1) * experts);
      // The part of the loss that depends on the scores of this token.
      const auto loss = [&](const std::vector<double>& x) {
        const std::vector<double> probability = normalised(x, scoring);
        return scale * std::inner_product(probability.begin(), probability.end(), counts_of_sequence, 0.0);
      };
      const double sum = scoring != Scoring::softmax ? std::accumulate(row.begin(), row.end(), 0.0) : 1.0;
      const double mean = scoring != Scoring::softmax ? loss(row) : 0.0;
      for (std::int64_t e = 0; e < experts; ++e) {
        double& value = expected[token * experts + e];
        const double terms = std::abs(value) + (scale * counts_of_sequence[e] + mean) / sum;
        value += derivative(loss, row, e);
        error.push_back((2.0 * sum_additions(experts) + 8.0) * float_roundoff * terms + 1e-11);
      }
    }
    expect_close(dscores, expected, error);
  });
}

TEST_F(LoadBalance, SoftmaxLossPullsTowardsBalanceThroughTheRouter) {
  route(3, Scoring::softmax);
  const Statistics whole = statistics(Scoring::softmax, 0, tokens);
  Tensor dscores = zeros(DType::float32, tokens, 3), dlogits = poisoned(DType::float32, tokens, 3);
  const Tensor no_dweights = zeros(DType::float32, tokens, choices);
  auxiliary_loss_backward(context, scores, whole.counts, Scoring::softmax, {0, sequence_length, sequence_length},
                          choices, 1.0f, dscores);
  route_backward(context, no_dweights, dscores, scores, indices, {}, dlogits);
  const std::vector<double> count = doubles(whole.counts), gradient = doubles(dlogits);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const auto begin = count.begin() + token / sequence_length * 3;
    const auto [least, most] = std::minmax_element(begin, begin + 3);
    if (*least == *most) continue;
    EXPECT_GT(gradient[token * 3 + (most - begin)], 0.0);
    EXPECT_LT(gradient[token * 3 + (least - begin)], 0.0);
  }
}

TEST_F(LoadBalance, ZLossMatchesReferenceAndFiniteDifference) {
  // Apart, so that neither stands in for the other.
  constexpr double factor = 0.01, gradient_factor = 0.04;
  for (const auto& [rows, copies] : {std::pair(0, 1), {1, 1}, {5, 1}, {5, 7}}) {
    for (std::int64_t experts : odd_sizes) {
      SCOPED_TRACE(fmt::format("{} x {}, {} copies", rows, experts, copies));
      const Tensor logits = random("logits", DType::float32, rows, experts);
      Tensor dlogits = random("dlogits", DType::float32, rows, experts);
      const std::vector<double> logit = doubles(logits);
      std::vector<double> expected = doubles(dlogits), error;
      constexpr double before = 0.5;
      Tensor loss = tensor_of(DType::float64, 1, 1, {before});
      z_loss(context, logits, copies, nullptr, factor, gradient_factor, dlogits, loss);
      const auto square = [more = copies - 1](const std::vector<double>& x) {
        double sum = more * std::exp(x.back());
        for (double value : x) sum += std::exp(value);
        return std::log(sum) * std::log(sum);
      };
      double expected_loss = 0.0, loss_error = 0.0;
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::vector<double> x(logit.begin() + row * experts, logit.begin() + (row + 1) * experts);
        const auto [smallest, largest] = std::minmax_element(x.begin(), x.end());
        // e^x is within 4 u of an argument that carries a rounding of logit - maximum, and the sum is positive. So the
        // error of the sum is relative, that of its logarithm absolute.
        const double relative = (sum_additions(experts) + 8.0 + (*largest - *smallest)) * float_roundoff;
        const double log_sum_exp = std::sqrt(square(x));
        expected_loss += square(x);
        loss_error += (2.0 * log_sum_exp + 1.0) * relative;
        for (std::int64_t e = 0; e < experts; ++e) {
          double& value = expected[row * experts + e];
          const double gradient = gradient_factor * derivative(square, x, e);
          // An error of the logarithm weighs in full where the logarithm itself is near zero.
          const double share = 2.0 * gradient_factor * relative;
          error.push_back(4.0 * relative * std::abs(gradient) + share + 2.0 * float_roundoff * std::abs(value));
          value += gradient;
        }
      }
      EXPECT_NEAR(number(loss), before + factor * expected_loss, factor * loss_error + 1e-12);
      expect_close(dlogits, expected, error);
    }
  }
}

// Sequences that padding fills up have the statistics, losses and gradients of the shorter ones, and padding has none.
TEST_F(LoadBalance, PaddingDoesNotCount) {
  const std::vector<std::int64_t> lengths = {4, sequence_length, 1};
  std::vector<double> targets;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < sequence_length; ++i)
      targets.push_back(i >= length ? padding_target : i == 1 ? -1 : 7);
  }
  const Tensor target = tensor_of(DType::int32, tokens, 1, targets);
  const auto* const of_tokens = reinterpret_cast<const std::int32_t*>(target.view().data());
  for_each_case([&](std::int64_t experts, Scoring scoring) {
    const TokenSlice padded{0, sequence_length, 0, of_tokens};
    Statistics all{poisoned(DType::float32, sequences, experts), poisoned(DType::float32, sequences, experts)};
    expert_statistics(context, scores, indices, scoring, padded, all.counts, all.score_sums);
    Tensor loss = zeros(DType::float64, 1, 1), dscores = zeros(DType::float32, tokens, experts);
    auxiliary_loss(context, all.counts, all.score_sums, choices, 0, 0.3, loss);
    auxiliary_loss_backward(context, scores, all.counts, scoring, padded, choices, 0.3f, dscores);
    Tensor z = zeros(DType::float64, 1, 1), dlogits = zeros(DType::float32, tokens, experts);
    z_loss(context, scores, 1, of_tokens, 0.3, 0.3f, dlogits, z);

    const std::vector<double> counts = doubles(all.counts), sums = doubles(all.score_sums);
    const std::vector<double> gradient = doubles(dscores), z_gradient = doubles(dlogits);
    double expected_loss = 0.0, expected_z = 0.0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int64_t length = lengths[static_cast<std::size_t>(s)], first = s * sequence_length;
      const ConstTensorView own = scores.view().rows_from(first, length);
      const TokenSlice slice{0, length, length};
      Statistics alone{poisoned(DType::float32, 1, experts), poisoned(DType::float32, 1, experts)};
      expert_statistics(context, own, indices.view().rows_from(first, length), scoring, slice, alone.counts,
                        alone.score_sums);
      Tensor part = zeros(DType::float64, 1, 1), dpart = zeros(DType::float32, length, experts);
      auxiliary_loss(context, alone.counts, alone.score_sums, choices, length, 0.3, part);
      auxiliary_loss_backward(context, own, alone.counts, scoring, slice, choices, 0.3f, dpart);
      expected_loss += number(part);
      Tensor z_part = zeros(DType::float64, 1, 1), dz_part = zeros(DType::float32, length, experts);
      z_loss(context, own, 1, nullptr, 0.3, 0.3f, dz_part, z_part);
      expected_z += number(z_part);
      const std::vector<double> count = doubles(alone.counts), sum = doubles(alone.score_sums);
      for (std::int64_t e = 0; e < experts; ++e) {
        EXPECT_EQ(counts[s * experts + e], count[e]);
        EXPECT_EQ(sums[s * experts + e], sum[e]);
      }
      const std::vector<double> dscore = doubles(dpart), dlogit = doubles(dz_part);
      for (std::int64_t i = 0; i < sequence_length * experts; ++i) {
        const bool counted = i < length * experts;
        ASSERT_EQ(gradient[first * experts + i], counted ? dscore[i] : 0.0) << "sequence " << s << ", element " << i;
        ASSERT_EQ(z_gradient[first * experts + i], counted ? dlogit[i] : 0.0) << "sequence " << s << ", element " << i;
      }
    }
    EXPECT_NEAR(number(loss), expected_loss, 1e-14 * expected_loss);
    EXPECT_NEAR(number(z), expected_z, 1e-14 * expected_z);
  });
}

TEST_F(LoadBalance, RefusesASliceOutsideItsSequences) {
  route(3, Scoring::softmax);
  EXPECT_THROW(expert_statistics(context, scores, indices, Scoring::softmax, {1, sequence_length, sequence_length},
                                 poisoned(DType::float32, sequences, 3), poisoned(DType::float32, sequences, 3)),
               Error);
}

}  // namespace
}  // namespace weft
