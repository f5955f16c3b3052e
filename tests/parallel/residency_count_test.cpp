// The number of gathers of a unit in a step, by residency: the numbers that make timing a choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "parallel/pipeline/accounts/accounts.h"
#include "parallel/pipeline/check/check.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// A unit in the middle of a 1F1B stage has the same gathers a step on every rank (W7). Full parameters dropped after
// the forward and after the backward make 2m, kept after the backward m + 1, kept after the forward m. Kept after both
// they are gathered once. The first and the last unit of a stage are next to themselves where a backward turns into a
// forward. With lookahead so are those beside them; four units away nothing is.
TEST(ResidencyCounts, OfOneForwardOneBackwardAreThoseOfTheTable) {
  for (int microbatches : {8, 16}) {
    const std::vector<std::pair<Residency, int>> expected = {{Residency::reshard_after_use, 2 * microbatches},
                                                             {Residency::keep_after_backward, microbatches + 1},
                                                             {Residency::keep_after_forward, microbatches},
                                                             {Residency::step, 1}};
    for (const auto& [residency, gathers] : expected) {
      for (int lookahead : {0, 1, 2}) {
        const Program program =
            compiled(stage_tables(4, 9, {.residency = residency, .lookahead = lookahead}), "1f1b", microbatches);
        EXPECT_TRUE(find_violations(program).empty());
        for (int rank = 0; rank < 4; ++rank) {
          EXPECT_EQ(count_of(program, rank, Op::unshard, rank * 9 + 4), gathers)
              << name_of(residency) << ", rank " << rank << ", lookahead " << lookahead;
          EXPECT_EQ(count_of(program, rank, Op::reshard, rank * 9 + 4), gathers);
        }
      }
    }
  }
}

// The same of an island. Every second gather, those of the backward, stays inside it where forward and backward
// alternate. Where several forwards follow each other, the later ones do too.
TEST(ResidencyCounts, OfAnIslandMoveGathersInside) {
  const Program program =
      compiled(stage_tables(4, 5, {.residency = Residency::island, .island_ranks = 2, .lookahead = 1}), "1f1b", 8);
  EXPECT_TRUE(find_violations(program).empty());
  for (int rank = 0; rank < 4; ++rank) {
    const int warm_up = 4 - rank - 1;
    const int unit = rank * 5 + 2;
    // Wide: the first forward, and every use after a backward.
    EXPECT_EQ(count_of(program, rank, Op::unshard, unit), 8) << rank;
    EXPECT_EQ(count_of(program, rank, Op::unshard_secondary, unit), 8) << rank;
    EXPECT_EQ(count_of(program, rank, Op::reshard_secondary, unit), 8);
    EXPECT_GE(warm_up, 0);
  }
}

// unshard(u), use, free(u) stand before unshard(u + 2) with lookahead 1, in forward and in backward.
TEST(ResidencyOrder, FreesAUnitBeforeTheOneAfterTheNextIsGathered) {
  constexpr int units = 8;
  const Program program =
      compiled(stage_tables(1, units, {.residency = Residency::reshard_after_use, .lookahead = 1}), "1f1b", 3);
  const auto& actions = program.ranks.front();
  // Units in the order in which they are gathered, with where each is gathered, last read and dropped.
  struct Life {
    int unit = 0;
    std::size_t gathered = 0, read = 0, dropped = 0;
  };
  std::vector<Life> lives;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (action.op == Op::unshard) lives.push_back({*action.unit, i, 0, 0});
    for (Life& life : lives) {
      if (life.dropped != 0) continue;
      if (reads_parameters(action.op) && *action.segment == life.unit) life.read = i;
      if (action.op == Op::reshard && *action.unit == life.unit) life.dropped = i;
    }
  }
  ASSERT_EQ(lives.size(), 3u * (2 * units - 1) - 2u);  // the last unit turns round, and so does the first
  for (std::size_t i = 0; i < lives.size(); ++i) {
    EXPECT_LT(lives[i].gathered, lives[i].read);
    EXPECT_LT(lives[i].read, lives[i].dropped);
    if (i + 2 < lives.size()) {
      EXPECT_LT(lives[i].dropped, lives[i + 2].gathered) << "unit " << lives[i].unit;
    }
    // And one ahead: gathered while the one before it is still in use.
    if (i + 1 < lives.size()) {
      EXPECT_LT(lives[i + 1].gathered, lives[i].dropped) << "unit " << lives[i].unit;
    }
  }
}

// The units that a rank has gathered when each of its computations begins. When nothing is gathered ahead, `gathered`
// says which of these find something gathered for them alone.
struct Held {
  std::vector<std::set<int>> units;     // by computation
  std::vector<std::set<int>> gathered;  // since the computation before
};
Held held_along(const std::vector<Action>& actions) {
  Held held;
  std::set<int> now, gathered;
  for (const Action& action : actions) {
    if (is_gather(action.op)) {
      now.insert(*action.unit);
      gathered.insert(*action.unit);
    }
    if (is_reshard(action.op)) now.erase(*action.unit);
    if (!is_compute(action.op)) continue;
    held.units.push_back(now);
    held.gathered.push_back(std::exchange(gathered, {}));
  }
  return held;
}

// Tables, schedules and policies that move gathers in every way.
template <typename Visit>
void for_gathering_programs(Visit visit) {
  for (const Schedule& schedule : schedules()) {
    for (int ranks : {1, 3}) {
      const OrderInput input{.ranks = ranks, .chunks = schedule.least_chunks, .microbatches = 6};
      for (int blocks : {1, 3}) {
        for (Residency residency :
             {Residency::reshard_after_use, Residency::keep_after_forward, Residency::keep_after_backward,
              Residency::while_on_stage, Residency::window, Residency::step, Residency::island}) {
          for (int lookahead : {0, 1, 2, 4}) {
            const UnitPolicy policy{
                .residency = residency, .window_stages = 1, .island_ranks = 2, .lookahead = lookahead};
            for (bool experts : {false, true}) {
              const auto tables_with = [&](const UnitPolicy& of_units) {
                return experts ? expert_tables(ranks, blocks, of_units, input.chunks, schedule.placement)
                               : stage_tables(ranks, 2 * blocks, of_units, input.chunks, schedule.placement);
              };
              SCOPED_TRACE(fmt::format("{}, {} {}, {}, lookahead {}", described(schedule, input), blocks,
                                       experts ? "blocks with experts" : "blocks", name_of(residency), lookahead));
              visit(
                  compile(tables_with(policy), schedule, input),
                  [&](int other) {
                    UnitPolicy changed = policy;
                    changed.lookahead = other;
                    return compile(tables_with(changed), schedule, input);
                  },
                  lookahead);
              if (::testing::Test::HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// With a lookahead of k a computation has gathered what it would have without. It also has all that is given to the
// next k computations that would find something sharded then. So the window is bounded by what those read.
TEST(ResidencyLookahead, HoldsNoMoreThanTheNextSegmentsNeed) {
  for_gathering_programs([](const Program& program, const auto& with_lookahead, int lookahead) {
    const Program plain = with_lookahead(0);
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const Held here = held_along(program.ranks[rank]), without = held_along(plain.ranks[rank]);
      ASSERT_EQ(here.units.size(), without.units.size());
      for (std::size_t c = 0; c < here.units.size(); ++c) {
        std::set<int> allowed = without.units[c];
        int segments = 0;
        for (std::size_t next = c + 1; next < without.gathered.size() && segments < lookahead; ++next) {
          segments += without.gathered[next].empty() ? 0 : 1;
          allowed.insert(without.gathered[next].begin(), without.gathered[next].end());
        }
        ASSERT_TRUE(std::ranges::includes(allowed, here.units[c])) << "rank " << rank << ", computation " << c;
      }
    }
  });
}

// And with any lookahead a gather hides behind a computation between it and the first to read what it brings. That
// holds for a segment that reads two units as for one that reads one.
TEST(ResidencyLookahead, HasEveryGatherBehindAComputation) {
  for_gathering_programs([](const Program& program, const auto&, int lookahead) {
    if (lookahead == 0) return;
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      std::map<int, int> waiting;  // units gathered and not read yet, and computations since
      bool begun = false;
      for (const Action& action : program.ranks[rank]) {
        if (is_gather(action.op) && begun) waiting[*action.unit] = 0;
        if (!is_compute(action.op)) continue;
        begun = true;
        const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*action.segment)];
        for (int unit : segment.units) {
          if (!reads_units(segment, action.op) || !waiting.contains(unit)) continue;
          ASSERT_GT(waiting[unit], 0) << "rank " << rank << ", unit " << unit << " at "
                                      << format_action(program, action);
          waiting.erase(unit);
        }
        for (auto& [unit, computations] : waiting) ++computations;
      }
    }
  });
}

// A unit that is gathered where it was dropped might as well have stayed.
TEST(ResidencyLookahead, GathersNothingWhereItWasDropped) {
  for_gathering_programs([](const Program& program, const auto&, int) {
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      std::set<int> dropped;  // since the last computation
      for (const Action& action : program.ranks[rank]) {
        if (is_compute(action.op)) dropped.clear();
        if (is_reshard(action.op)) dropped.insert(*action.unit);
        ASSERT_FALSE(is_gather(action.op) && dropped.contains(*action.unit))
            << "rank " << rank << ", unit " << *action.unit;
      }
    }
    ASSERT_TRUE(find_violations(program).empty());
  });
}

// PyTorch keeps the next K stages of a rank gathered. With 4 ranks, 16 microbatches and 4 chunks its rule gathers a
// rank's stages 61 to 99 times for a window of 1. Longer ones gather less: 20 times for 2, 13 to 15 for 3 and once
// each for 4.
TEST(ResidencyWindow, GathersAsOftenAsTheRuleItComesFrom) {
  const std::vector<std::pair<int, std::pair<int, int>>> expected = {
      {1, {61, 99}}, {2, {20, 20}}, {3, {13, 15}}, {4, {4, 4}}};
  for (const auto& [window, range] : expected) {
    const Program program = compiled(find_schedule("interleaved"), {.ranks = 4, .chunks = 4, .microbatches = 16}, 1,
                                     {.residency = Residency::window, .window_stages = window, .lookahead = 0});
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_GE(count_of(program, rank, Op::unshard), range.first) << "window " << window << ", rank " << rank;
      EXPECT_LE(count_of(program, rank, Op::unshard), range.second) << "window " << window << ", rank " << rank;
      // Never more stages at once than the window has.
      EXPECT_LE(parameter_window(program, rank).peak_bytes, window) << "rank " << rank;
    }
  }
}

}  // namespace
}  // namespace weft
