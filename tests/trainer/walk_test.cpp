// The figures of a walk, held against runs that count and measure, sizes worked out by hand, and a plain reading of the
// list.
#include "trainer/planning/walk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "parallel/pipeline/accounts/accounts.h"
#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/planned_stage.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

std::vector<TinyLayout> walk_layouts() {
  constexpr PrecisionConfig bfloat16_compute{DType::float32, DType::bfloat16, DType::float32};
  constexpr PrecisionConfig bfloat16{DType::float32, DType::bfloat16, DType::bfloat16};
  const Degrees shard4{.data_shard = 4}, hybrid{.data_replicate = 2, .data_shard = 2};
  return {
      {.name = "one_rank"},
      {.name = "full_shard", .degrees = shard4},
      {.name = "full_shard_bfloat16", .degrees = shard4, .precision = bfloat16},
      {.name = "full_shard_keep_after_forward", .degrees = shard4, .residency = "keep_after_forward", .lookahead = 2},
      {.name = "full_shard_sharded_accumulation", .degrees = hybrid, .accumulate_sharded = true},
      {.name = "shard_grad_op", .degrees = shard4, .strategy = ShardStrategy::shard_grad_op},
      {.name = "optimizer", .degrees = shard4, .strategy = ShardStrategy::optimizer},
      {.name = "no_shard", .degrees = shard4, .strategy = ShardStrategy::no_shard},
      {.name = "no_shard_bfloat16",
       .degrees = shard4,
       .strategy = ShardStrategy::no_shard,
       .precision = bfloat16_compute},
      {.name = "hybrid", .degrees = hybrid},
      {.name = "island2", .degrees = shard4, .residency = "2"},
      {.name = "pipeline2", .degrees = {.pipeline = 2, .data_shard = 2}, .residency = "reshard_after_use"},
      {.name = "pipeline2_zb_h1", .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zb_h1"},
      {.name = "pipeline4_zb_h1", .degrees = {.pipeline = 4}, .schedule = "zb_h1"},
      {.name = "tensor2", .degrees = {.data_shard = 2, .tensor = 2}},
      {.name = "experts",
       .layers = "d e d e",
       .degrees = {.data_shard = 4, .expert = 2},
       .residency = "reshard_after_use"},
  };
}

class WalkOf : public ::testing::TestWithParam<TinyLayout> {};

// Of what the communicators of all ranks counted. Payloads here are multiples of the group, and nothing is rounded.
std::int64_t sent_by_formula(const CommunicationCounters& counted, const Mesh& mesh) {
  std::int64_t sent = 0;
  for (const auto& [key, count] : counted) {
    std::int64_t ranks = key.group == "dp_island" ? 2 : 0;
    for (const Group group : all_groups) {
      if (name_of(group) == key.group) ranks = static_cast<std::int64_t>(mesh.group_of(group, 0).size());
    }
    if (key.op == CollectiveOp::send) {
      sent += count.bytes;
    } else if (key.op != CollectiveOp::receive) {
      sent += count.bytes * (ranks - 1) * (key.op == CollectiveOp::all_reduce ? 2 : 1) / ranks;
    }
  }
  return sent;
}

// The ledger knows nothing of lists, and the communicators nothing of tables.
TEST_P(WalkOf, ARunIsWhatTheRunCountsAndMeasures) {
  const TinyLayout& layout = GetParam();
  Config config = config_of(layout);
  config.run.steps = 1;
  const Mesh mesh(config.parallelism);
  std::mutex mutex;
  std::int64_t sent = 0;
  int gathers = 0, island_gathers = 0, reductions = 0;
  bool is_bound = false;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    const std::lock_guard lock(mutex);
    const int pipeline_rank = mesh.coordinates(run.rank()).pp;
    SCOPED_TRACE(fmt::format("rank {}", run.rank()));
    BucketBytes held;
    for (const Bucket bucket : {Bucket::sharded_parameters, Bucket::replicated_parameters, Bucket::sharded_gradients,
                                Bucket::optimizer_state}) {
      held[bucket] = run.ledger().live()[bucket];
    }
    const WalkState state{held.total(), 0};
    const WalkSummary summary = summarize(walk(run.program(), mesh, run.rank(), state), state);
    EXPECT_EQ(summary.parameters_peak, run.ledger().peak_by_bucket()[Bucket::unsharded_parameters]);
    EXPECT_EQ(summary.gradients_peak, run.ledger().peak_by_bucket()[Bucket::unsharded_gradients]);
    EXPECT_EQ(summary.parameters_peak, parameter_window(run.program(), pipeline_rank).peak_bytes);
    EXPECT_EQ(summary.total_peak - held.total(), transient_peak(run.program(), pipeline_rank).bytes);
    // A run has workspace besides, and what passes from one segment to the next; routed tokens count at their bound
    // here.
    if (!summary.is_bound) {
      EXPECT_LE(summary.total_peak, run.predicted().total());
    }
    // Tensor ranks have unequal shares of a vocabulary that they do not divide.
    if (run.rank() == mesh.rank_at(pipeline_rank, 0, 0, 0, 0)) {
      EXPECT_EQ(walk_step(config, pipeline_rank).summary, summary);
    }
    sent += summary.sent;
    gathers += summary.gathers;
    island_gathers += summary.island_gathers;
    reductions += summary.reductions;
    is_bound |= summary.is_bound;
  };
  CommunicationCounters counted = run_kept(config, observer).steps.front().communication;
  const auto count = [&](Group group, CollectiveOp op) { return counted[{std::string(name_of(group)), op}].count; };
  EXPECT_EQ(island_gathers, count(Group::dp_island, CollectiveOp::all_gather));
  EXPECT_EQ(gathers, count(Group::dp_shard, CollectiveOp::all_gather) +
                         count(Group::edp_shard, CollectiveOp::all_gather) + island_gathers);
  std::int64_t summed = count(Group::tokens, CollectiveOp::all_reduce);
  for (const Group group : {Group::dp_shard, Group::edp_shard}) {
    summed += count(group, CollectiveOp::reduce_scatter) + count(group, CollectiveOp::all_reduce);
  }
  EXPECT_EQ(reductions, summed);
  EXPECT_EQ(is_bound, layout.layers != "d*4");
  if (is_bound) {
    EXPECT_GE(sent, sent_by_formula(counted, mesh));
  } else {
    EXPECT_EQ(sent, sent_by_formula(counted, mesh));
  }
}

// A plain reading: what is gathered and not freed, and the parts that islands keep.
TEST_P(WalkOf, AListHasEveryActionOnceAndTheParametersThatTheListLeaves) {
  const Config config = config_of(GetParam());
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    const WalkedStep fine = walk_step(config, rank, true), merged = walk_step(config, rank);
    const std::vector<Action>& actions = fine.program.ranks[static_cast<std::size_t>(rank)];
    ASSERT_EQ(fine.lines.size(), actions.size());
    std::set<int> gathered, parted;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (is_gather(actions[i].op)) gathered.insert(*actions[i].unit), parted.erase(*actions[i].unit);
      if (is_reshard(actions[i].op)) gathered.erase(*actions[i].unit);
      if (actions[i].op == Op::reshard_secondary) parted.insert(*actions[i].unit);
      std::int64_t live = 0;
      for (const int unit : gathered) live += fine.program.units[static_cast<std::size_t>(unit)].unsharded_bytes;
      for (const int unit : parted) live += fine.program.units[static_cast<std::size_t>(unit)].island_bytes;
      EXPECT_EQ(fine.lines[i].live[Bucket::unsharded_parameters], live) << i;
      EXPECT_EQ(fine.lines[i].op, actions[i].op);
    }
    EXPECT_EQ(fine.lines.back().live, BucketBytes{});
    // The other grain: the same actions in fewer lines, and the same sums.
    std::size_t next = 0;
    std::int64_t sent = 0;
    for (const WalkLine& line : merged.lines) {
      EXPECT_EQ(line.first, next);
      next += line.actions;
      sent += line.sent;
      EXPECT_EQ(line.live, fine.lines[next - 1].live);
      EXPECT_EQ(line.total_peak, fine.lines[next - 1].total_peak);
      for (std::size_t i = line.first; i < next; ++i) {
        EXPECT_EQ(actions[i].op, line.op);
        EXPECT_EQ(actions[i].microbatch, line.microbatch);
      }
    }
    EXPECT_EQ(next, actions.size());
    EXPECT_EQ(sent, fine.summary.sent);
    // A later stage may be one segment, the head; the first has whole blocks.
    EXPECT_LT(merged.lines.size(), fine.lines.size() + (rank > 0 ? 1 : 0));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, WalkOf, ::testing::ValuesIn(walk_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// (W - 1) / W of every gather and reduction. Units are dropped after each use. A microbatch gathers the embedding once,
// a block twice and the head, whose backward follows its forward, once. Every unit is reduced once, and norm and loss
// are two numbers of 8 bytes, all-reduced.
TEST(Walk, SendsWhatTheShapesSay) {
  for (const int ranks : {2, 4}) {
    Config config = tiny_config("d*4");
    config.parallelism.data_shard = ranks;
    for (auto& [family, policy] : config.shard_by_family) {
      policy.residency = {Residency::reshard_after_use};
      policy.reduction = {ReductionKind::last_microbatch};
    }
    const std::int64_t microbatches = config.microbatches();
    const Mesh mesh(config.parallelism);
    std::int64_t gathered = 0, reduced = 0;
    for (const PlannedUnit& unit : plan_stage(config, mesh, {}, 0).units) {
      const std::int64_t bytes = unit.layout.unsharded_size() * 4;
      gathered += bytes * microbatches * (unit.plan.family == Family::dense ? 2 : 1);
      reduced += bytes;
    }
    const WalkSummary summary = walk_step(config, 0).summary;
    EXPECT_EQ(summary.sent_by_gathers, gathered * (ranks - 1) / ranks);
    EXPECT_EQ(summary.sent_by_reductions, reduced * (ranks - 1) / ranks);
    EXPECT_EQ(summary.sent, (gathered + reduced + 2 * 16) * (ranks - 1) / ranks);
  }
}

TEST(Walk, SendsPartsOfPayloadsRoundedUp) {
  EXPECT_EQ(sent_bytes(CollectiveOp::all_gather, 80, 4), 60);
  EXPECT_EQ(sent_bytes(CollectiveOp::reduce_scatter, 80, 5), 64);
  EXPECT_EQ(sent_bytes(CollectiveOp::all_reduce, 80, 4), 120);
  EXPECT_EQ(sent_bytes(CollectiveOp::all_reduce, 8, 3), 11);  // 10 2/3
  EXPECT_EQ(sent_bytes(CollectiveOp::all_to_all, 9, 2), 5);
  EXPECT_EQ(sent_bytes(CollectiveOp::send, 80, 4), 80);
  EXPECT_EQ(sent_bytes(CollectiveOp::receive, 80, 4), 0);
  for (const CollectiveOp op : {CollectiveOp::all_gather, CollectiveOp::all_reduce, CollectiveOp::send}) {
    EXPECT_EQ(sent_bytes(op, 80, 1), 0);
  }
  constexpr std::int64_t large = std::int64_t{1} << 60;
  EXPECT_EQ(sent_bytes(CollectiveOp::all_gather, large, 1024), large / 1024 * 1023);
}

// The live window of Llama 2 7B in bfloat16 on 16 ranks. Its 32 blocks stand beside embedding, final norm and head in a
// root unit that stays. 16 shards of whole rows of 4096 elements.
constexpr const char* seven_billion = R"([model]
layers = "d*32"
vocab_size = 32000
hidden_size = 4096
intermediate_size = 11008
num_attention_heads = 32
num_key_value_heads = 32
head_dim = 128
qk_norm = false
[parallelism]
data_shard = 16
[shard]
residency = "step"
[shard.embedding]
wrap = "root"
[shard.head]
wrap = "root"
[precision]
compute = "bfloat16"
[training]
sequence_length = 2048
global_batch_size = 16
[data]
train = ["nothing is read"]
)";

constexpr std::int64_t padded(std::int64_t rows) {
  return (rows + 15) / 16 * 16 * 4096 * 2;
}

struct WindowCase {
  std::string wrap, residency;
  int lookahead = 1;
  std::int64_t peak = 0;
  double literature_megabytes = 0;  // the same without padding; of an island a bound
  int gathers = 0, island_gathers = 0, reductions = 0;
};

TEST(Walk, HasTheLiveWindowOfASevenBillionModelInItsPeakColumn) {
  constexpr std::int64_t attention_rows = 4 * 4096 + 1, mlp_rows = 3 * 11008 + 1, root_rows = 2 * 32000 + 1;
  constexpr std::int64_t block_rows = attention_rows + mlp_rows;
  constexpr std::int64_t block = padded(block_rows), root = padded(root_rows);
  const std::vector<WindowCase> cases = {
      {"root", "\"step\"", 1, padded(32 * block_rows + root_rows), 13476.8, 1, 0, 1},
      {"block", "\"reshard_after_use\"", 0, root + block, 929.1, 65, 0, 33},
      {"block", "\"reshard_after_use\"", 1, root + 2 * block, 1333.8, 64, 0, 33},
      {"block", "\"reshard_after_use\"", 2, root + 3 * block, 1738.6, 63, 0, 33},
      {"block", "\"keep_after_forward\"", 1, root + 32 * block, 13476.8, 33, 0, 33},
      {"block", "8", 1, root + 2 * block + 31 * block / 8, 1333.8 + 1619.1, 64, 31, 33},
      {"blocks 2", "\"reshard_after_use\"", 1, root + 2 * padded(2 * block_rows), 2143.4, 32, 0, 17},
      {"blocks 4", "\"reshard_after_use\"", 1, root + 2 * padded(4 * block_rows), 3762.4, 16, 0, 9},
      {"half_block", "\"reshard_after_use\"", 1, root + padded(attention_rows) + padded(mlp_rows), 929.1, 128, 0, 65},
  };
  for (const WindowCase& one : cases) {
    SCOPED_TRACE(one.wrap + " " + one.residency);
    const Config config = read_config_text(seven_billion, "7B",
                                           {fmt::format("--shard.dense.wrap=\"{}\"", one.wrap),
                                            "--shard.dense.residency=" + one.residency,
                                            fmt::format("--shard.lookahead={}", one.lookahead)})
                              .config;
    const WalkSummary summary = walk_step(config, 0).summary;
    EXPECT_EQ(summary.parameters_peak, one.peak);
    EXPECT_EQ(summary.gathers, one.gathers);
    EXPECT_EQ(summary.island_gathers, one.island_gathers);
    EXPECT_EQ(summary.reductions, one.reductions);
    // Padding is below 4e-4 of a block and 1e-3 of half of one; the figure is rounded to 0.1 MB.
    const double megabytes = static_cast<double>(summary.parameters_peak) / 1e6;
    const double padding = one.literature_megabytes * (one.wrap == "half_block" ? 1e-3 : 4e-4);
    EXPECT_LT(megabytes, one.literature_megabytes + padding + 0.1);
    if (one.island_gathers == 0) {
      EXPECT_GT(megabytes, one.literature_megabytes - 0.1);
    }
  }
}

TEST(Walk, RefusesAPipelineRankThatIsNotThere) {
  Config config = tiny_config("d*4");
  config.parallelism.pipeline = 2;
  for (const int rank : {-1, 2}) {
    try {
      walk_step(config, rank);
      ADD_FAILURE() << rank;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
    }
  }
}

}  // namespace
}  // namespace weft
