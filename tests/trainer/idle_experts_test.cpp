// Experts that get no token in a whole run. Their ranks gather, reduce and step as the others do, and decay is all that
// happens to the experts' weights.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <mutex>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// Every token chooses one expert of four, and no loss of routers evens the choice out.
Config with_one_choice(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.model.moe.num_experts_per_tok = 1;
  config.model.moe.router_aux_loss_coef = config.model.moe.router_z_loss_coef = 0.0;
  config.run.steps = 20;
  config.optimizer.learning_rate = 1e-4;  // so small that the choice stays
  return config;
}

// Of a text of one letter all tokens are alike: attention averages equal values, so that no position differs, and all
// choose the same expert.
Config of_one_letter(const TinyLayout& layout, const TemporaryFolder& folder) {
  Config config = with_one_choice(layout);
  config.data.train = {(folder / "letter.txt").string()};
  return config;
}

class IdleExperts : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(IdleExperts, AreReducedAndSteppedAsTheOthers) {
  const TemporaryFolder folder;
  std::ofstream(folder / "letter.txt") << std::string(10'000, 'w');
  const TinyLayout layout = GetParam();
  const Config config = of_one_letter(layout, folder);
  WeightCollector collector;
  std::mutex mutex;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    const std::scoped_lock lock(mutex);
    collector.add(run.stream(), run.stages());
  };
  const LearnedRun many = learn(config, observer), one = learn(of_one_letter({.layers = layout.layers}, folder));
  EXPECT_TRUE(many.faults.empty()) << many.faults.front();
  // As parity_test.cpp derives it for 10 steps, of twice as many.
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.loss, 2e-5);
  EXPECT_LT(apart.weights, 2e-5) << apart.worst_parameter;

  // What a step leaves of a weight without a gradient, and what of each matrix of the experts: three of four have no
  // other change. Each step rounds once.
  LearnedRun initial;
  collector.finish(initial);
  double left = 1.0;
  for (const StepMetrics& step : many.result.steps) {
    left *= 1.0 - step.learning_rates.front().rate * config.optimizer.weight_decay;
  }
  int decayed = 0, matrices = 0;
  for (const auto& [name, weights] : many.weights) {
    if (name.find(".experts.") == std::string::npos || name.ends_with("norm.weight")) continue;
    const std::vector<float>& before = initial.weights.at(name);
    bool alike = true;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      const double expected = before[i] * left;
      alike = alike && std::abs(weights[i] - expected) <= 20 * 0x1p-23 * std::abs(expected);
    }
    ++matrices;
    decayed += alike ? 1 : 0;
  }
  EXPECT_EQ(matrices, 2 * 4 * 3);
  EXPECT_EQ(decayed, 2 * 3 * 3);

  // A step communicates as often as one in which every expert gets tokens.
  Config mixed = with_one_choice(layout);
  mixed.run.steps = 1;
  const KeptRun busy = run_kept(mixed);
  EXPECT_EQ(busy.steps.front().moe.front().unused, 0);
  for (const StepMetrics& step : many.result.steps) {
    for (const auto& [key, count] : busy.steps.front().communication) {
      EXPECT_EQ(step.communication.at(key).count, count.count) << key.group << ", step " << step.step;
    }
    for (const MoeMetrics& moe : step.moe) EXPECT_EQ(moe.unused, 3) << "step " << step.step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, IdleExperts,
    ::testing::Values(TinyLayout{.name = "shard4_ep4", .layers = "d e d e", .degrees = {.data_shard = 4, .expert = 4}},
                      TinyLayout{.name = "shard4_ep2", .layers = "d e d e", .degrees = {.data_shard = 4, .expert = 2}},
                      TinyLayout{.name = "pp2_shard2_tensor2_ep2",
                                 .layers = "d e d e",
                                 .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
                      TinyLayout{.name = "replicate2_shard2_ep2",
                                 .layers = "d e d e",
                                 .degrees = {.data_replicate = 2, .data_shard = 2, .expert = 2}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
