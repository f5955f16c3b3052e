// Advice against trying every value of each key by hand, in order, with words written out here and plans of whole runs.
#include "trainer/planning/advise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/planned_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/planning/run_plan.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

struct HandTrial {
  double seconds = 0.0;
  std::int64_t bytes = 0;
  bool fits = false;
  Overrides words = {};
};

class Advise : public testing::Test {
 protected:
  void write(const std::string& layers, const std::string& residency = "step") {
    has_experts_ = layers.find('e') != std::string::npos;
    const std::string more = fmt::format("[parallelism]\ndata_shard = 8\n[shard]\nresidency = \"{}\"\n", residency);
    write_file(file_, planned_run(layers, "h100", /*tied=*/false, more + "reduction = \"each_microbatch\"\n"));
    hardware_ = hardware_of(read_({}));
  }

  HandTrial plan(const Overrides& words) const {
    const RunPlan plan = plan_run(read_(words), hardware_, PlanRoutings::even);
    return {plan.time.seconds, plan.peak().total(), plan.verdict.fits(), words};
  }

  // Of runs that fit, and are at most 1 % slower than the fastest and not slower than the first, the smallest. Sizes
  // within 1 % are equal, and the fastest of them counts.
  static HandTrial best_of(const std::vector<HandTrial>& tried) {
    std::vector<HandTrial> left;
    std::ranges::copy_if(tried, std::back_inserter(left), &HandTrial::fits);
    const bool some = !left.empty();
    if (!some) left = tried;
    const double fastest = std::ranges::min_element(left, {}, &HandTrial::seconds)->seconds;
    std::erase_if(left, [&](const HandTrial& one) {
      const bool slower = tried.front().fits && one.seconds > tried.front().seconds;
      return some && (one.seconds > 1.01 * fastest || slower);
    });
    const std::int64_t least = std::ranges::min_element(left, {}, &HandTrial::bytes)->bytes;
    std::erase_if(
        left, [&](const HandTrial& one) { return static_cast<double>(one.bytes) > 1.01 * static_cast<double>(least); });
    return *std::ranges::min_element(left, {}, &HandTrial::seconds);
  }

  // Every list of words in turn, with those kept so far.
  HandTrial best_by_hand(const HandTrial& before, const std::vector<Overrides>& values) const {
    std::vector<HandTrial> tried = {before};
    for (const Overrides& words : values) {
      Overrides all;
      for (const std::string& old : before.words) {
        const std::string key = old.substr(0, old.find('=') + 1);
        const auto has_key = [&](const std::string& word) { return word.starts_with(key); };
        if (std::ranges::none_of(words, has_key)) all.push_back(old);
      }
      all.insert(all.end(), words.begin(), words.end());
      tried.push_back(plan(all));
    }
    return best_of(tried);
  }

  void expect_as_by_hand() {
    const std::vector<AdvisedStep> steps = advise(read_, hardware_);
    ASSERT_GE(steps.size(), 4u);
    HandTrial now = plan({});
    const bool started = now.fits;
    const double start = now.seconds;
    for (std::size_t s = 0; s < 4; ++s) {
      SCOPED_TRACE(steps[s].what);
      EXPECT_EQ(steps[s].before().time.seconds, now.seconds);
      EXPECT_EQ(steps[s].before().peak.total(), now.bytes);
      now = best_by_hand(now, s < values_.size() ? values_[s] : now.fits ? std::vector<Overrides>() : recomputes());
      EXPECT_EQ(steps[s].after().time.seconds, now.seconds);
      EXPECT_EQ(steps[s].after().peak.total(), now.bytes);
      EXPECT_EQ(steps[s].after().fits(), now.fits);
      // Its words make it.
      const HandTrial again = plan(steps[s].after().words);
      EXPECT_EQ(again.seconds, now.seconds);
      EXPECT_EQ(again.bytes, now.bytes);
    }
    expect_no_needless_key(steps);
    if (!started) return;
    EXPECT_TRUE(steps.back().after().fits());
    EXPECT_LE(steps.back().after().time.seconds, start);
  }

  // No step's words of the result can be left out without a loss of time or memory.
  void expect_no_needless_key(const std::vector<AdvisedStep>& steps) {
    const PlannedVariant& result = steps.back().after();
    if (!result.fits()) return;
    const HandTrial best = plan(result.words);
    for (std::size_t s = 0; s < 4; ++s) {
      SCOPED_TRACE(fmt::format("without {}", steps[s].what));
      Overrides words = result.words;
      for (const std::string& word : steps[s].after().words) {
        const Overrides& before = steps[s].before().words;
        if (std::ranges::find(before, word) == before.end()) std::erase(words, word);
      }
      if (words.size() == result.words.size()) continue;
      const HandTrial without = plan(words);
      EXPECT_FALSE(without.fits && without.seconds <= best.seconds && without.bytes <= best.bytes);
      EXPECT_FALSE(without.fits && 1.01 * without.seconds < best.seconds);
    }
  }

  // On one node of eight with four microbatches: neither hybrids nor islands.
  static Overrides strategy(const char* name, const char* residency, const char* reduction, const char* accumulation) {
    return {fmt::format("--shard.strategy={}", name), fmt::format("--shard.residency={}", residency),
            fmt::format("--shard.reduction={}", reduction), fmt::format("--shard.accumulation={}", accumulation)};
  }
  // Of runs that do not fit and recompute nothing.
  std::vector<Overrides> recomputes() const {
    std::vector<Overrides> values = {{"--training.recompute=selective"}};
    if (has_experts_) values.push_back({"--training.recompute=experts"});
    for (const char* blocks : {"keep_dispatch", "full"}) {
      if (!has_experts_ && blocks != std::string("full")) continue;
      values.push_back({fmt::format("--training.recompute={}", blocks)});
      values.push_back({values.back().front(), "--training.recompute_last_block=false"});
    }
    return values;
  }
  bool has_experts_ = false;
  const std::vector<std::vector<Overrides>> values_ = {
      {{"--shard.wrap=half_block"}, {"--shard.wrap=block"}, {"--shard.wrap=blocks 2"}, {"--shard.wrap=blocks 4"}},
      {strategy("full_shard", "reshard_after_use", "last_microbatch", "sharded"),
       strategy("shard_grad_op", "stage", "auto", "unsharded"), strategy("optimizer", "stage", "auto", "unsharded"),
       strategy("no_shard", "stage", "auto", "unsharded")},
      {{"--shard.lookahead=0"},
       {"--shard.lookahead=1"},
       {"--shard.lookahead=2"},
       {"--shard.lookahead=4"},
       {"--shard.lookahead=8"},
       {"--shard.backward_prefetch=pre"},
       {"--shard.backward_prefetch=post"},
       {"--shard.backward_prefetch=none"}}};

  TemporaryFolder folder_;
  std::string file_ = (folder_ / "run.toml").string();
  ReadWith read_ = [this](const Overrides& words) { return read_config(file_, words).config; };
  Hardware hardware_;
};

TEST_F(Advise, KeepsWhatTryingEveryValueInOrderKeeps) {
  for (const char* layers : {"d*6", "d e d e d e"}) {
    for (const char* residency : {"step", "reshard_after_use"}) {
      SCOPED_TRACE(fmt::format("{} {}", layers, residency));
      write(layers, residency);
      expect_as_by_hand();
    }
  }
}

// The card has less than the run as written needs, or less than any.
TEST_F(Advise, LooksForAFitFirst) {
  for (const char* layers : {"d*6", "d e d e d e"}) {
    SCOPED_TRACE(layers);
    write(layers);
    const std::int64_t needed = plan_run(read_({}), hardware_).verdict.needed;
    hardware_.memory = Figure{static_cast<double>(needed - 1) / Verdict::limit, "a byte too few"};
    ASSERT_FALSE(plan({}).fits);
    expect_as_by_hand();
    EXPECT_TRUE(advise(read_, hardware_).back().after().fits());
    hardware_.memory = Figure{hardware_.reserved_memory.value, "none left"};
    expect_as_by_hand();
    const std::vector<AdvisedStep> steps = advise(read_, hardware_);
    EXPECT_FALSE(steps.back().after().fits());
    EXPECT_LE(steps.back().after().verdict.needed, steps.front().before().verdict.needed);
  }
}

// A card for full_shard alone, with the room of one gather ahead of its use: the lead that was taken from backwards is
// given back.
TEST_F(Advise, TurnsTheLeadOfABackwardsGathers) {
  write("d*6", "reshard_after_use\"\nbackward_prefetch = \"none");
  const Verdict ahead = plan_run(read_({"--shard.backward_prefetch=pre"}), hardware_).verdict;
  ASSERT_GT(ahead.needed, plan_run(read_({}), hardware_).verdict.needed);
  hardware_.memory = Figure{static_cast<double>(ahead.needed + 64) / Verdict::limit, "of this test"};
  expect_as_by_hand();
  const AdvisedStep last = advise(read_, hardware_).at(2);
  EXPECT_EQ(last.tried[last.kept].value, "backward_prefetch pre");
  EXPECT_LT(last.after().time.seconds, last.before().time.seconds);
}

// Where a card has room, a run recomputes less than it was told to. Where it has no more than that takes, the
// model's last block is spared.
TEST_F(Advise, RecomputesNoMoreThanTheCardAsksFor) {
  write("d e d e d e");
  const ReadWith read = [&](const Overrides& words) {
    const Overrides computing = {"--training.recompute=full", "--training.sequence_length=4096",
                                 "--model.hidden_size=2048", "--model.intermediate_size=8192"};
    return read_(merged_words(computing, words));
  };
  const AdvisedStep roomy = advise(read, hardware_).at(3);
  EXPECT_EQ(roomy.tried[roomy.kept].value, "selective");
  EXPECT_LT(roomy.after().time.seconds, roomy.before().time.seconds);

  const auto need = [&](const std::string& word) { return plan_run(read({word}), hardware_).verdict.needed; };
  const std::int64_t spared = need("--training.recompute_last_block=false");
  ASSERT_GT(need("--training.recompute=keep_dispatch"), spared);
  hardware_.memory = Figure{static_cast<double>(spared + 64) / Verdict::limit, "of this test"};
  const AdvisedStep filled = advise(read, hardware_).at(3);
  EXPECT_EQ(filled.tried[filled.kept].value, "full, not of the last block");
  EXPECT_LT(filled.after().time.seconds, filled.before().time.seconds);
}

TEST(ValueToKeep, IsNeverSlowerAndSmallestAmongTies) {
  const auto tried = [](double seconds, std::int64_t bytes, Fit fit, std::string refused = {}) {
    TriedValue value;
    value.variant.time.seconds = seconds;
    value.variant.verdict = {.fit = fit, .needed = bytes};
    value.variant.refused = std::move(refused);
    return value;
  };
  using Tried = std::vector<TriedValue>;
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::fits), tried(0.5, 99, Fit::exceeds)}), 0u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::fits), tried(1.005, 5, Fit::fits)}), 0u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::fits), tried(1.0, 10, Fit::fits)}), 0u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 1000, Fit::fits), tried(1.0, 995, Fit::fits)}), 0u) << "bytes that tie";
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::fits), tried(0.9, 30, Fit::fits), tried(0.905, 20, Fit::fits)}),
            2u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::exceeds), tried(2.0, 8, Fit::tight), tried(3.0, 9, Fit::exceeds)}),
            1u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::exceeds), tried(0.9, 10, Fit::exceeds)}), 1u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::exceeds), tried(9.0, 5, Fit::fits)}), 1u);
  EXPECT_EQ(value_to_keep(Tried{tried(1.0, 10, Fit::exceeds), tried(0.0, 0, Fit::unknown, "no")}), 0u);
}

}  // namespace
}  // namespace weft
