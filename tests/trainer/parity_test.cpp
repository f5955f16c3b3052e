// The spine of the suite: any layout, the same run. Each layout trains a tiny model for 10 steps and is compared with
// one rank on the same global batch: losses, gradient norms, every weight.
#include <gtest/gtest.h>

#include <ostream>

#include "tests/trainer/tiny_run.h"

namespace weft {
namespace {

// Layouts add the same float32 terms in other orders, over tensor ranks, data ranks and microbatches (16 sequences).
// Tensor ranks cut sums of 20 to 28 products in parts. One reordered sum of n <= 259 terms differs by at most about
// n * 6e-8 = 1.5e-5 of its terms' magnitudes. Typically it is about sqrt(n) * 6e-8 = 1e-6. A step adds at most
// learning_rate = 1e-3 of relative change to a weight. So after 10 steps losses and weights agree well within 1e-5.
constexpr double parity_tolerance = 1e-5;

struct Layout {
  std::string name, layers;
  int pp = 1, tp = 1, shard = 1, replicate = 1, ep = 1;
  std::string schedule = "1f1b";
  int microbatch_size = 1;
  std::string residency = "stage";
  std::string reduction = "last_microbatch";
  ShardStrategy strategy = ShardStrategy::full_shard;
  int lookahead = 1;
  int cp = 1;
  int etp = 1;
  std::string wrap = "block";
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool within_stage = false;
};

Config configured(const Layout& layout) {
  Config config = tiny_config(layout.layers);
  config.parallelism = {layout.pp, layout.replicate, layout.shard, layout.cp, layout.tp, layout.ep, layout.etp};
  config.pipeline.schedule = layout.schedule;
  config.training.microbatch_size = layout.microbatch_size;
  config.shard.residency = parse_residency(layout.residency);
  config.shard.reduction = parse_reduction(layout.reduction);
  config.shard.strategy = layout.strategy;
  config.shard.lookahead = layout.lookahead;
  config.shard.wrap = parse_wrap(layout.wrap);
  config.shard.backward_prefetch = layout.backward_prefetch;
  config.shard.prefetch_within_stage = layout.within_stage;
  for (auto& [family, policy] : config.shard_by_family) policy = config.shard;
  return config;
}

[[maybe_unused]] void PrintTo(const Layout& layout, std::ostream* out) {
  *out << layout.name;
}

std::vector<Layout> parity_layouts() {
  const std::string dense = "d*4", moe = "e*4", mixed = "d e d e", hybrid = "M A E M D e";
  return {
      {"dense_pp2", dense, 2},
      {"dense_pp3", dense, 3},
      {"dense_pp4", dense, 4},
      {"dense_pp4_gpipe", dense, 4, 1, 1, 1, 1, "gpipe"},
      {"dense_tp2", dense, 1, 2},
      {"dense_tp4", dense, 1, 4},
      {"dense_shard2", dense, 1, 1, 2},
      {"dense_shard4", dense, 1, 1, 4},
      {"dense_replicate2", dense, 1, 1, 1, 2},
      {"dense_shard2_replicate2", dense, 1, 1, 2, 2},
      {"dense_pp2_tp2", dense, 2, 2},
      {"dense_pp2_tp4", dense, 2, 4},
      {"dense_pp4_tp2", dense, 4, 2},
      {"dense_pp2_shard2", dense, 2, 1, 2},
      {"dense_pp2_shard4", dense, 2, 1, 4},
      {"dense_tp2_shard2", dense, 1, 2, 2},
      {"dense_tp2_shard4", dense, 1, 2, 4},
      {"dense_tp4_shard2", dense, 1, 4, 2},
      {"dense_tp2_replicate2", dense, 1, 2, 1, 2},
      {"dense_pp2_tp2_shard2", dense, 2, 2, 2},
      {"dense_pp2_tp2_shard2_gpipe", dense, 2, 2, 2, 1, 1, "gpipe"},
      {"dense_pp2_tp2_shard2_replicate2", dense, 2, 2, 2, 2},
      {"dense_microbatch2", dense, 2, 1, 2, 1, 1, "1f1b", 2},
      {"dense_microbatch4", dense, 1, 2, 2, 1, 1, "1f1b", 4},
      {"moe_ep2", moe, 1, 1, 2, 1, 2},
      {"moe_ep4", moe, 1, 1, 4, 1, 4},
      {"moe_ep2_shard4", moe, 1, 1, 4, 1, 2},
      {"moe_ep2_tp2", moe, 1, 2, 1, 1, 2},
      {"moe_ep4_tp4", moe, 1, 4, 1, 1, 4},
      {"moe_ep4_tp2_shard2", moe, 1, 2, 2, 1, 4},
      {"moe_ep1_tp2_shard2", moe, 1, 2, 2},
      {"moe_pp2_ep2", moe, 2, 1, 2, 1, 2},
      {"moe_pp4_ep2", moe, 4, 1, 2, 1, 2},
      {"moe_ep2_replicate2", moe, 1, 1, 2, 2, 2},
      {"moe_ep4_across_replicas", moe, 1, 1, 2, 2, 4},
      {"moe_pp2_tp2_ep2_gpipe", moe, 2, 2, 2, 1, 2, "gpipe"},
      {"moe_pp2_tp2_ep4", moe, 2, 2, 2, 1, 4},
      {"moe_microbatch2", moe, 1, 2, 2, 1, 2, "1f1b", 2},
      {"hybrid_pp3", hybrid, 3},
      {"hybrid_tp4", hybrid, 1, 4},
      {"hybrid_pp2_tp2_shard2_ep2", hybrid, 2, 2, 2, 1, 2},
      {"mixed_pp2", mixed, 2},
      {"mixed_pp2_gpipe", mixed, 2, 1, 1, 1, 1, "gpipe"},
      {"mixed_pp4", mixed, 4},
      {"mixed_tp4", mixed, 1, 4},
      {"mixed_shard4", mixed, 1, 1, 4},
      {"mixed_pp2_tp2_shard2_ep2", mixed, 2, 2, 2, 1, 2},
      {"mixed_pp2_tp2_shard2_ep2_gpipe", mixed, 2, 2, 2, 1, 2, "gpipe"},
      {"mixed_pp2_tp2_shard2_ep2_reshard_after_use", mixed, 2, 2, 2, 1, 2, "1f1b", 1, "reshard_after_use"},
      {"mixed_pp2_tp2_shard2_ep2_step", mixed, 2, 2, 2, 1, 2, "1f1b", 1, "step"},
      {"mixed_pp2_shard2_lookahead3", mixed, 2, 1, 2, 1, 1, "1f1b", 1, "reshard_after_use", "last_microbatch",
       ShardStrategy::full_shard, 3},
      {"mixed_pp2_shard2_each_microbatch", mixed, 2, 1, 2, 1, 2, "1f1b", 1, "stage", "each_microbatch"},
      {"mixed_pp2_shard2_every_3", mixed, 2, 1, 2, 1, 2, "1f1b", 1, "stage", "every 3"},
      {"mixed_no_shard_each_microbatch", mixed, 2, 1, 2, 1, 2, "1f1b", 1, "stage", "each_microbatch",
       ShardStrategy::no_shard},
      {"mixed_pp3_tp2_replicate2_ep2", mixed, 3, 2, 1, 2, 2},
      {"mixed_pp2_tp4_shard2_ep4", mixed, 2, 4, 2, 1, 4},
      {"mixed_pp4_tp2_shard2_ep2", mixed, 4, 2, 2, 1, 2},
      {.name = "dense_cp2", .layers = dense, .cp = 2},
      {.name = "dense_cp4", .layers = dense, .cp = 4},
      {.name = "dense_cp2_microbatch2", .layers = dense, .microbatch_size = 2, .cp = 2},
      {.name = "dense_cp2_tp2", .layers = dense, .tp = 2, .cp = 2},
      {.name = "dense_cp2_shard2_replicate2", .layers = dense, .shard = 2, .replicate = 2, .cp = 2},
      {.name = "moe_cp2", .layers = moe, .cp = 2},
      {.name = "moe_cp2_ep2", .layers = moe, .ep = 2, .cp = 2},
      {.name = "moe_cp4_ep4_tp2", .layers = moe, .tp = 2, .ep = 4, .cp = 4},
      {.name = "moe_cp2_shard2_ep4", .layers = moe, .shard = 2, .ep = 4, .cp = 2},
      {.name = "moe_etp2", .layers = moe, .shard = 2, .etp = 2},
      {.name = "moe_ep2_etp2", .layers = moe, .shard = 4, .ep = 2, .etp = 2},
      {.name = "moe_tp4_ep2_etp2", .layers = moe, .tp = 4, .ep = 2, .etp = 2},
      {.name = "mixed_pp2_tp2_replicate2_etp2", .layers = mixed, .pp = 2, .tp = 2, .replicate = 2, .etp = 2},
      {.name = "mixed_pp2_tp2_shard2_cp2_ep2_etp2",
       .layers = mixed,
       .pp = 2,
       .tp = 2,
       .shard = 2,
       .ep = 2,
       .cp = 2,
       .etp = 2},
      {.name = "mixed_pp2_tp2_shard2_cp2_ep2", .layers = mixed, .pp = 2, .tp = 2, .shard = 2, .ep = 2, .cp = 2},
  };
}

class LayoutParity : public ::testing::TestWithParam<Layout> {};

TEST_P(LayoutParity, EqualsOneRank) {
  const LearnedRun one = learn(tiny_config(GetParam().layers));
  const LearnedRun many = learn(configured(GetParam()));
  EXPECT_TRUE(many.faults.empty()) << many.faults.front() << " and " << many.faults.size() - 1 << " more";
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.loss, parity_tolerance);
  EXPECT_LT(apart.gradient_norm, parity_tolerance);
  EXPECT_LT(apart.weights, parity_tolerance) << apart.worst_parameter;
  // The comparison means something: the run has learned.
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutParity, ::testing::ValuesIn(parity_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// What adds in the same order gives the same bits: how parameters are sharded, when they are gathered, which schedule
// runs.
class BitParity : public ::testing::TestWithParam<Layout> {};

TEST_P(BitParity, ShardingResidencyAndScheduleDoNotChangeABit) {
  Layout layout = GetParam();
  const LearnedRun base = learn(configured(layout));
  const auto expect_same = [&](const Layout& other, const char* what) {
    const RunDifference apart = difference(learn(configured(other)), base);
    EXPECT_TRUE(apart.bitwise_equal) << what << ": " << apart.weights << " in " << apart.worst_parameter;
  };
  Layout other = layout;
  other.strategy = ShardStrategy::no_shard;
  expect_same(other, "no_shard");
  other = layout;
  other.schedule = "gpipe";
  expect_same(other, "gpipe");
  for (const ShardStrategy strategy : {ShardStrategy::shard_grad_op, ShardStrategy::optimizer}) {
    other = layout;
    other.strategy = strategy;
    expect_same(other, name_of(strategy).data());
  }
  for (const char* residency :
       {"reshard_after_use", "keep_after_forward", "keep_after_backward", "while_on_stage", "window 1", "step"}) {
    other = layout;
    other.residency = residency;
    expect_same(other, residency);
  }
  if (layout.shard == 4 && layout.ep == 1) {  // where 2 neighbours are a part of every shard group
    other.residency = "2";
    expect_same(other, "island of 2");
  }
  other.lookahead = 0;
  expect_same(other, "lookahead 0");
  for (const BackwardPrefetch prefetch : {BackwardPrefetch::post, BackwardPrefetch::none}) {
    other = layout;
    other.backward_prefetch = prefetch;
    expect_same(other, name_of(prefetch).data());
  }
  other = layout;
  other.within_stage = true;
  expect_same(other, "prefetch within the stage");
  for (const char* wrap : {"parameter", "half_block", "minimum_bytes 100000"}) {
    other = layout;
    other.wrap = wrap;
    expect_same(other, wrap);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, BitParity,
                         ::testing::Values(Layout{"dense_shard4", "d*4", 1, 1, 4},
                                           Layout{"dense_pp2_shard2_replicate2", "d*4", 2, 1, 2, 2},
                                           Layout{"mixed_pp2_tp2_shard2_ep2", "d e d e", 2, 2, 2, 1, 2},
                                           Layout{"moe_shard4_ep2", "e*4", 1, 1, 4, 1, 2}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
