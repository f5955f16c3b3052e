// The reports of a step, on the console and in metrics.jsonl, where something is computed in float16.
#include "trainer/rank/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "trainer/diagnosis/run_outputs.h"
#include "trainer/run/console.h"
#include "trainer/run/event_file.h"

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
  metrics.targets = 8;
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

// An x86 processor gives infinity minus infinity a sign.
TEST(StepMetricsText, HasNoSignOfANormThatIsNoNumber) {
  const StepMetrics metrics{.step = 1, .gradient_norm = -std::numeric_limits<double>::quiet_NaN()};
  EXPECT_NE(console_line(metrics).find("  grad_norm nan  "), std::string::npos) << console_line(metrics);
}

// Without float16 there is nothing to tell.
TEST(StepMetricsText, SaysNothingOfScalesWithoutOne) {
  StepMetrics metrics;
  metrics.step = 1;
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_FALSE(json.contains("loss_scale"));
  EXPECT_FALSE(json.contains("skipped"));
}

TEST(StepMetricsText, HasTheHashesOfTheRunWhereTheyAreGiven) {
  StepMetrics metrics;
  EXPECT_FALSE(nlohmann::json::parse(to_json(metrics)).contains("hashes"));
  metrics.hashes = {"a", "b", "c"};
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["hashes"],
            nlohmann::json({{"configuration", "a"}, {"program", "b"}, {"layout", "c"}}));
  EXPECT_EQ(parse_step_metrics(to_json(metrics), "here").hashes, metrics.hashes);
}

// What a receipt tells of rates is read back.
TEST(StepMetricsText, HasRatesThatAreReadBack) {
  StepMetrics metrics{.step = 1, .tokens = 64, .seconds = 0.5, .model_flops = 3e12, .peak_flops_per_second = 24e12};
  EXPECT_DOUBLE_EQ(*metrics.mfu(), 0.25);
  const StepMetrics read = parse_step_metrics(to_json(metrics), "here");
  EXPECT_DOUBLE_EQ(read.model_flops, 3e12);
  EXPECT_DOUBLE_EQ(*read.mfu(), 0.25);
}

TEST(StepMetricsText, HasARateForEachGroupWhereTheyDiffer) {
  StepMetrics metrics;
  const auto read_back = [&] { return parse_step_metrics(to_json(metrics), "here").learning_rates; };
  EXPECT_NE(console_line(metrics).find("  lr none  "), std::string::npos);
  EXPECT_TRUE(read_back().empty());
  metrics.learning_rates = {{{}, 3e-4}};
  EXPECT_NE(console_line(metrics).find("  lr 3.00e-04  "), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["lr"], 3e-4);
  EXPECT_EQ(read_back(), metrics.learning_rates);
  metrics.learning_rates = {{{UpdateGroup::dense, UpdateGroup::vectors}, 3e-4}, {{UpdateGroup::experts}, 1e-4}};
  EXPECT_NE(console_line(metrics).find("  lr 3.00e-04 (dense, vectors), 1.00e-04 (experts)  "), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["lr"]["experts"], 1e-4);
  std::vector<GroupRate> expected = metrics.learning_rates;
  std::ranges::sort(expected, {}, [](const GroupRate& rate) { return rate.groups.front(); });
  EXPECT_EQ(read_back(), expected);
}

// Rates are over all steps since the last report, loss and norm those of the step.
TEST(ReportedSteps, AreTheFirstTheLastThoseOfTheIntervalAndWhatStandsOut) {
  ReportedSteps reports(10, 38);
  std::vector<std::int64_t> reported, joined;
  std::int64_t tokens = 0;
  for (std::int64_t step = 4; step <= 38; ++step) {
    StepMetrics metrics{.step = step, .loss = 0.5 * static_cast<double>(step)};
    metrics.tokens = step;
    metrics.seconds = 0.25;
    metrics.data_seconds = 0.125;
    metrics.model_flops = 4e12;
    metrics.skipped = step == 12;
    if (step == 15) metrics.spike = Spike{"loss", 2.0, 1.0, SpikeAction::log};
    if (step == 25) metrics.warning = Spike{"grad_norm", 2.0, 1.0, SpikeAction::log, 0.1};
    if (step == 16) metrics.validation = HeldOutLoss{};
    const auto line = reports.add(metrics);
    tokens += step;
    if (!line) continue;
    reported.push_back(line->step);
    joined.push_back(line->steps);
    EXPECT_EQ(line->loss, metrics.loss);
    EXPECT_EQ(line->tokens, tokens);
    EXPECT_EQ(line->seconds, 0.25 * static_cast<double>(line->steps));
    EXPECT_EQ(line->data_seconds, 0.125 * static_cast<double>(line->steps));
    EXPECT_EQ(line->tflops(), 16.0);
    tokens = 0;
  }
  EXPECT_EQ(reported, (std::vector<std::int64_t>{4, 10, 12, 15, 16, 20, 25, 30, 38}));
  EXPECT_EQ(joined, (std::vector<std::int64_t>{1, 6, 2, 3, 1, 4, 5, 5, 8}));
  EXPECT_FALSE(reports.rest().has_value());
  reports.add({.step = 41, .tokens = 5});
  reports.add({.step = 42, .tokens = 6});
  const auto rest = reports.rest();
  ASSERT_TRUE(rest.has_value());
  EXPECT_EQ(std::tuple(rest->step, rest->steps, rest->tokens), std::tuple(42, 2, 11));
  EXPECT_FALSE(reports.rest().has_value());
}

TEST(StepMetricsText, FitsALineOfAScreen) {
  StepMetrics metrics{.step = 1200, .loss = 2.3456, .gradient_norm = 0.5123};
  metrics.learning_rates = {{{}, 3e-4}};
  metrics.tokens = 412'345;
  metrics.seconds = 1.0;
  metrics.model_flops = 412e12;
  metrics.peak_flops_per_second = 989.4e12;
  metrics.peak_bytes = std::int64_t{61} << 30;
  std::ostringstream out;
  Console(out, false).step(metrics, 10000);
  EXPECT_EQ(out.str(),
            "step  1200/10000  loss 2.3456  grad_norm 0.5123  lr 3.00e-04  412345 tok/s  1000 ms  412 TFLOP/s  41.6 % "
            "MFU  61.000 GiB\n");
  EXPECT_LE(out.str().size(), 121u);
  metrics.data_seconds = 0.03;
  EXPECT_NE(console_line(metrics).find(" GiB  data 3 %\n"), std::string::npos);
  metrics.peak_flops_per_second.reset();
  EXPECT_EQ(console_line(metrics).find("MFU"), std::string::npos);
  metrics.steps = 4;  // in the same second
  EXPECT_NE(console_line(metrics).find("  412345 tok/s  250 ms  "), std::string::npos) << console_line(metrics);
}

TEST(StepMetricsText, TellsOfASpikeAndWhatWasDone) {
  StepMetrics metrics{.step = 3, .loss = 9.5, .gradient_norm = 1.0};
  EXPECT_FALSE(nlohmann::json::parse(to_json(metrics)).contains("spike"));
  metrics.spike = Spike{"loss", 9.5, 7.25, SpikeAction::log};
  EXPECT_NE(console_line(metrics).find("  spike: loss 9.5000 is above 7.2500\n"), std::string::npos);
  metrics.spike->action = SpikeAction::skip;
  metrics.skipped = true;
  EXPECT_NE(console_line(metrics).find("  spike: loss 9.5000 is above 7.2500, skipped\n"), std::string::npos);
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(json["spike"], nlohmann::json({{"what", "loss"}, {"value", 9.5}, {"limit", 7.25}, {"action", "skip"}}));
  EXPECT_EQ(json["skipped"], true);
  EXPECT_TRUE(parse_step_metrics(to_json(metrics), "here").skipped);
}

TEST(StepMetricsText, TellsOfANormFarAboveItsMean) {
  StepMetrics metrics{.step = 3, .loss = 9.5, .gradient_norm = 30.0};
  EXPECT_FALSE(nlohmann::json::parse(to_json(metrics)).contains("warning"));
  metrics.warning = Spike{"grad_norm", 30.0, 20.0, SpikeAction::log, 2.0};
  EXPECT_TRUE(console_line(metrics).starts_with("step ")) << console_line(metrics);
  EXPECT_NE(console_line(metrics).find(" 3/"), std::string::npos);
  EXPECT_NE(console_line(metrics).find("  WARNING: grad_norm 30.0000 is above 20.0000 (mean 2.0000)\n"),
            std::string::npos)
      << console_line(metrics);
  const auto json = nlohmann::json::parse(to_json(metrics));
  EXPECT_EQ(json["warning"], nlohmann::json({{"what", "grad_norm"}, {"value", 30.0}, {"limit", 20.0}, {"mean", 2.0}}));
  EXPECT_FALSE(json.contains("spike"));
  metrics.spike = Spike{"grad_norm", 300.0, 200.0, SpikeAction::stop, 2.0};
  EXPECT_EQ(nlohmann::json::parse(to_json(metrics))["spike"]["mean"], 2.0);
}

TEST(StepMetricsText, TellsOfExpertsDealtInTurn) {
  StepMetrics metrics{.step = 3, .loss = 9.5};
  for (const bool forced : {false, true}) {
    metrics.forced_balance = forced;
    EXPECT_EQ(console_line(metrics).find("  experts dealt in turn\n") != std::string::npos, forced);
    EXPECT_EQ(parse_step_metrics(to_json(metrics), "here").forced_balance, forced);
    EXPECT_EQ(std::ranges::count(event_scalars(metrics), "forced_balance", &EventScalar::tag), forced ? 1 : 0);
  }
}

// Shares 1/2, 1/4, 1/4 and 0 of four experts have 3/2 of 2 bits.
TEST(ExpertBalance, ComparesWithEqualShares) {
  const std::vector<std::int64_t> uneven = {8, 4, 4, 0}, even = {5, 5, 5, 5}, all_to_one = {0, 7, 0}, one = {3};
  EXPECT_NEAR(expert_balance(2, uneven).entropy, 0.75, 1e-15);
  EXPECT_EQ(expert_balance(2, uneven).max_over_mean, 2.0);
  EXPECT_EQ(expert_balance(2, uneven).block, 2);
  EXPECT_NEAR(expert_balance(0, even).entropy, 1.0, 1e-15);
  EXPECT_EQ(expert_balance(0, even).max_over_mean, 1.0);
  EXPECT_EQ(expert_balance(0, all_to_one).entropy, 0.0);
  EXPECT_EQ(expert_balance(0, all_to_one).max_over_mean, 3.0);
  EXPECT_EQ(expert_balance(0, one).entropy, 1.0);
  EXPECT_EQ(expert_balance(0, all_to_one).unused, 2);
  EXPECT_EQ(expert_balance(0, even).unused, 0);
  // All choices are null slots.
  const std::vector<std::int64_t> none = {0, 0};
  EXPECT_EQ(expert_balance(0, none, 2).unused, 2);
  EXPECT_EQ(expert_balance(0, none, 2).max_over_mean, 0.0);
  EXPECT_EQ(expert_balance(0, none, 2).idlest_rank, 0.0);
}

TEST(ExpertBalance, NamesTheUnusedExpertsAndTheIdlestRank) {
  const std::vector<std::int64_t> tokens = {4, 0, 2, 0, 0, 3};
  const MoeMetrics balance = expert_balance(1, tokens, 3);
  EXPECT_EQ(balance.unused_experts, (std::vector<std::int64_t>{1, 3, 4}));
  EXPECT_EQ(balance.idlest_place, 1);
  EXPECT_DOUBLE_EQ(balance.idlest_rank, 3.0 * 2.0 / 9.0);
  EXPECT_FALSE(expert_balance(1, tokens).idlest_place);
  const auto json = nlohmann::json::parse(to_json({.moe = {balance, expert_balance(2, std::vector<std::int64_t>{1})}}));
  EXPECT_EQ(json["moe"][0]["unused_experts"], (std::vector{1, 3, 4}));
  EXPECT_EQ(json["moe"][0]["idlest_place"], 1);
  EXPECT_FALSE(json["moe"][1].contains("unused_experts") || json["moe"][1].contains("idlest_place"));
  // A line of a model with many experts stays short.
  std::vector<std::int64_t> many(100, 0);
  many[0] = 1;
  EXPECT_EQ(expert_balance(0, many).unused, 99);
  EXPECT_EQ(expert_balance(0, many).unused_experts.size(), most_named_experts);
}

}  // namespace
}  // namespace weft
