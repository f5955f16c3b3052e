// The axis that moves each bucket of a rank's memory, and by how much: one degree or size of a plan doubled at a time.
// The shapes are such that every split is even but for the rows that shards are padded to.
#include <gtest/gtest.h>

#include "tests/trainer/tiny_layout.h"
#include "trainer/planning/run_plan.h"

namespace weft {
namespace {

Config even_config(const std::string& layers) {
  Config config = config_of({.layers = layers});
  ModelConfig& model = config.model;
  model.vocab_size = 512;
  model.hidden_size = 64;
  model.intermediate_size = 256;
  model.head_dim = 16;
  model.qk_norm = false;
  model.moe.moe_intermediate_size = 64;
  config.parallelism = {.data_shard = 2};
  config.training.sequence_length = 32;
  config.training.global_batch_size = 4;
  config.precision.compute = DType::bfloat16;
  for (auto& [family, precision] : config.precision_by_family) precision = config.precision;
  return config;
}

// Of the first rank, planned for a node of its own size.
RankPlan plan_of(const Config& config) {
  Hardware hardware = find_hardware("h100");
  hardware.ranks_per_node.value = 64;
  return plan_run(config, hardware).ranks.front();
}

constexpr Bucket state[] = {Bucket::sharded_parameters, Bucket::sharded_gradients, Bucket::optimizer_state};

// One row of 64 float32 a unit and shard, and of two moments.
constexpr std::int64_t padding = 2 * 64 * 4 * 16;

// `factor` is of the bucket when the axis is doubled.
void expect_scaled(const RankPlan& before, const RankPlan& after, Bucket bucket, double factor, std::int64_t slack) {
  EXPECT_NEAR(static_cast<double>(after.peak[bucket]), factor * static_cast<double>(before.peak[bucket]),
              static_cast<double>(slack))
      << name_of(bucket);
}

TEST(PlanAxes, MoreShardRanksShareTheState) {
  Config config = even_config("d*4");
  const RankPlan before = plan_of(config);
  config.parallelism.data_shard *= 2;
  config.training.global_batch_size *= 2;  // as many sequences for each rank
  const RankPlan after = plan_of(config);
  for (const Bucket bucket : state) expect_scaled(before, after, bucket, 0.5, padding);
  expect_scaled(before, after, Bucket::activations, 1.0, 0);
  expect_scaled(before, after, Bucket::unsharded_parameters, 1.0, padding);
}

TEST(PlanAxes, ReplicasMoveNothing) {
  Config config = even_config("d e d e");
  const RankPlan before = plan_of(config);
  config.parallelism.data_replicate *= 2;
  config.training.global_batch_size *= 2;
  const RankPlan after = plan_of(config);
  for (const Bucket bucket : state) expect_scaled(before, after, bucket, 1.0, 0);
  expect_scaled(before, after, Bucket::replicated_parameters, 1.0, 0);
  expect_scaled(before, after, Bucket::activations, 1.0, 0);
  expect_scaled(before, after, Bucket::unsharded_parameters, 1.0, 0);
}

TEST(PlanAxes, TensorRanksShareMatricesAndTheirViews) {
  Config config = even_config("d*4");
  const RankPlan before = plan_of(config);
  config.parallelism.tensor = 2;
  const RankPlan after = plan_of(config);
  // Norms are whole on every tensor rank: 9 of 64 elements, of which a rank would have half of its shard less.
  constexpr std::int64_t norms = 9 * 64 * 2 * 4;
  for (const Bucket bucket : state) expect_scaled(before, after, bucket, 0.5, norms + padding);
  expect_scaled(before, after, Bucket::unsharded_parameters, 0.5, norms + padding);
  // Partly: what is between the products of a block is split, what is gathered for them is not.
  EXPECT_LT(after.peak[Bucket::activations], before.peak[Bucket::activations]);
  EXPECT_GE(2 * after.peak[Bucket::activations], before.peak[Bucket::activations]);
}

TEST(PlanAxes, PipelineRanksShareBlocksAndKeepMoreMicrobatches) {
  Config config = even_config("d*4");
  config.training.global_batch_size = 8;  // 4 microbatches
  config.parallelism.pipeline = 2;
  config.pipeline.layout = std::vector<std::int64_t>{2, 2};
  const auto stage = [](const Config& each, std::size_t index) {
    Hardware hardware = find_hardware("h100");
    hardware.ranks_per_node.value = 64;
    return plan_run(each, hardware).ranks.at(index);
  };
  const RankPlan first = stage(config, 0), last = stage(config, 1);
  config.parallelism.pipeline = 1;
  config.pipeline.layout = std::vector<std::int64_t>{4};
  const RankPlan whole = stage(config, 0);
  // Embedding and blocks on the first, blocks, final norm and head on the last: together they hold the model.
  for (const Bucket bucket : state) {
    EXPECT_NEAR(static_cast<double>(first.peak[bucket] + last.peak[bucket]), static_cast<double>(whole.peak[bucket]),
                static_cast<double>(padding));
  }
  // 1F1B has two microbatches in flight on the first of two stages, so half the blocks keep as much as all did. It has
  // one on the last, half as much. Beside them stand what passes between segments and, on the last, what the head
  // keeps.
  const double kept = static_cast<double>(whole.peak[Bucket::activations]);
  EXPECT_GT(static_cast<double>(first.peak[Bucket::activations]), 0.75 * kept);
  EXPECT_LT(static_cast<double>(last.peak[Bucket::activations]), 0.75 * kept);
}

TEST(PlanAxes, ExpertRanksShareExpertsAndNothingElse) {
  Config config = even_config("d e d e");
  config.parallelism = {.data_shard = 4};
  const RankPlan before = plan_of(config);
  config.parallelism.expert = 2;
  const RankPlan after = plan_of(config);
  // Each expert rank has half the experts, sharded over half as many ranks: as much at rest, half when gathered.
  for (const Bucket bucket : state) expect_scaled(before, after, bucket, 1.0, 4 * padding);
  expect_scaled(before, after, Bucket::replicated_parameters, 1.0, 0);
  EXPECT_LT(after.peak[Bucket::unsharded_parameters], before.peak[Bucket::unsharded_parameters]);
}

TEST(PlanAxes, TokensMoveActivationsAlone) {
  const Config config = even_config("d e d e");
  const RankPlan before = plan_of(config);
  Config longer = config, wider = config;
  longer.training.sequence_length *= 2;
  wider.training.microbatch_size *= 2;
  wider.training.global_batch_size *= 2;  // as many microbatches
  for (const Config& doubled : {longer, wider}) {
    const RankPlan after = plan_of(doubled);
    for (const Bucket bucket : state) expect_scaled(before, after, bucket, 1.0, 0);
    expect_scaled(before, after, Bucket::replicated_parameters, 1.0, 0);
    expect_scaled(before, after, Bucket::unsharded_parameters, 1.0, 0);
    expect_scaled(before, after, Bucket::activations, 2.0, 0);
  }
}

}  // namespace
}  // namespace weft
