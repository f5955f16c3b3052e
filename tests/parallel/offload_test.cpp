// Kept bytes that wait in host memory: the place of the copies in a list, the bytes they free, and compute's waits for
// them. The checker finds lists that get it wrong.
#include <gtest/gtest.h>

#include "parallel/pipeline/accounts/accounts.h"
#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/pipeline/text/text.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_interpreter.h"
#include "tests/parallel/random_program.h"
#include "tests/parallel/stream_interpreter.h"

namespace weft {
namespace {

// Segments that keep 10 bytes, of which the foremost `away` may leave. Units that always stay, so that lists are short.
ProgramTables keeping_tables(int segments, int away) {
  ProgramTables tables = stage_tables(1, segments, {.residency = Residency::step});
  for (int s = 0; s < segments; ++s) {
    tables.segments[static_cast<std::size_t>(s)].activation_bytes = 10;
    tables.segments[static_cast<std::size_t>(s)].offload_bytes = s < away ? 8 : 0;
  }
  return tables;
}

Program without_copies(Program program) {
  for (auto& list : program.ranks) {
    std::erase_if(list, [](const Action& action) { return takes_kept(action.op); });
  }
  return program;
}

// Computations and copies alone.
std::string copy_cells(Program program) {
  std::erase_if(program.ranks[0], [](const Action& a) { return !is_compute(a.op) && !takes_kept(a.op); });
  return cells(program, 0);
}

TEST(Offload, RunsOneComputationBesideEachCopy) {
  EXPECT_EQ(copy_cells(compiled(keeping_tables(4, 2), "gpipe", 1)),
            "0F0(blocks.0) 0OFFLOAD0(blocks.0) 0F0(blocks.1) 0OFFLOAD0(blocks.1) 0WAIT_OFFLOAD0(blocks.0) "
            "0F0(blocks.2) 0WAIT_OFFLOAD0(blocks.1) 0F0(blocks.3) 0B0(blocks.3) 0RELOAD0(blocks.1) 0B0(blocks.2) "
            "0RELOAD0(blocks.0) 0B0(blocks.1) 0B0(blocks.0)");
  // The bytes of the third and last segment are read too early to leave.
  const std::string all = copy_cells(compiled(keeping_tables(4, 4), "gpipe", 1));
  EXPECT_EQ(all.find("OFFLOAD0(blocks.3)"), std::string::npos);
  EXPECT_EQ(all.find("OFFLOAD0(blocks.2)"), std::string::npos);
  EXPECT_NE(all.find("0RELOAD0(blocks.1)"), std::string::npos);
}

TEST(Offload, BringsTheInputOfARegionBackForItsRecompute) {
  ProgramTables tables = keeping_tables(4, 0);
  for (std::size_t s = 0; s < 2; ++s) tables.segments[s].region = 0;
  tables.segments[0].checkpoint_bytes = tables.segments[0].offload_bytes = 3;
  EXPECT_EQ(copy_cells(compiled(tables, "gpipe", 1)),
            "0F0(blocks.0) 0OFFLOAD0(blocks.0) 0F0(blocks.1) 0WAIT_OFFLOAD0(blocks.0) 0F0(blocks.2) 0F0(blocks.3) "
            "0B0(blocks.3) 0RELOAD0(blocks.0) 0B0(blocks.2) 0R0(blocks.0) 0R0(blocks.1) 0B0(blocks.1) 0B0(blocks.0)");
}

// Sends go first: another rank waits for them. A RELOAD stands before the receive that its computation waits for.
TEST(Offload, DelaysNoMessage) {
  ProgramTables tables = stage_tables(2, 3, {.residency = Residency::step});
  for (ProgramSegment& segment : tables.segments) segment.activation_bytes = segment.offload_bytes = 4;
  for (const Schedule& schedule : schedules()) {
    if (schedule.placement != Placement::looped || !can_order(schedule.name, {.ranks = 2, .microbatches = 4})) continue;
    const Program program = compiled(tables, schedule.name, 4);
    for (const auto& list : program.ranks) {
      for (std::size_t i = 1; i < list.size(); ++i) {
        EXPECT_FALSE(takes_kept(list[i - 1].op) && is_send(list[i].op)) << schedule.name;
        EXPECT_FALSE(is_receive(list[i - 1].op) && list[i].op == Op::reload) << schedule.name;
      }
    }
  }
}

// Lists with random tables over all schedules: sound, the same without the copies, and each byte away for a while.
TEST(Offload, LeavesAnyListAsItIs) {
  int copies = 0;
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const Program program = random_program(dice);
    EXPECT_TRUE(find_violations(program).empty()) << seed;
    EXPECT_EQ(fault_when_run(program), "") << seed;
    EXPECT_EQ(standstill_on_streams(program, seed, {}), "") << seed;
    Program kept = without_copies(program);
    const Program bare = kept;
    for (ProgramSegment& segment : kept.segments) segment.offload_bytes = 0;
    EXPECT_TRUE(find_violations(kept).empty()) << seed;
    EXPECT_EQ(copy_cells(add_offload(bare)), copy_cells(program)) << seed;
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
      const auto& list = program.ranks[static_cast<std::size_t>(rank)];
      EXPECT_LE(live_integral(program, rank).peak[Bucket::activations],
                live_integral(kept, rank).peak[Bucket::activations])
          << seed;
      EXPECT_EQ(live_bytes(program, rank).back().after, live_bytes(kept, rank).back().after) << seed;
      std::int64_t freed = 0;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].op != Op::wait_offload) continue;
        ++copies;
        int beside = 0;
        std::size_t j = i + 1;
        for (;
             list[j].op != Op::reload || list[j].segment != list[i].segment || list[j].microbatch != list[i].microbatch;
             ++j) {
          beside += is_compute(list[j].op) ? 1 : 0;
        }
        EXPECT_GT(beside, 0) << seed;
        freed += beside * list[j].bytes;
      }
      EXPECT_EQ(live_integral(kept, rank).byte_steps[Bucket::activations] -
                    live_integral(program, rank).byte_steps[Bucket::activations],
                freed)
          << seed;
    }
  }
  EXPECT_GT(copies, 1000);
}

// Without one of its actions, with one twice, or with two exchanged, a list is refused or does the same.
TEST(Offload, IsCheckedAsItIsExecuted) {
  const Program program = compiled(keeping_tables(4, 2), "1f1b", 2);
  const auto& list = program.ranks[0];
  int refused = 0;
  const auto judge = [&](const Program& changed, std::size_t at) {
    const bool sound = find_violations(changed).empty();
    if (sound) {
      EXPECT_EQ(fault_when_run(changed), "") << at;
    }
    refused += sound ? 0 : 1;
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!takes_kept(list[i].op)) continue;
    Program lacks = program, twice = program;
    lacks.ranks[0].erase(lacks.ranks[0].begin() + static_cast<std::ptrdiff_t>(i));
    twice.ranks[0].insert(twice.ranks[0].begin() + static_cast<std::ptrdiff_t>(i), list[i]);
    judge(lacks, i);
    judge(twice, i);
    for (std::size_t j = 0; j < list.size(); ++j) {
      Program exchanged = program;
      std::swap(exchanged.ranks[0][i], exchanged.ranks[0][j]);
      judge(exchanged, i);
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(Offload, IsNamedWhereItIsWrong) {
  const Program program = compiled(keeping_tables(4, 1), "gpipe", 1);
  const auto found = [&](Op op, bool drop) {
    Program wrong = program;
    auto& list = wrong.ranks[0];
    const auto at = std::ranges::find(list, op, &Action::op);
    drop ? list.erase(at) : list.insert(at, *at);
    const auto findings = find_violations(wrong);
    return findings.empty() ? std::string() : findings.front().message;
  };
  EXPECT_EQ(found(Op::reload, true), "B of microbatch 0 reads bytes of blocks.0 that are not in device memory");
  EXPECT_EQ(found(Op::offload, false),
            "OFFLOAD of bytes of microbatch 0 in blocks.0: they are on their way to the host");
  EXPECT_EQ(found(Op::wait_offload, true),
            "RELOAD of bytes of microbatch 0 in blocks.0: they are on their way to the host");
  EXPECT_EQ(found(Op::reload, false), "RELOAD of bytes of microbatch 0 in blocks.0: they are in device memory");
  Program other = program;
  other.segments[0].offload_bytes = 0;
  EXPECT_EQ(find_violations(other).front().message,
            "OFFLOAD of bytes of microbatch 0 in blocks.0: the segment keeps all in device memory");
}

// Each computation takes 1 s, each copy 3: blocks.0 leaves from 1 to 4 and blocks.1 from 4 to 7. Compute waits for the
// first before blocks.2 (from 2 to 4) and for the second before blocks.3 (from 5 to 7). blocks.1 comes back from 9,
// when B of blocks.3 is over, to 12, and B of blocks.2 runs beside it until 10. blocks.0 follows at 12, since its lane
// is busy, until 15.
TEST(Offload, TakesTheTimeOfItsCopies) {
  const Program program = compiled(keeping_tables(4, 2), "gpipe", 1);
  ProgramCosts costs = even_costs(program, {4.0, 2.0, 2.0});
  for (ComputeCost& cost : costs.segments) cost.host_copy = 3.0;
  const Simulation simulation = simulate(program, costs);
  std::map<std::string, std::pair<double, double>> times;
  for (std::size_t i = 0; i < program.ranks[0].size(); ++i) {
    const SimulatedAction& action = simulation.ranks[0][i];
    times[format_action(program, program.ranks[0][i])] = {action.start, action.end};
  }
  using Times = std::pair<double, double>;
  EXPECT_EQ(times["0OFFLOAD0(blocks.0)"], Times(1, 4));
  EXPECT_EQ(times["0F0(blocks.1)"], Times(1, 2));
  EXPECT_EQ(times["0OFFLOAD0(blocks.1)"], Times(4, 7));
  EXPECT_EQ(times["0F0(blocks.2)"], Times(4, 5));
  EXPECT_EQ(times["0F0(blocks.3)"], Times(7, 8));
  EXPECT_EQ(times["0RELOAD0(blocks.1)"], Times(9, 12));
  EXPECT_EQ(times["0B0(blocks.2)"], Times(9, 10));
  EXPECT_EQ(times["0B0(blocks.1)"], Times(12, 13));
  EXPECT_EQ(times["0RELOAD0(blocks.0)"], Times(12, 15));
  EXPECT_EQ(times["0B0(blocks.0)"], Times(15, 16));
  const RankTimes sums = rank_times(program, simulation, 0);
  EXPECT_EQ(sums.compute, 8.0);
  EXPECT_EQ(sums.host, 8.0);
  EXPECT_EQ(sums.bubble, 0.0);
  // A rank that is one thread copies when it comes to it.
  const Simulation serial = simulate(program, costs, LaneChannels::serial());
  EXPECT_EQ(serial.seconds, 8.0 + 4 * 3.0);
  EXPECT_EQ(rank_times(program, serial, 0, LaneChannels::serial()).host, 12.0);
}

// Blocks of one size serve one after the other.
TEST(Offload, CountsTheBlocksOfTheHost) {
  EXPECT_EQ(host_activation_bytes(compiled(keeping_tables(4, 0), "gpipe", 3), 0), 0);
  EXPECT_EQ(host_activation_bytes(compiled(keeping_tables(4, 2), "gpipe", 1), 0), 16);
  EXPECT_EQ(host_activation_bytes(compiled(keeping_tables(4, 2), "1f1b", 3), 0), 16);
  EXPECT_EQ(host_activation_bytes(compiled(keeping_tables(4, 2), "gpipe", 3), 0), 48);
}

}  // namespace
}  // namespace weft
