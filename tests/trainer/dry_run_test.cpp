// A dry run against the ledgers and counters of real ones: every bucket of every rank at its peak to the byte, and
// every call of a communicator. Where an expert group deals rows by what the router chose, what it received is the
// run's own affair; there the bound of the difference is derived from the measured counts.
#include "trainer/dry_run.h"

#include <gtest/gtest.h>

#include "tests/trainer/tiny_layout.h"
#include "trainer/step_plan.h"

namespace weft {
namespace {

DryRun dry_run_of(const Config& config, const Mesh& mesh, int rank) {
  return dry_run(config, mesh, step_program(config, mesh, mesh.coordinates(rank)), rank);
}

class DryRunOfLayouts : public testing::TestWithParam<TinyLayout> {};

std::vector<TinyLayout> planned_layouts() {
  const PrecisionConfig narrow{.compute = DType::bfloat16};
  return {
      {.name = "one_rank"},
      {.name = "moe", .layers = "d e d e"},
      {.name = "bf16", .layers = "d e d e", .precision = narrow},
      {.name = "no_shard", .degrees = {.data_shard = 2}, .strategy = ShardStrategy::no_shard},
      {.name = "optimizer", .degrees = {.data_shard = 2}, .strategy = ShardStrategy::optimizer},
      {.name = "shard_grad_op", .degrees = {.data_shard = 2}, .strategy = ShardStrategy::shard_grad_op},
      {.name = "full_shard", .degrees = {.data_shard = 4}, .residency = "each_use"},
      {.name = "hybrid", .layers = "d e d e", .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "island", .degrees = {.data_shard = 4}, .residency = "2", .precision = narrow, .lookahead = 2},
      {.name = "pp2", .layers = "d e d e", .degrees = {.pipeline = 2}},
      {.name = "pp2_bf16_reduction",
       .degrees = {.pipeline = 2, .data_shard = 2},
       .reduction = "each_microbatch",
       .precision = {.compute = DType::bfloat16, .reduction = DType::bfloat16},
       .accumulate_sharded = true},
      {.name = "interleaved", .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "interleaved", .chunks = 2},
      {.name = "zbv", .layers = "d e d e", .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2},
      {.name = "dualpipev", .degrees = {.pipeline = 2}, .schedule = "dualpipev", .residency = "step", .chunks = 2},
      {.name = "tp2", .layers = "d e d e", .degrees = {.tensor = 2}, .precision = narrow},
      {.name = "tp4", .degrees = {.tensor = 4}},
      {.name = "cp2", .layers = "d e d e", .degrees = {.context = 2}},
      {.name = "tied_apart", .degrees = {.pipeline = 2, .data_shard = 2}, .tied = true},
      {.name = "frozen", .layers = "d e d e", .degrees = {.data_shard = 2}, .frozen = {Family::experts}},
  };
}

TEST_P(DryRunOfLayouts, HasEveryBucketOfEveryRankToTheByte) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  const Mesh mesh(config.parallelism);
  const TrainResult run = run_steps(config);
  ASSERT_EQ(std::ssize(run.measured), mesh.world());
  CommunicationCounters counted;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const DryRun dry = dry_run_of(config, mesh, rank);
    EXPECT_EQ(to_text(dry.peak), to_text(run.measured[static_cast<std::size_t>(rank)])) << "rank " << rank;
    BucketBytes live;
    for (const LiveBytes& each : dry.live) live[each.bucket] += each.bytes;
    EXPECT_EQ(live, dry.peak) << "the list of what is live is the peak";
    for (const auto& [key, count] : dry.communication) {
      counted[key].count += count.count;
      counted[key].bytes += count.bytes;
    }
  }
  EXPECT_EQ(counted, run.steps.back().communication);
}

INSTANTIATE_TEST_SUITE_P(All, DryRunOfLayouts, testing::ValuesIn(planned_layouts()),
                         [](const auto& layout) { return layout.param.name; });

}  // namespace
}  // namespace weft
