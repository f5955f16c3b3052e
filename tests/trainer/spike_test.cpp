// Spikes of a run: when a loss or a norm is one, and that a step left out because of one never was, on all ranks.
#include "trainer/rank/spikes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <random>

#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Weighted mean and variance by their definitions, from all losses and their weights at once.
LossTrend trend_of(const std::vector<double>& losses, std::int64_t window) {
  std::vector<double> weights;
  for (std::size_t n = 1; n <= losses.size(); ++n) {
    const double rate = std::max(2.0 / static_cast<double>(window + 1), 1.0 / static_cast<double>(n));
    for (double& weight : weights) weight *= 1.0 - rate;
    weights.push_back(rate);
  }
  LossTrend trend{std::ssize(losses)};
  for (std::size_t i = 0; i < losses.size(); ++i) trend.mean += weights[i] * losses[i];
  for (std::size_t i = 0; i < losses.size(); ++i) trend.variance += weights[i] * std::pow(losses[i] - trend.mean, 2);
  return trend;
}

// Losses between 2 and 4. Sums of 60 terms of this size differ by less than 60 x 16 x 2^-53 = 1e-13.
TEST(SpikeWatch, HoldsALossAgainstTheWeightedMeanOfEarlierOnes) {
  std::mt19937 random(5);
  for (const std::int64_t window : {2, 8, 31}) {
    SpikeWatch watch({.loss_deviations = 3.0, .window = window});
    std::vector<double> losses;
    for (int step = 0; step < 60; ++step) {
      const double limit = watch.limits(64.0, 1.0).loss_sum / 64.0;
      if (step < window) {
        EXPECT_EQ(limit, infinity) << step;
      } else {
        const LossTrend expected = trend_of(losses, window);
        EXPECT_NEAR(limit, expected.mean + 3.0 * std::sqrt(expected.variance), 1e-12) << step;
      }
      losses.push_back(std::min(limit, 2.0 + 2.0 * static_cast<double>(random()) / 0x1p32));
      watch.add(losses.back());
    }
    EXPECT_EQ(watch.trend()->losses, 60);
  }
}

// A spike enters at its limit, so that it does not hide the next one; a lasting rise is usual in the end.
TEST(SpikeWatch, KeepsOneSpikeOutOfTheMeanAndGetsUsedToARise) {
  SpikeWatch watch({.loss_deviations = 4.0, .window = 16});
  for (int step = 0; step < 32; ++step) watch.add(step % 2 == 0 ? 2.0 : 2.1);
  const auto is_spike = [&](double loss) { return watch.find(0.0, 64.0 * loss, 64.0, 1.0).has_value(); };
  EXPECT_FALSE(is_spike(2.2));
  EXPECT_TRUE(is_spike(2.4));
  watch.add(1000.0);
  EXPECT_TRUE(is_spike(2.6));
  watch.add(infinity);
  watch.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(is_spike(2.6));
  int steps = 0;
  for (; is_spike(9.0) && steps < 1000; ++steps) watch.add(9.0);
  EXPECT_GT(steps, 2);
  EXPECT_LT(steps, 100);
}

TEST(SpikeWatch, TellsWhatStandsOut) {
  SpikeWatch watch({.loss_deviations = 2.0, .window = 2, .grad_norm = 3.0, .action = SpikeAction::skip});
  EXPECT_EQ(watch.find(9.0, 1e9, 4.0, 1.0), std::nullopt);  // no loss is one yet, and a norm at its limit is none
  EXPECT_EQ(watch.find(16.0, 0.0, 4.0, 1.0), (Spike{"grad_norm", 4.0, 3.0, SpikeAction::skip}));
  // Of a scaled loss: a norm of 16 is one of 2.
  EXPECT_EQ(watch.find(256.0, 0.0, 4.0, 8.0), std::nullopt);
  EXPECT_EQ(watch.find(1024.0, 0.0, 4.0, 8.0), (Spike{"grad_norm", 4.0, 3.0, SpikeAction::skip}));
  for (const double loss : {1.0, 3.0}) watch.add(loss);
  // With the rates 1 and 2/3 the mean is 7/3 and the variance 1/3 x 2/3 x 4 = 8/9.
  const auto spike = watch.find(16.0, 40.0, 4.0, 1.0);
  ASSERT_TRUE(spike);
  EXPECT_EQ(spike->what, "loss");
  EXPECT_EQ(spike->value, 10.0);
  EXPECT_NEAR(spike->limit, 7.0 / 3 + 2 * std::sqrt(8.0) / 3, 1e-15);
  EXPECT_EQ(spike->text(), "loss 10.0000 is above 4.2190");
  EXPECT_EQ(SpikeWatch({}).find(1e300, 1e300, 1.0, 1.0), std::nullopt);
  EXPECT_EQ(SpikeWatch({.grad_norm = 1.0}).trend(), std::nullopt);
}

std::vector<TinyLayout> watched_layouts() {
  return {{.name = "one", .layers = "d e d e"},
          {.name = "pp2", .layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}},
          {.name = "zbv", .layers = "d e d e", .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2},
          {.name = "tp2_cp2", .layers = "d e d e", .degrees = {.context = 2, .tensor = 2}},
          {.name = "replicas",
           .layers = "d e d e",
           .degrees = {.data_replicate = 2, .data_shard = 2},
           .strategy = ShardStrategy::no_shard}};
}

// One window of text over and over: a step that never was leaves no trace.
Config same_batch_config(const TinyLayout& layout, const std::filesystem::path& text) {
  std::ofstream file(text);
  for (int window = 0; window < 400; ++window) file << "shuttle ";
  Config config = config_of(layout);
  config.data.train = {text.string()};
  config.run.steps = 5;
  config.lr_scheduler.warmup_steps = 4;
  return config;
}

// With a limit below all norms of a run that is not watched, every step is left out: the initial weights stay.
TEST(SpikeRun, ASkippedStepNeverWasOnAnyRank) {
  const TemporaryFolder folder;
  for (const TinyLayout& layout : watched_layouts()) {
    for (const UpdateRule rule : {UpdateRule::adamw, UpdateRule::muon}) {
      SCOPED_TRACE(fmt::format("{} {}", layout.name, name_of(rule)));
      Config config = same_batch_config(layout, folder / "text.txt");
      config.optimizer.rule = rule;
      std::mutex mutex;
      WeightCollector before, after;
      RunObserver observer;
      observer.before_first_step = [&](RankRun& run) {
        const std::lock_guard lock(mutex);
        before.add(run.stream(), run.stages());
      };
      const LearnedRun free = learn(config, observer);
      config.spikes = {.grad_norm = 0.5 * std::ranges::min(free.gradient_norms), .action = SpikeAction::skip};
      const LearnedRun held = learn(config);
      LearnedRun initial;
      before.finish(initial);
      EXPECT_EQ(held.weights, initial.weights);
      for (const StepMetrics& step : held.result.steps) {
        EXPECT_TRUE(step.skipped);
        ASSERT_TRUE(step.spike);
        EXPECT_EQ(step.spike->what, "grad_norm");
        EXPECT_EQ(step.spike->value, step.gradient_norm);
        EXPECT_EQ(step.loss, free.losses.front());
        EXPECT_EQ(step.learning_rates, held.result.steps.front().learning_rates);  // the schedule counts updates
      }
      // Logging changes nothing, and a limit that no norm meets neither.
      config.spikes.action = SpikeAction::log;
      const LearnedRun logged = learn(config);
      EXPECT_EQ(logged.weights, free.weights);
      EXPECT_EQ(logged.losses, free.losses);
      for (const StepMetrics& step : logged.result.steps) EXPECT_TRUE(step.spike && !step.skipped);
      config.spikes = {.grad_norm = 2.0 * std::ranges::max(free.gradient_norms), .action = SpikeAction::skip};
      const LearnedRun never = learn(config);
      EXPECT_EQ(never.weights, free.weights);
      for (const StepMetrics& step : never.result.steps) EXPECT_TRUE(!step.spike && !step.skipped);
    }
  }
}

// The loss that stands out most from those before it, and so many deviations that it alone is a spike.
struct LossSpike {
  std::size_t step = 0;  // index
  double deviations = -infinity;
};
LossSpike spike_in(const std::vector<double>& losses, std::int64_t window) {
  LossSpike most;
  double before = -infinity;  // the most deviations of an earlier loss
  for (std::size_t i = static_cast<std::size_t>(window); i < losses.size(); ++i) {
    const LossTrend trend = trend_of({losses.begin(), losses.begin() + static_cast<std::ptrdiff_t>(i)}, window);
    const double deviations = (losses[i] - trend.mean) / std::sqrt(trend.variance);
    if (deviations <= most.deviations) continue;
    before = most.deviations;
    most = {i, deviations};
  }
  most.deviations = 0.5 * (most.deviations + std::max(before, 0.0));
  return most;
}

// Up to the spike the losses are those of a run that watches nothing; the spike changes no weight.
TEST(SpikeRun, ALossThatStandsOutVoidsItsStepInEveryLayout) {
  constexpr std::int64_t window = 3;
  for (const TinyLayout& layout : watched_layouts()) {
    SCOPED_TRACE(layout.name);
    Config config = config_of(layout);
    config.run.steps = 8;
    config.optimizer.learning_rate = 1e-6;  // the losses of texts, which rise and fall
    config.lr_scheduler = {.warmup_steps = 0, .decay = Decay::constant};
    const LearnedRun free = learn(config);
    const LossSpike expected = spike_in(free.losses, window);
    ASSERT_GT(expected.deviations, 0.0);
    config.spikes = {.loss_deviations = expected.deviations, .window = window, .action = SpikeAction::skip};
    const LearnedRun held = learn(config);
    for (std::size_t i = 0; i < held.losses.size(); ++i) {
      const StepMetrics& step = held.result.steps[i];
      if (i > expected.step) break;  // its update is missing, and the spike has entered the mean as its limit
      EXPECT_EQ(step.loss, free.losses[i]);
      EXPECT_EQ(step.spike.has_value(), i == expected.step) << i;
      EXPECT_EQ(step.skipped, i == expected.step) << i;
    }
    EXPECT_EQ(held.result.steps[expected.step].spike->what, "loss");
    // A run that ends with the spike has the weights of one that ends before it.
    config.run.steps = static_cast<std::int64_t>(expected.step) + 1;
    const LearnedRun voided = learn(config);
    config.run.steps = static_cast<std::int64_t>(expected.step);
    EXPECT_EQ(voided.weights, learn(config).weights);
  }
}

// The means of losses are in the checkpoint: the rest of a run that was ended judges as the whole one.
TEST(SpikeRun, GoesOnWithTheSameMean) {
  const TemporaryFolder folder;
  Config config = saving_config(watched_layouts()[1], folder / "whole", 8, 0);
  config.optimizer.learning_rate = 1e-6;  // the losses of texts, which rise and fall
  config.spikes = {.loss_deviations = 0.5, .window = 3, .action = SpikeAction::skip};
  const LearnedRun whole = learn(config);
  const auto spikes = std::ranges::count_if(whole.result.steps, [](const StepMetrics& step) { return step.skipped; });
  EXPECT_GT(spikes, 0);
  config.checkpoint.directory = (folder / "ended").string();
  std::int64_t asked = 0;
  run_steps(config, {}, {}, {}, {[&] { return ++asked == 4; }});
  const LearnedRun rest = learn(config);
  ASSERT_EQ(rest.losses.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rest.losses[i], whole.losses[4 + i]);
    EXPECT_EQ(rest.result.steps[i].spike, whole.result.steps[4 + i].spike);
  }
  EXPECT_EQ(rest.weights, whole.weights);
}

// The saved state is that before the spike, also where the checkpoint of that step is being written.
TEST(SpikeRun, StopsWithTheStateBefore) {
  const TemporaryFolder folder;
  for (const std::int64_t interval : {0, 1}) {
    for (const TinyLayout& layout : watched_layouts()) {
      SCOPED_TRACE(layout.name);
      const auto whole_in = folder / fmt::format("{}-whole-{}", layout.name, interval);
      const auto stopped_in = folder / fmt::format("{}-stopped-{}", layout.name, interval);
      Config config = saving_config(layout, whole_in, 4, 2);
      config.checkpoint.keep_latest = 0;
      const KeptRun whole = run_kept(config);
      // The largest norm is one, and no earlier one.
      double limit = 0.0;
      std::size_t at = 0;
      for (std::size_t i = 0; i < whole.steps.size(); ++i) {
        if (whole.steps[i].gradient_norm <= limit) continue;
        limit = whole.steps[i].gradient_norm;
        at = i;
      }
      config.spikes = {.grad_norm = limit * (1 - 1e-9), .action = SpikeAction::stop};
      config.checkpoint.directory = stopped_in.string();
      config.checkpoint.interval = interval;
      const KeptRun stopped = run_kept(config);
      EXPECT_NE(stopped.stopping_spike.find(fmt::format("step {} has a spike", at + 1)), std::string::npos)
          << stopped.stopping_spike;
      EXPECT_EQ(stopped.steps.size(), at + 1);
      EXPECT_EQ(stopped.steps_taken, static_cast<std::int64_t>(at));
      EXPECT_EQ(find_checkpoints(stopped_in).front().step, static_cast<std::int64_t>(at));
      // It stops again; with another action it goes on as the run that had none.
      EXPECT_FALSE(run_kept(config).stopping_spike.empty());
      config.spikes.action = SpikeAction::log;
      const KeptRun rest = run_kept(config);
      ASSERT_EQ(rest.steps.size(), whole.steps.size() - at);
      for (std::size_t i = 0; i < rest.steps.size(); ++i) EXPECT_EQ(rest.steps[i].loss, whole.steps[at + i].loss);
      const CheckpointReader a(whole_in / "step-00000004"), b(stopped_in / "step-00000004");
      EXPECT_EQ(differing_tensors(a, b), std::vector<std::string>{});
    }
  }
}

}  // namespace
}  // namespace weft
