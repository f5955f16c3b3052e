#include "trainer/optimizer/learning_rate.h"

#include <gtest/gtest.h>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr double peak = 0.004;

SchedulerConfig scheduler(Decay decay, std::int64_t warmup_steps, double min_lr_ratio, std::int64_t decay_steps = 0) {
  SchedulerConfig config;
  config.decay = decay;
  config.warmup_steps = warmup_steps;
  config.min_lr_ratio = min_lr_ratio;
  config.decay_steps = decay_steps;
  return config;
}

constexpr Decay all_decays[] = {Decay::constant, Decay::linear, Decay::cosine, Decay::wsd};

TEST(LearningRate, RisesLinearlyToThePeak) {
  for (Decay decay : all_decays) {
    const SchedulerConfig config = scheduler(decay, 4, 0.1);
    EXPECT_DOUBLE_EQ(learning_rate(config, peak, 1, 100), 0.001);
    EXPECT_DOUBLE_EQ(learning_rate(config, peak, 2, 100), 0.002);
    EXPECT_DOUBLE_EQ(learning_rate(config, peak, 3, 100), 0.003);
    EXPECT_EQ(learning_rate(config, peak, 4, 100), peak);
  }
}

// By hand, for warm-up 10 and 50 steps: 40 steps of decay, so that steps 20, 30 and 40 are at 1/4, 1/2 and 3/4.
TEST(LearningRate, FollowsTheDecay) {
  const SchedulerConfig constant = scheduler(Decay::constant, 10, 0.1);
  EXPECT_EQ(learning_rate(constant, peak, 11, 50), peak);
  EXPECT_EQ(learning_rate(constant, peak, 50, 50), peak);

  // With the ratio 0.5 the line falls from 4e-3 to 2e-3.
  const SchedulerConfig linear = scheduler(Decay::linear, 10, 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(linear, peak, 20, 50), 0.0035);
  EXPECT_DOUBLE_EQ(learning_rate(linear, peak, 30, 50), 0.0030);
  EXPECT_DOUBLE_EQ(learning_rate(linear, peak, 40, 50), 0.0025);

  // (1 + cos(pi/4)) / 2 = 0.853553390593273762..., (1 + cos(3 pi/4)) / 2 = 0.146446609406726238...
  const SchedulerConfig cosine = scheduler(Decay::cosine, 10, 0.0);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, peak, 20, 50), 0.004 * 0.853553390593273762);
  EXPECT_DOUBLE_EQ(learning_rate(cosine, peak, 30, 50), 0.002);
  EXPECT_NEAR(learning_rate(cosine, peak, 40, 50), 0.004 * 0.146446609406726238, 1e-17);

  // The last 8 of 50 steps decay: half-way in step 46.
  const SchedulerConfig wsd = scheduler(Decay::wsd, 10, 0.5, 8);
  EXPECT_EQ(learning_rate(wsd, peak, 42, 50), peak);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, peak, 43, 50), 0.00375);
  EXPECT_DOUBLE_EQ(learning_rate(wsd, peak, 46, 50), 0.0030);
}

TEST(LearningRate, DecaysOverATenthOfTheRunUnlessToldOtherwise) {
  const SchedulerConfig config = scheduler(Decay::wsd, 0, 0.0);
  EXPECT_EQ(learning_rate(config, peak, 90, 100), peak);
  EXPECT_DOUBLE_EQ(learning_rate(config, peak, 95, 100), peak / 2);
  // A run of less than ten steps decays in its last.
  EXPECT_EQ(learning_rate(config, peak, 4, 5), peak);
  EXPECT_EQ(learning_rate(config, peak, 5, 5), 0.0);
}

TEST(LearningRate, EndsAtTheMinimumAndStaysThere) {
  for (Decay decay : {Decay::linear, Decay::cosine, Decay::wsd}) {
    for (double ratio : {0.0, 0.25, 1.0}) {
      const SchedulerConfig config = scheduler(decay, 10, ratio);
      EXPECT_DOUBLE_EQ(learning_rate(config, peak, 50, 50), ratio * peak);
      EXPECT_EQ(learning_rate(config, peak, 51, 50), learning_rate(config, peak, 50, 50));
      EXPECT_EQ(learning_rate(config, peak, 5000, 50), learning_rate(config, peak, 50, 50));
    }
  }
}

TEST(LearningRate, RisesThenFallsWithoutTurning) {
  for (Decay decay : all_decays) {
    // A warm-up of 0, within the run, into the final decay of wsd (90 .. 100) and longer than the run.
    for (std::int64_t warmup : {0, 20, 95, 100, 150}) {
      const SchedulerConfig config = scheduler(decay, warmup, 0.1);
      for (std::int64_t step = 2; step <= 100; ++step) {
        const double before = learning_rate(config, peak, step - 1, 100), now = learning_rate(config, peak, step, 100);
        if (step <= warmup) {
          EXPECT_GT(now, before) << step;
        } else {
          EXPECT_LE(now, before) << step;
        }
        EXPECT_GE(now, 0.0);
        EXPECT_LE(now, peak);
      }
    }
  }
}

TEST(LearningRate, CountsStepsFromOne) {
  EXPECT_THROW(learning_rate(scheduler(Decay::cosine, 10, 0.1), peak, 0, 100), Error);
}

}  // namespace
}  // namespace weft
