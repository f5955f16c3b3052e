// A checkpoint belongs to the model, whatever layout has it in its hands. The same tensors come out, to the bit, and
// training goes on as if nothing had happened.
#include <gtest/gtest.h>

#include <initializer_list>

#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

// As parity_test.cpp derives it for 10 steps of the same model; these runs take 4.
constexpr double checkpoint_grid_tolerance = 1e-5;

struct Pair {
  TinyLayout a, b;
};

// Each layout with three others of its model.
std::vector<Pair> pairs() {
  std::vector<Pair> all;
  const auto add = [&](const std::vector<TinyLayout>& layouts, std::initializer_list<std::size_t> steps) {
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      for (const std::size_t step : steps) all.push_back({layouts[i], layouts[(i + step) % layouts.size()]});
    }
  };
  add(saved_layouts(), {1, 5, 11});
  add(saved_tied_layouts(), {1, 2, 3});
  return all;
}

class CheckpointGrid : public ::testing::TestWithParam<Pair> {};

TEST_P(CheckpointGrid, ThereAndBackIsTheSameToTheBit) {
  const TemporaryFolder folder;
  run_steps(saving_config(GetParam().a, folder / "a", 2, 2));
  resave(config_of(GetParam().b), folder / "a", folder / "b");
  resave(config_of(GetParam().a), folder / "b", folder / "back");
  const CheckpointReader a(folder / "a" / "step-00000002"), b(folder / "b" / "step-00000002"),
      back(folder / "back" / "step-00000002");
  EXPECT_EQ(differing_tensors(a, b), std::vector<std::string>{});
  EXPECT_EQ(differing_tensors(a, back), std::vector<std::string>{});
  EXPECT_EQ(b.manifest().mesh, GetParam().b.degrees);
  EXPECT_EQ(b.find_faults(), std::vector<std::string>{});
  // Two states for each parameter beside it.
  EXPECT_EQ(a.manifest().tensors.size(), 3 * model_parameters(config_of(GetParam().a).model).size());
}

TEST_P(CheckpointGrid, TrainingGoesOnInTheOtherLayout) {
  const TemporaryFolder folder;
  const LearnedRun whole = learn(saving_config(GetParam().a, folder / "whole", 4, 0));
  run_steps(saving_config(GetParam().a, folder / "a", 2, 2));
  const LearnedRun rest = learn(saving_config(GetParam().b, folder / "a", 4, 4));
  ASSERT_EQ(rest.losses.size(), 2u);
  EXPECT_EQ(rest.result.steps.front().step, 3);
  for (std::size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest.losses[i] / whole.losses[2 + i], 1.0, checkpoint_grid_tolerance);
  EXPECT_TRUE(rest.faults.empty()) << rest.faults.front();
  LearnedRun last = whole;
  last.losses.erase(last.losses.begin(), last.losses.begin() + 2);
  last.gradient_norms.erase(last.gradient_norms.begin(), last.gradient_norms.begin() + 2);
  const RunDifference apart = difference(rest, last);
  EXPECT_LT(apart.weights, checkpoint_grid_tolerance) << apart.worst_parameter;
}

INSTANTIATE_TEST_SUITE_P(Pairs, CheckpointGrid, ::testing::ValuesIn(pairs()),
                         [](const auto& instance) { return instance.param.a.name + "_and_" + instance.param.b.name; });

}  // namespace
}  // namespace weft
