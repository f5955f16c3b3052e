// What a step tells, on the console and in metrics.jsonl, where something is computed in float16.
#include "trainer/rank/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "trainer/diagnosis/run_outputs.h"
#include "trainer/run/console.h"

namespace weft {
namespace {

std::string console_line(const StepMetrics& metrics) {
  std::ostringstream out;
  Console(out, false).step(metrics, 10);
  return out.str();
}

TEST(StepMetricsText, TellsOfASkippedStepAndItsScale) {
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 2.5;
  metrics.gradient_norm = std::numeric_limits<double>::infinity();
  metrics.loss_scale = 1024.0;
  metrics.skipped = true;
  EXPECT_NE(console_line(metrics).find("skipped: gradients overflowed at loss scale 1024\n"), std::string::npos);
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(json["loss_scale"], 1024.0);
  EXPECT_EQ(json["skipped"], true);
  EXPECT_TRUE(json["grad_norm"].is_null());

  metrics.skipped = false;
  metrics.gradient_norm = 1.0;
  EXPECT_EQ(console_line(metrics).find("skipped"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["skipped"], false);
}

// Without float16 there is nothing to tell.
TEST(StepMetricsText, SaysNothingOfScalesWithoutOne) {
  StepMetrics metrics;
  metrics.step = 1;
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_FALSE(json.contains("loss_scale"));
  EXPECT_FALSE(json.contains("skipped"));
}

TEST(StepMetricsText, HasARateForEachGroupWhereTheyDiffer) {
  StepMetrics metrics;
  const auto read_back = [&] { return parse_step_metrics(to_json(metrics), "here").learning_rates; };
  EXPECT_NE(console_line(metrics).find("  lr none  "), std::string::npos);
  EXPECT_TRUE(read_back().empty());
  metrics.learning_rates = {{{}, 3e-4}};
  EXPECT_NE(console_line(metrics).find("  lr 3.000e-04  "), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["lr"], 3e-4);
  EXPECT_EQ(read_back(), metrics.learning_rates);
  metrics.learning_rates = {{{UpdateGroup::dense, UpdateGroup::vectors}, 3e-4}, {{UpdateGroup::experts}, 1e-4}};
  EXPECT_NE(console_line(metrics).find("  lr 3.000e-04 (dense, vectors), 1.000e-04 (experts)  "), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["lr"]["experts"], 1e-4);
  std::vector<GroupRate> expected = metrics.learning_rates;
  std::ranges::sort(expected, {}, [](const GroupRate& rate) { return rate.groups.front(); });
  EXPECT_EQ(read_back(), expected);
}

}  // namespace
}  // namespace weft
