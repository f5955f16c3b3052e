#include "trainer/inference/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"

namespace weft {
namespace {

std::vector<float> random_logits(std::string_view name, std::size_t count, bool ties = false) {
  const RandomStream random(5, name);
  std::vector<float> logits;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = 2.0 * random.normal(i);
    logits.push_back(static_cast<float>(ties ? std::round(value) : value));
  }
  return logits;
}

// Written anew from the definition, with probabilities of the whole softmax. Every token is ranked by counting those
// before it. It is kept when fewer than k stand before it and, of those kept so far, less than p of their sum does.
std::vector<double> reference(const std::vector<float>& logits, const SamplingOptions& options) {
  std::vector<double> p;
  const double largest = *std::max_element(logits.begin(), logits.end());
  for (float logit : logits) p.push_back(std::exp((logit - largest) / options.temperature));
  const auto before = [&](std::size_t i, std::size_t j) {
    return logits[i] > logits[j] || (logits[i] == logits[j] && i < j);
  };
  std::vector<bool> among_k(p.size());
  double sum = 0.0;
  for (std::size_t j = 0; j < p.size(); ++j) {
    std::int64_t ahead = 0;
    for (std::size_t i = 0; i < p.size(); ++i) ahead += before(i, j) ? 1 : 0;
    among_k[j] = !options.top_k || ahead < *options.top_k;
    if (among_k[j]) sum += p[j];
  }
  std::vector<double> kept(p.size(), 0.0);
  for (std::size_t j = 0; j < p.size(); ++j) {
    double ahead = 0.0;
    for (std::size_t i = 0; i < p.size(); ++i) ahead += among_k[i] && before(i, j) ? p[i] : 0.0;
    if (among_k[j] && (options.top_p == 1.0 || ahead < options.top_p * sum)) kept[j] = p[j];
  }
  const double all = std::accumulate(kept.begin(), kept.end(), 0.0);
  for (double& each : kept) each /= all;
  return kept;
}

TEST(Sampling, ProbabilitiesAreThoseOfTheDefinition) {
  for (bool ties : {false, true}) {
    const std::vector<float> logits = random_logits("definition", 50, ties);
    for (double temperature : {0.1, 0.7, 1.0, 3.0}) {
      for (std::optional<std::int64_t> top_k : {std::optional<std::int64_t>(), {1}, {2}, {7}, {50}, {1000}}) {
        for (double top_p : {1e-9, 0.3, 0.5, 0.9, 1.0}) {
          const SamplingOptions options{.temperature = temperature, .top_k = top_k, .top_p = top_p};
          const std::vector<double> found = token_probabilities(logits, options), expected = reference(logits, options);
          for (std::size_t i = 0; i < logits.size(); ++i) {
            // 50 terms added in another order, in double.
            ASSERT_NEAR(found[i], expected[i], 1e-14) << i << ", t " << temperature << ", p " << top_p;
            ASSERT_EQ(found[i] == 0.0, expected[i] == 0.0) << i << ", t " << temperature << ", p " << top_p;
          }
        }
      }
    }
  }
}

TEST(Sampling, TemperatureZeroIsTheLowestOfTheMostProbable) {
  const std::vector<float> logits = {1.0f, 4.0f, -2.0f, 4.0f};
  const SamplingOptions greedy{.temperature = 0.0};
  EXPECT_EQ(token_probabilities(logits, greedy), (std::vector<double>{0.0, 1.0, 0.0, 0.0}));
  for (std::int64_t position = 0; position < 20; ++position) EXPECT_EQ(sample_token(logits, greedy, 3, position), 1);
}

// Frequencies of n draws. Each is a mean of n Bernoulli numbers, further than 5 standard deviations sqrt(p (1 - p) / n)
// off once in 1.7 million. The test looks at 40 tokens.
TEST(Sampling, DrawsTokensAsOftenAsTheyAreProbable) {
  const std::vector<float> logits = random_logits("frequencies", 20);
  for (const SamplingOptions& options :
       {SamplingOptions{}, SamplingOptions{.temperature = 1.5, .top_k = 12, .top_p = 0.95}}) {
    const std::vector<double> expected = reference(logits, options);
    constexpr std::int64_t draws = 40000;
    std::vector<std::int64_t> counts(logits.size(), 0);
    for (std::int64_t i = 0; i < draws; ++i) {
      ++counts[static_cast<std::size_t>(sample_token(logits, options, i % 7, i / 7))];
    }
    for (std::size_t token = 0; token < logits.size(); ++token) {
      const double p = expected[token], frequency = static_cast<double>(counts[token]) / draws;
      EXPECT_NEAR(frequency, p, 5.0 * std::sqrt(p * (1.0 - p) / draws)) << token;
    }
  }
}

TEST(Sampling, PlacesTokensAlongTheCumulativeProbabilities) {
  const std::vector<double> probabilities = {0.0, 0.25, 0.0, 0.5, 0.25, 0.0};
  const std::pair<double, std::int32_t> places[] = {{1e-12, 1},  {0.2499, 1},      {0.2501, 3}, {0.7499, 3},
                                                    {0.7501, 4}, {1.0 - 1e-15, 4}, {1.0, 4}};
  for (const auto& [uniform, token] : places) EXPECT_EQ(token_at(probabilities, uniform), token) << uniform;
}

TEST(Sampling, DependsOnSeedSequenceAndPositionAlone) {
  const std::vector<float> logits(256, 0.0f);
  std::vector<std::int32_t> first;
  for (std::int64_t position = 0; position < 64; ++position)
    first.push_back(sample_token(logits, {.seed = 9}, 2, position));
  const auto again = [&](std::uint64_t seed, std::int64_t sequence, std::int64_t shift) {
    int equal = 0;
    for (std::int64_t position = 63; position >= 0; --position) {
      equal +=
          sample_token(logits, {.seed = seed}, sequence, position + shift) == first[static_cast<std::size_t>(position)];
    }
    return equal;
  };
  EXPECT_EQ(again(9, 2, 0), 64);
  // Of 64 independent draws of one in 256, 8 are equal once in 4e9.
  EXPECT_LT(again(10, 2, 0), 8);
  EXPECT_LT(again(9, 3, 0), 8);
  EXPECT_LT(again(9, 2, 1), 8);
}

std::string refusal(const SamplingOptions& options) {
  try {
    require_sound(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "";
}

TEST(Sampling, RefusesWhatMakesNoSense) {
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.temperature = 0.0, .top_k = 1, .top_p = 1e-6}), "");
  for (double temperature : {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_NE(refusal({.temperature = temperature}).find("temperature"), std::string::npos);
  }
  for (std::int64_t top_k : {0, -3}) EXPECT_NE(refusal({.top_k = top_k}).find("top-k"), std::string::npos);
  for (double top_p : {0.0, -0.5, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(refusal({.top_p = top_p}).find("top-p"), std::string::npos);
  }
  const std::string all = refusal({.temperature = -1.0, .top_k = 0, .top_p = 2.0});
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 2) << all;
  const float nan = std::numeric_limits<float>::quiet_NaN(), none = -std::numeric_limits<float>::infinity();
  EXPECT_THROW(token_probabilities(std::vector{0.0f, nan}, {}), Error);
  EXPECT_THROW(token_probabilities(std::vector{none, none}, {}), Error);
  EXPECT_EQ(token_probabilities(std::vector{none, 3.0f}, {}), (std::vector{0.0, 1.0}));
}

}  // namespace
}  // namespace weft
