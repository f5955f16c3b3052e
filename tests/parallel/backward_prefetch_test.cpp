// The places of gathers of a backward, and of gathers at a change of stage: by the order of the lists, and in simulated
// time.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// Tables of dense blocks and of blocks with experts under every schedule.
template <typename Visit>
void for_tables(const UnitPolicy& policy, Visit visit) {
  for (const Schedule& schedule : schedules()) {
    for (int ranks : {1, 3}) {
      const OrderInput input{.ranks = ranks, .chunks = schedule.least_chunks, .microbatches = 6};
      for (bool experts : {false, true}) {
        SCOPED_TRACE(described(schedule, input) + (experts ? ", experts" : ""));
        visit(schedule, compile(experts ? expert_tables(ranks, 3, policy, input.chunks, schedule.placement)
                                        : stage_tables(ranks, 6, policy, input.chunks, schedule.placement),
                                schedule, input));
      }
    }
  }
}

// A gather, the read it is for, and what stands between the two.
struct Gather {
  bool of_backward = false;
  int computations = 0;          // from the gather to the read
  bool behind_reduction = true;  // no reduction stands between it and the read
  int of_other_stages = 0;       // of these computations
};
std::vector<Gather> gathers_of(const Program& program, const std::vector<Action>& actions) {
  const Overlaps overlaps = find_overlaps(actions);
  std::map<int, Gather> open;
  std::vector<Gather> found;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (is_gather(action.op)) open[*action.unit] = {};
    if (is_reduction(action.op)) {
      for (auto& [unit, gather] : open) gather.behind_reduction = false;
    }
    if (!is_compute(action.op)) continue;
    const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*action.segment)];
    for (int unit : segment.units) {
      if (!reads_units(segment, action.op) || !open.contains(unit)) continue;
      Gather gather = open.extract(unit).mapped();
      gather.of_backward = action.op != Op::forward;
      found.push_back(gather);
    }
    for (auto& [unit, gather] : open) {
      ++gather.computations;
      // The halves of a pair take turns on two stages at once.
      const bool other = *action.stage != program.units[static_cast<std::size_t>(unit)].stage;
      gather.of_other_stages += other && !overlaps.pair_of[i] ? 1 : 0;
    }
  }
  return found;
}

TEST(BackwardPrefetch, BeginsWhereItsNameSays) {
  for (const BackwardPrefetch prefetch : all_values<BackwardPrefetch>) {
    int ahead = 0, beside_reductions = 0;
    for_tables({.backward_prefetch = prefetch, .reduce_every = 1}, [&](const Schedule&, const Program& program) {
      ASSERT_TRUE(find_violations(program).empty());
      for (const auto& actions : program.ranks) {
        for (const Gather& gather : gathers_of(program, actions)) {
          if (!gather.of_backward) continue;
          ahead += gather.computations > 0 ? 1 : 0;
          beside_reductions += gather.behind_reduction ? 0 : 1;
          if (prefetch == BackwardPrefetch::pre) continue;
          ASSERT_EQ(gather.computations, 0);
          if (prefetch == BackwardPrefetch::none) {
            ASSERT_TRUE(gather.behind_reduction);
          }
        }
      }
    });
    EXPECT_EQ(ahead > 100, prefetch == BackwardPrefetch::pre);
    // post: before the reductions of the computation that it stands behind.
    EXPECT_EQ(beside_reductions > 100, prefetch != BackwardPrefetch::none) << name_of(prefetch);
  }
}

// Gathers of forwards do not move, and units are gathered no more often.
TEST(BackwardPrefetch, LeavesForwardsAlone) {
  const auto forward_gathers = [](BackwardPrefetch prefetch) {
    std::vector<int> ahead;
    for_tables({.residency = Residency::keep_after_backward, .backward_prefetch = prefetch},
               [&](const Schedule& schedule, const Program& program) {
                 if (schedule.name != "1f1b") return;
                 for (const auto& actions : program.ranks) {
                   for (const Gather& gather : gathers_of(program, actions)) {
                     if (!gather.of_backward) ahead.push_back(gather.computations);
                   }
                 }
               });
    return ahead;
  };
  const auto pre = forward_gathers(BackwardPrefetch::pre);
  EXPECT_GT(pre.size(), 10u);
  EXPECT_EQ(forward_gathers(BackwardPrefetch::none), pre);
}

TEST(BackwardPrefetch, CostsWhatItDoesNotHide) {
  const auto seconds = [](BackwardPrefetch prefetch) {
    const Program program = compiled(stage_tables(1, 8, {.backward_prefetch = prefetch, .reduce_every = 1}), "1f1b", 4);
    ProgramCosts costs = even_costs(program);
    for (UnitCost& unit : costs.units) unit.gather = 0.5 * costs.segments.front().forward;
    return simulate(program, costs).seconds;
  };
  EXPECT_LT(seconds(BackwardPrefetch::pre), seconds(BackwardPrefetch::post));
  EXPECT_LE(seconds(BackwardPrefetch::post), seconds(BackwardPrefetch::none));
}

TEST(PrefetchWithinStage, BeginsAtTheStageThatReads) {
  int across = 0;
  for (bool within : {false, true}) {
    for_tables({.lookahead = 2, .within_stage = within}, [&](const Schedule&, const Program& program) {
      ASSERT_TRUE(find_violations(program).empty());
      for (const auto& actions : program.ranks) {
        for (const Gather& gather : gathers_of(program, actions)) {
          if (!within) across += gather.of_other_stages > 0 ? 1 : 0;
          if (within) {
            ASSERT_EQ(gather.of_other_stages, 0);
          }
        }
      }
    });
  }
  EXPECT_GT(across, 100);
}

}  // namespace
}  // namespace weft
