// The largest microbatch of every strategy against trying every size in turn, each planned as a run of its own. The
// search for a limit against trying every size, of needs that are drawn at random.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/planning/compare.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

Config with_sequences(Config config, Recompute recompute, std::int64_t size) {
  const std::int64_t microbatches =
      config.training.global_batch_size / config.training.microbatch_size / config.parallelism.data();
  config.training.recompute = recompute;
  config.training.microbatch_size = size;
  config.training.global_batch_size = size * config.parallelism.data() * microbatches;
  return config;
}

bool refused_by_a_rule(const Config& config) {
  return std::ranges::any_of(config_rules(), [&](const ConfigRule& rule) { return !rule.check(config).empty(); });
}

// The largest of 1 to `most` that no rule refuses and whose plan fits, under any routing if the configuration's does; 0
// if none is.
std::int64_t largest_by_hand(const Config& config, const Hardware& hardware, Recompute recompute, int most) {
  const bool always = plan_run(config, hardware).worst_fit() == Fit::fits;
  std::int64_t largest = 0;
  for (int size = 1; size <= most; ++size) {
    const Config tried = with_sequences(config, recompute, size);
    if (refused_by_a_rule(tried)) continue;
    const RunPlan plan = plan_run(tried, hardware);
    if (always ? plan.worst_fit() == Fit::fits : plan.verdict.fits()) largest = size;
  }
  return largest;
}

// A card on which full_shard fits with up to so many sequences at a time.
Hardware card_for(const Config& config, std::int64_t sequences) {
  Hardware hardware = hardware_of(config);
  hardware.reserved_memory.value = 0.0;
  hardware.memory = Figure{0x1p40, "large"};
  for (const StrategyPlan& each : unplanned_strategies(config, hardware)) {
    if (each.sharding != Sharding::full_shard) continue;
    const Config config_there = with_sequences(each.config, Recompute::none, sequences);
    const std::int64_t needed = plan_run(config_there, hardware).verdict.needed;
    const std::int64_t most = worst_need(config_there, hardware).value_or(needed);
    hardware.memory = Figure{static_cast<double>(most + 64) / Verdict::limit, "of this test"};
  }
  return hardware;
}

void expect_largest(const Config& config, std::int64_t sequences) {
  constexpr int most = 40;
  const Hardware hardware = card_for(config, sequences);
  const std::vector<StrategyPlan> plans = compare_strategies(config, hardware);
  const auto largest = largest_microbatches(plans, hardware);
  ASSERT_EQ(largest.size(), plans.size());
  int judged = 0;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(name_of(plans[i].sharding));
    ASSERT_EQ(largest[i].has_value(), plans[i].refused.empty());
    if (!largest[i]) continue;
    ++judged;
    EXPECT_EQ(largest[i]->plain, largest_by_hand(plans[i].config, hardware, Recompute::none, most));
    EXPECT_LT(largest[i]->plain, most);
    const std::int64_t recomputed = largest_by_hand(plans[i].config, hardware, Recompute::full, most);
    EXPECT_EQ(std::min<std::int64_t>(largest[i]->recomputed, most), recomputed);
    EXPECT_GE(largest[i]->recomputed, largest[i]->plain);
    if (plans[i].sharding == Sharding::full_shard) {
      EXPECT_EQ(largest[i]->plain, sequences);
    }
  }
  EXPECT_GE(judged, 4);
  // With recomputation more fits somewhere, or the two would be one figure.
  EXPECT_TRUE(std::ranges::any_of(largest, [](const auto& each) { return each && each->recomputed > each->plain; }));
}

TEST(LargestMicrobatch, IsThatOfTryingEverySize) {
  Config config = config_of({.layers = "d*4", .degrees = {.data_shard = 4}});
  config.hardware.ranks_per_node = 2;
  expect_largest(config, 9);
}

TEST(LargestMicrobatch, IsThatOfTryingEverySizeWithExperts) {
  Config config = config_of({.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}});
  config.hardware.ranks_per_node = 2;
  expect_largest(config, 7);
}

// Four tensor ranks divide the tokens of a microbatch; a sequence has six.
TEST(LargestMicrobatch, IsOfTheSizesThatRanksDivide) {
  Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2, .tensor = 4}});
  config.hardware.ranks_per_node = 8;
  config.training.sequence_length = 6;
  config.training.microbatch_size = 4;
  expect_largest(config, 10);
}

TEST(LargestMicrobatch, IsNoneWhereNothingFitsAndUnknownWithoutMemory) {
  const Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2}});
  Hardware hardware = hardware_of(config);
  hardware.ranks_per_node.value = 2;
  hardware.memory = Figure{1.0, "a byte"};
  for (const bool with_memory : {true, false}) {
    if (!with_memory) hardware.memory = std::nullopt;
    const auto plans = compare_strategies(config, hardware);
    const auto largest = largest_microbatches(plans, hardware);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (!plans[i].refused.empty()) continue;
      EXPECT_EQ(largest[i], with_memory ? std::optional(LargestMicrobatch{}) : std::nullopt);
    }
  }
}

// Needs as those of runs: the largest of a few lines, of which each may be the peak somewhere, on a card of `memory`.
struct DrawnNeed {
  std::vector<std::pair<double, double>> lines = {};
  std::int64_t memory = 0, refused_from = 0;

  std::optional<Verdict> operator()(std::int64_t size) const {
    if (size >= refused_from) return std::nullopt;
    Verdict verdict{.memory = memory};
    for (const auto& [base, each] : lines) {
      const auto needed = static_cast<std::int64_t>(base + each * static_cast<double>(size));
      verdict.needed = std::max(verdict.needed, needed);
    }
    verdict.fit = verdict.fit_of(verdict.needed);
    return verdict;
  }
};

DrawnNeed drawn_need(std::mt19937_64& random, std::size_t lines) {
  std::uniform_real_distribution<double> base(1e6, 1e9), each(1e3, 1e7), memory(1e9, 2e10);
  DrawnNeed need{.memory = static_cast<std::int64_t>(memory(random)), .refused_from = 5000};
  for (std::size_t i = 0; i < lines; ++i) need.lines.push_back({base(random), each(random)});
  if (random() % 4 == 0) need.refused_from = 2 + static_cast<std::int64_t>(random() % 200);
  return need;
}

TEST(SizeLimit, IsThatOfTryingEverySizeInFewTries) {
  std::mt19937_64 random(5);
  constexpr int most = 4096;
  for (int draw = 0; draw < 500; ++draw) {
    const std::size_t lines = 1 + random() % 3;
    const DrawnNeed need = drawn_need(random, lines);
    if (!need(1)->fits()) continue;
    int expected = 1, tries = 0;
    while (expected < most && need(expected + 1) && need(expected + 1)->fits()) ++expected;
    const SizeScale scale{
        .most = most, .size = [](int number) { return number; }, .number = [](double size) { return size; }};
    const SizeLimit found = find_size_limit(scale, {.fits = 1, .fits_bytes = need(1)->needed}, [&](std::int64_t size) {
      ++tries;
      return need(size);
    });
    EXPECT_EQ(found.fits, expected) << draw;
    EXPECT_EQ(found.fits_bytes, need(expected)->needed) << draw;
    const bool exceeds = expected < most && need(expected + 1);
    EXPECT_EQ(found.exceeds, exceeds ? std::optional<std::int64_t>(expected + 1) : std::nullopt) << draw;
    // Predictions by lines, then halves of 4,096. One line alone is known from two sizes, up to whole bytes.
    EXPECT_LE(tries, 8 + 13) << draw;
    if (lines == 1 && need.refused_from > most) {
      EXPECT_LE(tries, 6) << draw;
    }
  }
}

}  // namespace
}  // namespace weft
