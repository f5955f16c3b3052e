// Null slots in whole runs. A choice of one is a matter of the model and its text, not of the layout. Plans count the
// rows of experts alone.
#include <gtest/gtest.h>

#include <functional>
#include <utility>

#include "tests/trainer/kept_run.h"
#include "tests/trainer/routed_layouts.h"
#include "trainer/costs/step_flops.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// Four experts and four null slots, of which a token chooses four.
Config with_nulls(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.model.moe.real_fraction = 0.5;
  config.run.steps = 3;
  config.run.seed = 1;  // as in dropped_tokens_test.cpp: without tokens of equal weights
  return config;
}

class NullSlots : public ::testing::TestWithParam<TinyLayout> {};

// As in layout parity: terms in another order.
TEST_P(NullSlots, AreTheSameInEveryLayout) {
  using Change = std::function<void(MoeConfig&)>;
  const std::pair<const char*, Change> changes[] = {
      {"of a softmax", [](MoeConfig&) {}},
      {"with a bias", [](MoeConfig& moe) { moe.scoring = Scoring::sigmoid, moe.selection_bias = true; }},
      {"balanced over the step", [](MoeConfig& moe) { moe.aux_loss = AuxiliaryLoss::global; }},
      {"with a capacity", [](MoeConfig& moe) { moe.capacity_factor = 1.0; }}};
  for (const auto& [name, change] : changes) {
    SCOPED_TRACE(name);
    Config config = with_nulls(GetParam()), alone = with_nulls({.layers = GetParam().layers});
    change(config.model.moe), change(alone.model.moe);
    const LearnedRun many = learn(config), one = learn(alone);
    EXPECT_TRUE(many.faults.empty()) << many.faults.front();
    // The choices of the step so far depend on the order of microbatches.
    const bool in_order = config.model.moe.aux_loss != AuxiliaryLoss::global;
    if (in_order) {
      const RunDifference apart = difference(many, one);
      EXPECT_LT(apart.loss, 1e-5);
      EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;
    }
    for (std::size_t s = 0; s < (in_order ? one.result.steps.size() : 1); ++s) {
      for (std::size_t b = 0; b < one.result.steps[s].moe.size(); ++b) {
        const MoeMetrics &found = many.result.steps[s].moe[b], &expected = one.result.steps[s].moe[b];
        ASSERT_TRUE(expected.null_share);
        EXPECT_EQ(found.null_share, expected.null_share);
        EXPECT_EQ(found.max_over_mean, expected.max_over_mean);
        EXPECT_GT(*expected.null_share, 0.0);
        EXPECT_LT(*expected.null_share, 1.0);
      }
    }
    const ResolvedRun resolved(config);
    for (int rank = 0; rank < resolved.mesh().world(); ++rank) {
      const Program program = step_program(resolved, resolved.mesh().coordinates(rank));
      const DryRun worst = dry_run(resolved.config(), resolved.mesh(), program, rank, Routing::worst);
      EXPECT_LE(many.result.measured[static_cast<std::size_t>(rank)].total(), worst.peak.total()) << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, NullSlots, ::testing::ValuesIn(routed_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Dealt in turn, half of the choices are null slots. Rows of two choices a token go to experts and back, twice.
TEST(NullSlotsPlan, ExpectsTheRowsOfExpertsAlone) {
  Config config = with_nulls({.layers = "d e", .degrees = {.data_shard = 2, .expert = 2}});
  config.model.moe.force_balance = true;
  config.run.steps = 1;
  const KeptRun run = run_kept(config);
  EXPECT_EQ(run.steps.front().moe.front().null_share, 0.5);
  EXPECT_EQ(run.steps.front().moe.front().max_over_mean, 1.0);
  const std::int64_t tokens = config.training.global_batch_size * config.training.sequence_length;
  const std::int64_t row = config.model.hidden_size * size_of(config.precision.compute);
  EXPECT_EQ(run.steps.front().communication.at({std::string(name_of(Group::ep)), CollectiveOp::all_to_all}).bytes,
            4 * tokens * 2 * row);

  Config without = config;
  without.model.moe.real_fraction = 1.0;
  const ParameterCount found = count_parameters(config.model), before = count_parameters(without.model);
  EXPECT_EQ(found.total - before.total, config.model.hidden_size);  // the row of the null slots' logit
  EXPECT_EQ(found.active - before.active, config.model.hidden_size);
  const TokenFlops flops = token_flops(config.model, 8), flops_before = token_flops(without.model, 8);
  EXPECT_EQ(flops.routed_experts, flops_before.routed_experts);
  EXPECT_EQ(flops.router - flops_before.router, 2.0 * static_cast<double>(config.model.hidden_size));
}

}  // namespace
}  // namespace weft
