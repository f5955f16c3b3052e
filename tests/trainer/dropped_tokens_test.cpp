// Experts with a capacity, in whole runs. The drops are a matter of the model and its text, not of the layout, and the
// plan's bound of memory holds.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/trainer/kept_run.h"
#include "tests/trainer/routed_layouts.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

Config dropping(const TinyLayout& layout, DropPolicy policy, bool pads, std::uint64_t seed) {
  Config config = config_of(layout);
  MoeConfig& moe = config.model.moe;
  moe.capacity_factor = 0.75;
  moe.pad_to_capacity = pads;
  moe.drop_policy = policy;
  config.run.steps = 3;
  config.run.seed = seed;
  return config;
}

class DroppedTokens : public ::testing::TestWithParam<TinyLayout> {};

// As in layout parity: terms in another order. The last token that an expert takes and the first that it drops may have
// nearly equal weights. Only roundings tell them apart, those of the processor and of the layout. Then one token of
// thousands changes places, and another text shows the parity.
TEST_P(DroppedTokens, AreTheSameInEveryLayout) {
  for (const auto& [policy, pads] : {std::pair(DropPolicy::probability, false), std::pair(DropPolicy::position, false),
                                     std::pair(DropPolicy::probability, true)}) {
    SCOPED_TRACE(fmt::format("{}{}", name_of(policy), pads ? ", padded" : ""));
    Config config;
    LearnedRun many, one;
    RunDifference apart;
    const auto equal = [&] { return apart.loss < 1e-5 && apart.weights < 1e-5; };
    for (std::uint64_t seed = 1; seed == 1 || (!equal() && seed <= 4); ++seed) {
      config = dropping(GetParam(), policy, pads, seed);
      many = learn(config);
      one = learn(dropping({.layers = GetParam().layers}, policy, false, seed));
      EXPECT_TRUE(many.faults.empty()) << many.faults.front();
      apart = difference(many, one);
      EXPECT_LT(apart.loss, 1e-3) << "more than a token";
      if (policy == DropPolicy::position) break;  // the order of tokens has no near ties
    }
    EXPECT_TRUE(equal()) << apart.loss << ", " << apart.weights << " in " << apart.worst_parameter;
    for (std::size_t s = 0; s < one.result.steps.size(); ++s) {
      for (std::size_t b = 0; b < one.result.steps[s].moe.size(); ++b) {
        const MoeMetrics &found = many.result.steps[s].moe[b], &expected = one.result.steps[s].moe[b];
        EXPECT_EQ(found.dropped, expected.dropped);
        EXPECT_EQ(found.max_over_mean, expected.max_over_mean);
        EXPECT_GT(expected.dropped, 0.2);  // a quarter at least, less what rounding up leaves
        EXPECT_LT(expected.dropped, 0.6);
      }
    }
    const ResolvedRun resolved(config);
    for (int rank = 0; rank < resolved.mesh().world(); ++rank) {
      const Program program = step_program(resolved, resolved.mesh().coordinates(rank));
      const DryRun worst = dry_run(resolved.config(), resolved.mesh(), program, rank, Routing::worst);
      const std::int64_t measured = many.result.measured[static_cast<std::size_t>(rank)].total();
      EXPECT_LE(measured, worst.peak.total()) << "rank " << rank;
      // With padding no row of an expert depends on the routing, and of nodes the number of copies does.
      if (pads && config.parallelism.expert_dispatch != ExpertDispatch::hierarchical) {
        EXPECT_EQ(measured, worst.peak.total()) << "rank " << rank;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DroppedTokens, ::testing::ValuesIn(routed_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// A capacity lowers the bound of memory: with all tokens at one expert, a rank would hold the rows of all.
TEST(DroppedTokensMemory, IsBoundedByTheCapacity) {
  const auto worst = [](double factor) {
    Config config = config_of({.layers = "e*2", .degrees = {.data_shard = 4, .expert = 4}});
    config.model.moe.num_experts = 16;
    config.model.moe.capacity_factor = factor;
    const ResolvedRun run(config);
    const Program program = step_program(run, run.mesh().coordinates(0));
    return dry_run(run.config(), run.mesh(), program, 0, Routing::worst).peak[Bucket::moe_routing];
  };
  EXPECT_LT(worst(1.0), worst(2.0));
  EXPECT_LT(worst(2.0), worst(0.0));
}

// A rank's memory of routed experts that take C = ceil(f B T K / N) rows each. It keeps rows in and rows out of the
// hidden width, and between them gate, up and their product. Beside them are at least the scores of the router. Of 4096
// tokens that choose 6 of 64 experts, C is 480 with f = 1.25. Four ranks send to the 16 experts of each.
TEST(ExpertScratch, IsThatOfFullExperts) {
  const auto kept = [](double factor, std::int64_t capacity) {
    Config config = config_of({.layers = "d e", .degrees = {.data_shard = 4, .expert = 4}});
    config.training.sequence_length = 4096;
    config.training.global_batch_size = 4;
    config.model.hidden_size = 40;
    MoeConfig& moe = config.model.moe;
    moe.num_experts = 64;
    moe.num_experts_per_tok = 6;
    moe.capacity_factor = factor;
    moe.pad_to_capacity = true;
    EXPECT_EQ(moe.capacity(4096), capacity);
    const Program program = step_program(ResolvedRun(config), {});
    const auto experts = std::ranges::find(program.segments, "blocks.1.experts", &ProgramSegment::name);
    const std::int64_t rows = 4 * 16 * capacity;
    return experts->activation_bytes - rows * (2 * config.model.hidden_size + 3 * moe.moe_intermediate_size) * 4;
  };
  const std::int64_t beside = kept(1.25, 480);
  EXPECT_GE(beside, 4096 * 64 * 4);
  EXPECT_EQ(kept(1.0, 384), beside);
  EXPECT_EQ(kept(1.5, 576), beside);
}

// Of four experts a token chooses two. A tensor rank has half of a sequence, which may hold all that an expert takes.
TEST(PaddedExperts, ComputeTheirCapacityInPlansToo) {
  const auto rows = [](double factor, int tensor, bool pads) {
    Config config = config_of({.layers = "d e", .degrees = {.tensor = tensor}});
    config.hardware.expert_load = 1.5;
    config.model.moe.capacity_factor = factor;
    config.model.moe.pad_to_capacity = pads;
    return config.expert_rows_per_choice();
  };
  // Without padding, what arrives: the load, as far as there is room.
  EXPECT_EQ(rows(1.0, 1, false), 1.0);
  EXPECT_EQ(rows(0.5, 1, false), 0.5);
  EXPECT_EQ(rows(0.5, 2, false), 0.5);
  EXPECT_EQ(rows(2.0, 1, false), 1.5);
  EXPECT_EQ(rows(0.0, 1, false), 1.5);
  EXPECT_EQ(rows(1.0, 1, true), 1.0);
  EXPECT_EQ(rows(2.0, 1, true), 2.0);
  EXPECT_EQ(rows(1.0, 2, true), 2.0);
}

TEST(DroppedTokensMemory, NothingIsDroppedWhereThereIsRoom) {
  Config config = dropping({.layers = "d e"}, DropPolicy::position, false, 1);
  config.model.moe.capacity_factor = 2.0;  // of four experts, two of which a token chooses: all tokens
  const KeptRun run = run_kept(config);
  for (const StepMetrics& step : run.steps) EXPECT_EQ(step.moe.front().dropped, 0.0);
}

}  // namespace
}  // namespace weft
