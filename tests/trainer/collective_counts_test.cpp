// The gathers and reductions of a step, by strategy, schedule and flags. The counters of all ranks are held against
// their programs, and both against formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tests/parallel/traffic.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"

namespace weft {
namespace {

constexpr int blocks = 4, units = blocks + 2;  // the embedding's and the head's beside the blocks'

std::vector<TinyLayout> collective_counts_layouts() {
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
      for (const char* residency :
           {"reshard_after_use", "keep_after_forward", "keep_after_backward", "step", "window 1"}) {
        for (const int lookahead : {0, 2}) {
          add({.degrees = degrees, .residency = residency, .lookahead = lookahead});
          // Blocks that are recomputed are gathered no more often.
          add({.degrees = degrees, .residency = residency, .lookahead = lookahead, .recompute = Recompute::full});
        }
      }
      add({.degrees = degrees, .residency = "reshard_after_use", .frozen = {Family::dense}});
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

// Without a pipeline a microbatch reads the embedding once, a block twice and the head twice in a row. In gpipe's order
// only the last microbatch reads the head twice in a row.
std::optional<std::int64_t> gathers_by_formula(const TinyLayout& layout) {
  const std::int64_t m = microbatches(layout);
  if (layout.degrees.pipeline > 1 || layout.lookahead > 1) return std::nullopt;
  if (layout.residency == "keep_after_forward") return 1 + blocks * m + m;
  if (layout.residency == "keep_after_backward") return m + blocks * (m + 1) + 1;
  if (layout.residency == "2") return 1 + blocks * m + m;  // the others, behind a forward, are the island's
  if (layout.residency == "window 1") return units;        // the only stage is always among the next
  return m + blocks * 2 * m + (layout.schedule == "gpipe" ? 2 * m - 1 : m);
}

// What a rank computes in a step, segment by segment: the unit it reads, or none, and whether in a backward.
struct Computed {
  int unit = 0;
  bool reads = true, backward = false;
};
std::vector<Computed> computed_by(const TinyLayout& layout, const std::vector<StageBlocks>& stages, int rank) {
  const StageBlocks& stage = stages[static_cast<std::size_t>(rank)];
  std::vector<Computed> all;
  const auto forward = [&] {
    if (stage.embedding) all.push_back({0});
    for (int block = 1; block <= stage.count; ++block) all.insert(all.end(), 2, {block});
    if (stage.head) all.push_back({blocks + 1});
  };
  // Its embedding's gradient reads no parameters. A block that is recomputed is so right in front of its backward.
  const auto backward = [&] {
    const int times = layout.recompute == Recompute::full ? 4 : 2;
    if (stage.head) all.push_back({blocks + 1, true, true});
    for (int block = stage.count; block >= 1; --block) all.insert(all.end(), times, {block, true, true});
    if (stage.embedding) all.push_back({0, false, true});
  };
  const auto m = static_cast<int>(microbatches(layout));
  const int ahead = layout.schedule == "gpipe" ? m : std::min(m, layout.degrees.pipeline - rank);
  for (int microbatch = 0; microbatch < m + ahead; ++microbatch) {
    if (microbatch < m) forward();
    if (microbatch >= ahead - 1 && microbatch - ahead + 1 < m) backward();
  }
  return all;
}

// Successive reads of a unit, in numbers of the rank's computations. The three are the first read, the begin of the
// last forward or backward of them, and the last read.
struct Turn {
  int unit = 0;
  std::size_t first = 0, begin = 0, end = 0;
  bool backward = false;
};
std::vector<Turn> turns_of(const std::vector<Computed>& all) {
  std::vector<Turn> turns;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!all[i].reads) continue;
    if (turns.empty() || turns.back().unit != all[i].unit) turns.push_back({all[i].unit, i, i, i, all[i].backward});
    Turn& turn = turns.back();
    if (turn.backward != all[i].backward) turn.begin = i;
    turn.end = i;
    turn.backward = all[i].backward;
  }
  return turns;
}

// On one rank of each stage. A unit is gathered `lookahead` gathers ahead, where the turn of that one begins; and stays
// where that is where it would be dropped.
std::int64_t gathers_by_walk(const TinyLayout& layout, const Config& config) {
  const auto stages = stage_layout(config);
  const auto ahead = static_cast<std::size_t>(layout.lookahead);
  std::int64_t gathers = 0;
  for (int rank = 0; rank < layout.degrees.pipeline; ++rank) {
    const std::vector<Turn> turns = turns_of(computed_by(layout, stages, rank));
    std::vector<std::size_t> begun;  // by gather, where the last turn begins that it serves
    std::size_t latest = 0;
    std::map<int, std::size_t> gather_of, last;  // by unit: its last gather, and its last turn
    for (std::size_t t = 0; t < turns.size(); ++t) {
      const Turn& turn = turns[t];
      const auto before = last.find(turn.unit);
      const bool first = before == last.end();
      if (!first &&
          (layout.residency == "window 1" ||
           layout.residency == (turns[before->second].backward ? "keep_after_backward" : "keep_after_forward"))) {
        begun[gather_of[turn.unit]] = turn.begin;
        before->second = t;
        continue;
      }
      std::size_t place = ahead == 0 ? turn.begin : ahead > begun.size() ? 0 : begun[begun.size() - ahead];
      if (!first) place = std::max(place, turns[before->second + 1].first);
      place = std::max(place, latest);  // no gather overtakes another
      if (first || place != turns[before->second].end + 1) {
        ++gathers;
        latest = place;
      }
      gather_of[turn.unit] = begun.size();
      begun.push_back(turn.begin);
      last[turn.unit] = t;
    }
  }
  return gathers;
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
  CommunicationCounters counted = run_kept(config, observer).steps.front().communication;
  EXPECT_EQ(counted, expected);

  const std::int64_t ranks = mesh.degrees().stage_ranks();  // that do the same
  const auto count = [&](Group group, CollectiveOp op) { return counted[{std::string(name_of(group)), op}].count; };
  const std::int64_t gathers = count(Group::dp_shard, CollectiveOp::all_gather);
  if (layout.strategy == ShardStrategy::no_shard) {
    EXPECT_EQ(gathers, 0);
  } else if (layout.residency == "step" || layout.strategy != ShardStrategy::full_shard) {
    EXPECT_EQ(gathers, units * ranks);
  } else {
    if (layout.residency != "2") {
      EXPECT_EQ(gathers, gathers_by_walk(layout, config) * ranks);
    }
    if (const auto formula = gathers_by_formula(layout)) {
      EXPECT_EQ(gathers, *formula * ranks);
    }
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
  EXPECT_GE(collective_counts_layouts().size(), 60u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CollectiveCounts, ::testing::ValuesIn(collective_counts_layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
