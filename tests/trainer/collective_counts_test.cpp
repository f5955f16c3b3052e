// What a step gathers and reduces, by strategy, schedule and flags: the counters of all ranks against what their
// programs say, and both against formulas.
#include <gtest/gtest.h>

#include <mutex>

#include "parallel/pipeline/traffic.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

constexpr int blocks = 4, units = blocks + 2;  // the embedding's and the head's beside the blocks'

std::vector<TinyLayout> layouts() {
  std::vector<TinyLayout> result;
  const auto add = [&](TinyLayout layout) {
    layout.name = fmt::format("n{}_{}", result.size(), name_of(layout.strategy));
    result.push_back(std::move(layout));
  };
  for (const int pipeline : {1, 2}) {
    for (const int replicate : {1, 2}) {
      const Degrees degrees{.pipeline = pipeline, .data_replicate = replicate, .data_shard = 2};
      for (const char* schedule : {"1f1b", "gpipe"}) {
        for (const char* reduction : {"last_microbatch", "each_microbatch", "every 3"}) {
          const TinyLayout base{.degrees = degrees, .schedule = schedule, .reduction = reduction};
          TinyLayout layout = base;
          add(layout);
          for (const ShardStrategy strategy : {ShardStrategy::shard_grad_op, ShardStrategy::no_shard}) {
            layout.strategy = strategy;
            add(layout);
          }
          if (std::string_view(reduction) == "last_microbatch") {
            layout.strategy = ShardStrategy::optimizer;
            add(layout);
            layout.strategy = ShardStrategy::full_shard;
            layout.accumulate_sharded = true;
            add(layout);
          }
        }
      }
      for (const char* residency : {"each_use", "keep_after_forward", "keep_after_backward", "step", "window 1"}) {
        for (const int lookahead : {0, 2}) {
          add({.degrees = degrees, .residency = residency, .lookahead = lookahead});
          // Blocks that are made again are gathered no more often.
          add({.degrees = degrees, .residency = residency, .lookahead = lookahead, .recompute = Recompute::full});
        }
      }
      add({.degrees = degrees, .residency = "each_use", .frozen = {Family::dense}});
    }
  }
  add({.degrees = {.data_shard = 4}, .residency = "2"});
  add({.degrees = {.data_shard = 4}, .residency = "2", .recompute = Recompute::full});
  add({.degrees = {.pipeline = 2, .data_shard = 4}, .residency = "2"});
  return result;
}

std::int64_t microbatches(const TinyLayout& layout) {
  return 16 / (layout.degrees.data_shard * layout.degrees.data_replicate);
}

// Of all units on one rank of each stage, without a pipeline: a microbatch reads the embedding once, a block twice and
// the head twice in a row; in gpipe's order only the last microbatch's.
std::optional<std::int64_t> gathers_by_formula(const TinyLayout& layout) {
  const std::int64_t m = microbatches(layout);
  if (layout.strategy == ShardStrategy::no_shard) return 0;
  const bool kept = layout.residency == "step" || layout.strategy != ShardStrategy::full_shard;
  if (kept) return units;
  if (layout.degrees.pipeline > 1) return std::nullopt;
  // Further ahead, what would be gathered where it is dropped stays (residency_count_test.cpp counts it).
  if (layout.lookahead > 1 && (layout.residency == "each_use" || layout.residency == "keep_after_backward")) {
    return std::nullopt;
  }
  if (layout.residency == "keep_after_forward") return 1 + blocks * m + m;
  if (layout.residency == "keep_after_backward") return m + blocks * (m + 1) + 1;
  if (layout.residency == "window 1") return units;        // the only stage is always among the next
  if (layout.residency == "2") return 1 + blocks * m + m;  // the others, behind a forward, are the island's
  return m + blocks * 2 * m + (layout.schedule == "gpipe" ? 2 * m - 1 : m);
}

struct Reductions {
  std::int64_t inside = 0, outside = 0;  // over the shard group, over the replicas
};
Reductions reductions_by_formula(const TinyLayout& layout) {
  const std::int64_t m = microbatches(layout);
  const std::int64_t trained = layout.frozen.contains(Family::dense) ? units - blocks : units;
  const std::int64_t intervals = layout.reduction == "each_microbatch" ? m
                                 : layout.reduction == "every 3"       ? (m + 2) / 3
                                                                       : 1;
  return {trained * (layout.accumulate_sharded ? m : intervals), trained * intervals};
}

class CollectiveCounts : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(CollectiveCounts, AreThoseOfTheProgramAndOfTheFormulas) {
  const TinyLayout& layout = GetParam();
  Config config = config_of(layout);
  config.run.steps = 1;
  const Mesh mesh(config.parallelism);
  std::mutex mutex;
  CommunicationCounters expected;
  RunObserver observer;
  observer.before_first_step = [&](RankRun& run) {
    const Traffic traffic = traffic_of(run.program(), mesh, run.rank());
    EXPECT_TRUE(traffic.bounds.empty());  // nothing is routed
    const std::lock_guard lock(mutex);
    for (const auto& [key, count] : traffic.exact) {
      expected[key].count += count.count;
      expected[key].bytes += count.bytes;
    }
  };
  CommunicationCounters counted = run_steps(config, observer).steps.front().communication;
  EXPECT_EQ(counted, expected);

  const std::int64_t ranks = mesh.degrees().stage_ranks();  // that do the same
  const auto count = [&](Group group, CollectiveOp op) { return counted[{std::string(name_of(group)), op}].count; };
  if (const auto gathers = gathers_by_formula(layout)) {
    EXPECT_EQ(count(Group::dp_shard, CollectiveOp::all_gather), *gathers * ranks);
  }
  const Reductions reductions = reductions_by_formula(layout);
  const bool whole = layout.strategy == ShardStrategy::no_shard;
  EXPECT_EQ(count(Group::dp_shard, whole ? CollectiveOp::all_reduce : CollectiveOp::reduce_scatter),
            reductions.inside * ranks);
  EXPECT_EQ(count(Group::dp_shard, whole ? CollectiveOp::reduce_scatter : CollectiveOp::all_reduce), 0);
  const bool replicated = layout.degrees.data_replicate > 1;
  EXPECT_EQ(count(Group::dp_replicate, CollectiveOp::all_reduce), replicated ? reductions.outside * ranks : 0);
  if (layout.residency == "2") {
    const std::int64_t stages = layout.degrees.pipeline, m = microbatches(layout);
    if (stages == 1) {
      EXPECT_EQ(count(Group::dp_island, CollectiveOp::all_gather), (m - 1 + blocks * m) * ranks);
    } else {
      EXPECT_GT(count(Group::dp_island, CollectiveOp::all_gather), 0);
    }
  }
}

TEST(CollectiveCountsTable, HasAtLeastSixtyCombinations) {
  EXPECT_GE(layouts().size(), 60u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CollectiveCounts, ::testing::ValuesIn(layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
