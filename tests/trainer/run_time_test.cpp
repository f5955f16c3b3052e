#include "trainer/run/run_directory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <regex>
#include <string>
#include <thread>

namespace weft {
namespace {

double sum_of_parts(const RunTimer& timer) {
  double sum = 0.0;
  for (const RunPart part : all_values<RunPart>) sum += timer.seconds(part);
  return sum;
}

// Each part is a sum of differences of the clock, whose readings are whole nanoseconds.
TEST(RunTime, PartsSumToTheWall) {
  const auto begin = std::chrono::steady_clock::now();
  RunTimer timer;
  for (int round = 0; round < 100; ++round) {
    for (const RunPart part : all_values<RunPart>) timer.add(part);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  timer.add(RunPart::steps);
  const double outside = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_NEAR(sum_of_parts(timer), timer.wall_seconds(), 600 * 1e-12);
  EXPECT_LE(timer.wall_seconds(), outside);
  EXPECT_GE(timer.seconds(RunPart::steps), 3e-3);
  EXPECT_DOUBLE_EQ(timer.goodput(), timer.seconds(RunPart::steps) / timer.wall_seconds());
}

TEST(RunTime, WhatAStepWaitedIsNoStep) {
  RunTimer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  timer.add(RunPart::steps);
  const double steps = timer.seconds(RunPart::steps);
  timer.take_from_steps(RunPart::data_wait, 1e-3);
  EXPECT_DOUBLE_EQ(timer.seconds(RunPart::data_wait), 1e-3);
  EXPECT_DOUBLE_EQ(timer.seconds(RunPart::steps), steps - 1e-3);
  timer.take_from_steps(RunPart::checkpoints, 1e6);  // never more than there was
  EXPECT_EQ(timer.seconds(RunPart::steps), 0.0);
  EXPECT_EQ(timer.goodput(), 0.0);
  EXPECT_NEAR(sum_of_parts(timer), timer.wall_seconds(), 1e-12);
}

TEST(RunTime, TextHasThePartsThatAreNoticed) {
  RunTimer timer;
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  timer.add(RunPart::start_up);
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  timer.add(RunPart::steps);
  const std::string text = timer.text();
  EXPECT_TRUE(std::regex_match(text, std::regex(R"(\d\.\d s: start-up \d\.\d s, steps \d\.\d s; goodput \d+\.\d %)")))
      << text;
}

}  // namespace
}  // namespace weft
