// The scale of the loss in float16, and when it moves. A step with gradients that overflow on one rank never was, for
// all of them.
#include "trainer/rank/spikes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>

#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

constexpr PrecisionConfig float16_compute{DType::float32, DType::float16, DType::float32};

Config scaled_config(double scale, std::int64_t growth_steps) {
  Config config = tiny_config("d*4");
  config.precision = float16_compute;
  config.training.initial_loss_scale = scale;
  config.training.loss_scale_growth_steps = growth_steps;
  return config;
}

TEST(LossScaler, DoublesAfterSoManyGoodStepsInARow) {
  LossScaler scaler(scaled_config(1024.0, 3));
  EXPECT_TRUE(scaler.active());
  for (const double expected : {1024.0, 1024.0, 1024.0, 2048.0, 2048.0, 2048.0, 4096.0}) {
    EXPECT_EQ(scaler.scale(), expected);
    scaler.end_step(true);
  }
  EXPECT_EQ(scaler.good_steps(), 7);
}

// More good steps in a row than a resumed run asks for are enough.
TEST(LossScaler, DoublesAfterAShorterWaitThanItHadBefore) {
  LossScaler scaler(scaled_config(8.0, 3));
  scaler.resume(6, 6, 8.0);
  scaler.end_step(true);
  EXPECT_EQ(scaler.scale(), 16.0);
  EXPECT_EQ(scaler.good_in_a_row(), 0);
}

TEST(LossScaler, HalvesAndCountsAnewAfterAnOverflow) {
  LossScaler scaler(scaled_config(1024.0, 3));
  for (int step = 0; step < 2; ++step) scaler.end_step(true);
  scaler.end_step(false);
  EXPECT_EQ(scaler.scale(), 512.0);
  EXPECT_EQ(scaler.good_steps(), 2);  // the one that overflowed is none
  for (int step = 0; step < 2; ++step) scaler.end_step(true);
  EXPECT_EQ(scaler.scale(), 512.0);  // two before and two after are not three in a row
  scaler.end_step(true);
  EXPECT_EQ(scaler.scale(), 1024.0);
  EXPECT_EQ(scaler.good_steps(), 5);
}

TEST(LossScaler, EndsTheRunWhereTheScaleIsNotTheReason) {
  LossScaler scaler(scaled_config(1.0, 3));
  for (int step = 0; step < 14; ++step) scaler.end_step(false);
  EXPECT_EQ(scaler.scale(), 0x1p-14);
  try {
    scaler.end_step(false);
    ADD_FAILURE() << "the scale has no floor";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("gradients overflow whatever the loss scale"), std::string::npos);
    EXPECT_EQ(error.kind(), ErrorKind::failure);
  }
}

TEST(LossScaler, StopsDoublingWhereItSaysNothingAnyMore) {
  LossScaler scaler(scaled_config(0x1p23, 1));
  for (const double expected : {0x1p23, 0x1p24, 0x1p24, 0x1p24}) {
    EXPECT_EQ(scaler.scale(), expected);
    scaler.end_step(true);
  }
}

TEST(LossScaler, IsThereForFloat16Only) {
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
    for (const DType reduction : {DType::float32, DType::bfloat16, DType::float16}) {
      Config config = scaled_config(1024.0, 3);
      config.precision = {DType::float32, compute, reduction};
      const bool expected = compute == DType::float16 || reduction == DType::float16;
      LossScaler scaler(config);
      EXPECT_EQ(scaler.active(), expected);
      EXPECT_EQ(scaler.scale(), expected ? 1024.0 : 1.0);
      scaler.end_step(true);
      EXPECT_EQ(scaler.good_steps(), 1);
      if (!expected) {
        EXPECT_THROW(scaler.end_step(false), Error);
      }
    }
  }
  Config one_family = scaled_config(1024.0, 3);
  one_family.precision = {};
  one_family.precision_by_family[Family::head] = float16_compute;
  EXPECT_TRUE(LossScaler(one_family).active());
  one_family.precision_by_family = {{Family::experts, float16_compute}};
  EXPECT_FALSE(LossScaler(one_family).active());  // the model has none
  one_family.model.blocks = parse_layers("d e").blocks;
  EXPECT_TRUE(LossScaler(one_family).active());
}

// Passes products on, and when armed puts an infinity into one weight gradient: that of a down_proj, the only one of 28
// x 20.
class OverflowingProducts final : public MatrixProducts {
 public:
  OverflowingProducts(std::unique_ptr<MatrixProducts> inner, std::atomic<bool>& armed)
      : inner_(std::move(inner)), armed_(armed) {}
  void run(const Product& product) override {
    inner_->run(product);
    const TensorView c = product.c;
    if (product.transpose_a != Transpose::yes || c.rows() != 28 || c.columns() != 20) return;
    if (armed_.exchange(false)) c.as<float>()[11] = std::numeric_limits<float>::infinity();
  }

 private:
  std::unique_ptr<MatrixProducts> inner_;
  std::atomic<bool>& armed_;
};

// Learns with an overflow in one gradient of one rank in `step`, before its reduction. `weights` before and after that
// step are those of all ranks.
struct OverflowRun {
  LearnedRun learned, before, after;
};
OverflowRun learn_with_overflow(const Config& config, int rank, std::int64_t step) {
  OverflowRun run;
  std::atomic<bool> armed = false, never = false;
  std::mutex mutex;
  WeightCollector before, after;
  RunObserver observer;
  observer.after_step = [&](RankRun& rank_run, const StepMetrics& metrics) {
    const std::lock_guard lock(mutex);
    if (metrics.step + 1 == step) {
      before.add(rank_run.stream(), rank_run.stages());
      if (rank_run.rank() == rank) armed = true;
    }
    if (metrics.step == step) {
      after.add(rank_run.stream(), rank_run.stages());
      EXPECT_FALSE(armed) << "the gradient was not met";
    }
  };
  run.learned = learn(config, observer, [&](int of) {
    std::unique_ptr<Backend> backend = make_cpu_backend();
    backend->make_products = [&of_rank = of == rank ? armed : never](Stream&, MemoryLedger&) {
      return std::make_unique<OverflowingProducts>(make_cpu_matrix_products(), of_rank);
    };
    return backend;
  });
  before.finish(run.before);
  after.finish(run.after);
  return run;
}

struct OverflowCase {
  TinyLayout layout;
  int rank = 0;
  UpdateRule rule = UpdateRule::adamw;
};
std::vector<OverflowCase> overflow_cases() {
  const Degrees shard4{.data_shard = 4}, replicas{.data_replicate = 2, .data_shard = 2},
      pp2{.pipeline = 2, .data_shard = 2, .expert = 2};
  return {{{.name = "shard4", .degrees = shard4}, 2},
          {{.name = "shard4_no_shard", .degrees = shard4, .strategy = ShardStrategy::no_shard}, 3, UpdateRule::lamb},
          {{.name = "replicas_sharded_sums", .degrees = replicas, .accumulate_sharded = true}, 1},
          {{.name = "pp2", .layers = "d e d e", .degrees = pp2, .reduction = "each_microbatch"}, 0, UpdateRule::muon}};
}

// One text of one window, over and over: every step has the same batch, and a step that never was leaves no trace.
class SameBatchEveryStep : public ::testing::Test {
 protected:
  SameBatchEveryStep()
      : path_(std::filesystem::temp_directory_path() / fmt::format("weft-same-batch-{}.txt", getpid())) {
    std::ofstream text(path_);
    for (int window = 0; window < 400; ++window) text << "shuttle ";
  }
  ~SameBatchEveryStep() override { std::filesystem::remove(path_); }

  Config config_of_case(const OverflowCase& the_case, std::int64_t steps, std::int64_t growth_steps) const {
    Config config = config_of(the_case.layout);
    config.precision = float16_compute;
    config.optimizer.rule = the_case.rule;
    config.data.train = {path_.string()};
    config.run.steps = steps;
    config.lr_scheduler.warmup_steps = 4;
    config.training.initial_loss_scale = 1024.0;
    config.training.loss_scale_growth_steps = growth_steps;
    return config;
  }
  std::filesystem::path path_;
};
using LossScale = SameBatchEveryStep;

// Two good steps double the scale and the overflow of the third halves it. The other four therefore have the scale of
// the four of a run without overflow and growth. Equal losses and weights after that say that neither weights, moments,
// the count of the steps nor the schedule heard of the third.
TEST_F(LossScale, AnOverflowOnOneRankLeavesTheStepOutOnAll) {
  for (const OverflowCase& the_case : overflow_cases()) {
    SCOPED_TRACE(the_case.layout.name);
    const Config config = config_of_case(the_case, 5, 2);
    const OverflowRun run = learn_with_overflow(config, the_case.rank, 3);
    EXPECT_TRUE(run.learned.faults.empty()) << run.learned.faults.front();
    EXPECT_EQ(run.before.weights, run.after.weights);
    const LearnedRun without = learn(config_of_case(the_case, 4, 1000));
    EXPECT_EQ(run.learned.weights, without.weights);

    const std::vector<StepMetrics>& steps = run.learned.result.steps;
    ASSERT_EQ(steps.size(), 5u);
    const double scales[] = {1024.0, 1024.0, 2048.0, 1024.0, 1024.0};
    for (std::size_t s = 0; s < steps.size(); ++s) {
      EXPECT_EQ(steps[s].skipped, s == 2);
      EXPECT_EQ(steps[s].loss_scale, scales[s]);
      if (s == 2) continue;
      const StepMetrics& same = without.result.steps[s < 2 ? s : s - 1];
      EXPECT_EQ(steps[s].loss, same.loss);
      EXPECT_EQ(steps[s].gradient_norm, same.gradient_norm);
      EXPECT_EQ(steps[s].learning_rates, same.learning_rates);
    }
    EXPECT_EQ(steps[2].learning_rates, steps[3].learning_rates);
    EXPECT_LT(steps[1].learning_rates.at(0).rate, steps[2].learning_rates.at(0).rate);
    EXPECT_EQ(steps[2].loss, steps[3].loss);  // the weights are those before
    EXPECT_FALSE(std::isfinite(steps[2].gradient_norm));
  }
}

TEST_F(LossScale, WithoutFloat16TheSameOverflowEndsTheRunAndNamesTheParameter) {
  for (const OverflowCase& the_case : overflow_cases()) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      SCOPED_TRACE(fmt::format("{} {}", the_case.layout.name, name_of(compute)));
      Config config = config_of_case(the_case, 5, 2);
      config.precision.compute = compute;
      try {
        learn_with_overflow(config, the_case.rank, 3);
        ADD_FAILURE() << "the run goes on";
      } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_TRUE(message.starts_with(fmt::format("rank {}: in step 3 the gradient of blocks.", the_case.rank)))
            << message;
        EXPECT_NE(message.find("down_proj.weight holds a NaN or an infinity"), std::string::npos) << message;
        // The infinity was put there once.
        EXPECT_NE(message.find("as a faulty device would"), std::string::npos) << message;
      }
    }
  }
}

// A power of two scales every gradient without rounding, but for those that float16 has no more bits for. Below 2^-14
// its numbers are 2^-24 apart. Some gradients are that small at any scale. Where a softmax has a single key its
// gradient is zero, and the computed one is the rounding noise of a difference. So bits do differ. With a scale s an
// element of the gradients between segments is rounded by up to 2^-25 / s otherwise. That happens about 44 times on its
// way back (strategy_test.cpp counts them). A weight's gradient sums 128 of them against activations of size 1. Were
// all these errors of one sign it would be 44 x 128 x 2^-25 / s off. The norm of N of them would be sqrt(N) times that
// off. Adam divides by 1e-4 at least. With 2^12 a weight of 0.1 is therefore off by at most 3 x 1e-3 x 4.1e-8 / 1e-4 =
// 1.2e-6 after three steps, 1.2e-5 of it. (Below 2^12 another choice of an expert may follow.) Losses are computed
// before anything is scaled.
TEST(LossScaleOfPowersOfTwo, MovesOnlyWhatFloat16CannotHold) {
  for (const TinyLayout& layout :
       {TinyLayout{.degrees = {.data_shard = 4}},
        TinyLayout{.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}}}) {
    Config config = config_of(layout);
    config.precision = float16_compute;
    config.run.steps = 3;
    const auto with_scale = [&](double scale) {
      config.training.initial_loss_scale = scale;
      LearnedRun run = learn(config);
      for (const StepMetrics& step : run.result.steps) EXPECT_FALSE(step.skipped) << scale;
      return run;
    };
    const auto parameters = static_cast<double>(count_parameters(config.model).total);
    const LearnedRun base = with_scale(0x1p12);
    double most = 0.0;
    for (const double scale : {0x1p8, 0x1p14, 0x1p16}) {
      const LearnedRun other = with_scale(scale);
      EXPECT_EQ(other.losses.front(), base.losses.front());
      const double bound = 44 * 128 * 0x1p-25 / std::min(scale, 0x1p12);
      EXPECT_NEAR(other.gradient_norms.front(), base.gradient_norms.front(), std::sqrt(parameters) * bound) << scale;
      const RunDifference apart = difference(other, base);
      if (scale > 0x1p12) {
        EXPECT_LT(apart.weights, 1.2e-5) << apart.worst_parameter;
        most = std::max(most, apart.weights);
      }
    }
    // Which is what a scale is for: without one more is lost; 5 times is the least that was seen, on a processor
    // without AVX-512.
    EXPECT_GT(difference(with_scale(1.0), base).weights, 3 * most);
  }
}

}  // namespace
}  // namespace weft
