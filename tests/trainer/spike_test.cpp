// Spikes of a run: when a loss or a norm is one. A step left out because of one never was, on all ranks.
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

// The sum of squares of the gradients of a loss that was scaled by 8, a little beside that of `norm`.
double scaled_squares(double norm, double beside) {
  return std::pow(8.0 * norm, 2) * (1.0 + beside);
}

// Norms between 2 and 4, with the bound of losses of this size above.
TEST(SpikeWatch, HoldsANormAgainstTheWeightedMeanOfEarlierOnes) {
  std::mt19937 random(7);
  for (const std::int64_t window : {2, 8, 31}) {
    SpikeWatch watch({.window = window, .action = SpikeAction::stop});  // 10 and 100 times the mean
    std::vector<double> norms;
    for (std::int64_t step = 0; step < 60; ++step) {
      if (step < window) {
        EXPECT_EQ(watch.find(1e300, 0.0, 64.0, 8.0), std::nullopt) << step;
        EXPECT_EQ(watch.find_warning(1e300, 8.0), std::nullopt) << step;
        EXPECT_EQ(watch.limits(64.0, 8.0).square_sum, infinity);
      } else {
        const double mean = trend_of(norms, window).mean;
        EXPECT_EQ(watch.find_warning(scaled_squares(10 * mean, -1e-12), 8.0), std::nullopt) << step;
        const auto warning = watch.find_warning(scaled_squares(10 * mean, 1e-12), 8.0);
        ASSERT_TRUE(warning) << step;
        EXPECT_NEAR(*warning->mean, mean, 1e-12);
        EXPECT_NEAR(warning->limit, 10 * mean, 1e-11);
        EXPECT_NEAR(warning->value, 10 * mean, 1e-9);
        EXPECT_EQ(watch.find(scaled_squares(100 * mean, -1e-12), 0.0, 64.0, 8.0), std::nullopt) << step;
        EXPECT_TRUE(watch.find_warning(scaled_squares(100 * mean, -1e-12), 8.0)) << step;
        const auto spike = watch.find(scaled_squares(100 * mean, 1e-12), 0.0, 64.0, 8.0);
        ASSERT_TRUE(spike) << step;
        EXPECT_EQ(spike->what, "grad_norm");
        EXPECT_EQ(spike->action, SpikeAction::stop);
        EXPECT_NEAR(*spike->mean, mean, 1e-12);
        EXPECT_EQ(watch.find_warning(scaled_squares(100 * mean, 1e-12), 8.0), std::nullopt) << step;
      }
      norms.push_back(2.0 + 2.0 * static_cast<double>(random()) / 0x1p32);
      watch.add_norm(norms.back());
    }
    EXPECT_EQ(watch.norm_trend()->norms, 60);
  }
}

TEST(SpikeWatch, KeepsANormThatIsASpikeOutOfTheMean) {
  SpikeWatch watch({.window = 2, .grad_norm_warning = 2.0, .grad_norm_spike = 4.0});
  EXPECT_EQ(watch.norm_trend(), std::nullopt);
  for (const double norm : {1.0, 1.0, 4.5, 1e9}) watch.add_norm(norm);
  EXPECT_EQ(watch.norm_trend(), (NormTrend{2, 1.0}));
  watch.add_norm(4.0);  // told and no spike: it enters with a weight of 2/3
  EXPECT_EQ(watch.norm_trend()->norms, 3);
  EXPECT_NEAR(watch.norm_trend()->mean, 3.0, 1e-15);
  // The lower of two limits counts, and each is off at 0.
  SpikeWatch fixed({.window = 2, .grad_norm = 3.0, .grad_norm_warning = 0.0, .grad_norm_spike = 4.0});
  for (const double norm : {1.0, 1.0}) fixed.add_norm(norm);
  EXPECT_EQ(fixed.find(12.25, 0.0, 4.0, 1.0), (Spike{"grad_norm", 3.5, 3.0, SpikeAction::log}));
  EXPECT_EQ(fixed.find_warning(6.25, 1.0), std::nullopt);
  SpikeWatch off({.window = 2, .grad_norm_warning = 0.0, .grad_norm_spike = 0.0});
  for (const double norm : {1.0, 1.0}) off.add_norm(norm);
  EXPECT_EQ(off.find(1e300, 0.0, 4.0, 1.0), std::nullopt);
  EXPECT_EQ(off.find_warning(1e300, 1.0), std::nullopt);
  EXPECT_EQ(off.norm_trend(), std::nullopt);
  off.resume({}, NormTrend{5, 1.0});  // of a run that watched its norms
  EXPECT_EQ(off.norm_trend(), std::nullopt);
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

// The step with the largest norm over the mean of those before it, and a factor that it alone exceeds.
struct NormSpike {
  std::size_t step = 0;  // index
  double factor = 0.0, mean = 0.0;
};
NormSpike norm_spike_in(const std::vector<double>& norms, std::int64_t window) {
  NormSpike most;
  double before = 1.0;  // the largest factor of an earlier norm
  for (std::size_t i = static_cast<std::size_t>(window); i < norms.size(); ++i) {
    const double mean = trend_of({norms.begin(), norms.begin() + static_cast<std::ptrdiff_t>(i)}, window).mean;
    if (norms[i] / mean <= most.factor) continue;
    before = std::max(before, most.factor);
    most = {i, norms[i] / mean, mean};
  }
  most.factor = 0.5 * (most.factor + before);
  return most;
}

// A norm above its warning is told and changes nothing; above the other factor its step never was, on any rank.
TEST(SpikeRun, ANormFarAboveItsMeanIsToldOrVoidsItsStepInEveryLayout) {
  constexpr std::int64_t window = 3;
  for (const TinyLayout& layout : watched_layouts()) {
    SCOPED_TRACE(layout.name);
    Config config = config_of(layout);
    config.run.steps = 8;
    config.optimizer.learning_rate = 1e-6;  // the norms of texts, which rise and fall
    config.lr_scheduler = {.warmup_steps = 0, .decay = Decay::constant};
    const LearnedRun free = learn(config);
    const NormSpike expected = norm_spike_in(free.gradient_norms, window);
    ASSERT_GT(expected.factor, 1.0);

    config.spikes = {.window = window, .grad_norm_warning = expected.factor, .grad_norm_spike = 0.0};
    const LearnedRun told = learn(config);
    EXPECT_EQ(told.weights, free.weights);
    for (std::size_t i = 0; i <= expected.step; ++i) {
      const StepMetrics& step = told.result.steps[i];
      EXPECT_FALSE(step.spike || step.skipped) << i;
      EXPECT_EQ(step.warning.has_value(), i == expected.step) << i;
    }
    EXPECT_NEAR(*told.result.steps[expected.step].warning->mean, expected.mean, 1e-12 * expected.mean);
    EXPECT_EQ(told.result.steps[expected.step].warning->value, free.gradient_norms[expected.step]);

    config.spikes = {
        .window = window, .grad_norm_warning = 0.0, .grad_norm_spike = expected.factor, .action = SpikeAction::skip};
    config.run.steps = static_cast<std::int64_t>(expected.step) + 1;
    std::mutex mutex;
    int ranks = 0;
    RunObserver observer;
    observer.after_step = [&](RankRun&, const StepMetrics& step) {
      const std::lock_guard lock(mutex);
      const bool last = step.step == config.run.steps;
      EXPECT_EQ(step.spike.has_value(), last) << step.step;
      EXPECT_EQ(step.skipped, last) << step.step;
      if (last) ++ranks;
    };
    const LearnedRun voided = learn(config, observer);
    EXPECT_EQ(ranks, layout.degrees.world());
    // The run has the weights of one that ends before the spike.
    config.run.steps = static_cast<std::int64_t>(expected.step);
    EXPECT_EQ(voided.weights, learn(config).weights);
  }
}

// The mean of norms is in the checkpoint, to the bit that of a run that was not ended.
TEST(SpikeRun, GoesOnWithTheSameMeanOfNorms) {
  const TemporaryFolder folder;
  for (const TinyLayout& layout : watched_layouts()) {
    SCOPED_TRACE(layout.name);
    Config config = saving_config(layout, folder / (layout.name + "-whole"), 6, 0);
    config.optimizer.learning_rate = 1e-6;
    config.spikes = {.window = 2, .grad_norm_warning = 1.0, .grad_norm_spike = 1e6};
    const LearnedRun whole = learn(config);
    config.checkpoint.directory = (folder / (layout.name + "-ended")).string();
    std::int64_t asked = 0;
    run_steps(config, {}, {}, {}, {[&] { return ++asked == 3; }});
    const LearnedRun rest = learn(config);
    ASSERT_EQ(rest.result.steps.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(rest.result.steps[i].warning, whole.result.steps[3 + i].warning) << i;
    }
    const auto trend_in = [&](const char* run) {
      return CheckpointReader(folder / (layout.name + run) / "step-00000006").manifest().progress.norm_trend;
    };
    ASSERT_TRUE(trend_in("-whole"));
    EXPECT_EQ(trend_in("-ended"), trend_in("-whole"));
    EXPECT_EQ(trend_in("-whole")->norms, 6);
    const double mean = trend_of(whole.gradient_norms, 2).mean;
    EXPECT_NEAR(trend_in("-whole")->mean, mean, 1e-12 * mean);
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
