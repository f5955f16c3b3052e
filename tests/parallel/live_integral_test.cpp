// Byte-steps of units: by hand for each residency, against a plain reading of the list, and against its curves by
// position and by time.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "tests/parallel/memory_sample.h"
#include "tests/parallel/random_program.h"
#include "tests/parallel/reduced_in_turn.h"

namespace weft {
namespace {

// Computing actions during which a unit is whole, and during which its parts lie in an island.
struct Ticks {
  std::int64_t whole = 0, parts = 0;
};

std::vector<UnitPolicy> policies() {
  return {{.residency = Residency::reshard_after_use, .lookahead = 0},
          {.residency = Residency::keep_after_forward, .lookahead = 0},
          {.residency = Residency::keep_after_backward, .lookahead = 0},
          {.residency = Residency::while_on_stage, .lookahead = 0},
          {.residency = Residency::window, .window_stages = 1, .lookahead = 0},
          {.residency = Residency::step, .lookahead = 0},
          {.residency = Residency::island, .island_ranks = 2, .lookahead = 0}};
}

// Units of 10, 100, ... bytes, of which an island keeps a half.
ProgramTables sized_units(ProgramTables tables) {
  std::int64_t bytes = 1;
  for (ProgramUnit& unit : tables.units) {
    bytes *= 10;
    unit.unsharded_bytes = bytes;
    unit.island_bytes = unit.policy.island_ranks > 0 ? bytes / 2 : 0;
  }
  return tables;
}

void expect_ticks(const ProgramTables& tables, int microbatches, const std::vector<Ticks>& expected) {
  const Program program = compiled(tables, "1f1b", microbatches);
  SCOPED_TRACE(cells(program, 0));
  EXPECT_TRUE(find_violations(program).empty());
  const LiveIntegral integral = live_integral(program, 0);
  ASSERT_EQ(integral.unit_byte_steps.size(), expected.size());
  std::int64_t sum = 0;
  for (std::size_t u = 0; u < expected.size(); ++u) {
    const ProgramUnit& unit = program.units[u];
    const std::int64_t steps = expected[u].whole * unit.unsharded_bytes + expected[u].parts * unit.island_bytes;
    EXPECT_EQ(integral.unit_byte_steps[u][Bucket::unsharded_parameters], steps) << unit.name;
    sum += steps;
  }
  EXPECT_EQ(integral.byte_steps[Bucket::unsharded_parameters], sum);
}

// Two blocks, two microbatches: F0 F1 B1 B0 F0 F1 B1 B0. Uses that follow each other share a gather: those of block 1
// in a microbatch, and those of block 0 between two.
TEST(LiveIntegral, OfDenseBlocksByHand) {
  const std::vector<std::vector<Ticks>> expected = {
      {{4}, {4}},        // 1, 4-5, 8; 2-3, 6-7
      {{8}, {4}},        // 1-4, 5-8; 2-3, 6-7
      {{4}, {6}},        // 1, 4-5, 8; 2-7
      {{8}, {6}},        // 1-8; 2-7
      {{8}, {6}},        // the same, with one stage in the window
      {{8}, {6}},        // the same
      {{4, 4}, {4, 0}},  // as the first, and parts of block 0 behind its forwards: 2-3, 6-7
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(name_of(policies()[i].residency));
    expect_ticks(sized_units(stage_tables(1, 2, policies()[i])), 2, expected[i]);
  }
}

// Two blocks with experts, one microbatch. The attention parts A and a and the expert parts E and e run as A E a e e a
// E A. An expert part reads the dense unit of its block, too.
TEST(LiveIntegral, OfBlocksWithExpertsByHand) {
  const std::vector<Ticks> dropped = {{4}, {2}, {4}, {2}};  // 1-2, 7-8; 2, 7; 3-6; 4-5
  const std::vector<Ticks> kept = {{8}, {6}, {4}, {2}};     // 1-8; 2-7; 3-6; 4-5
  const std::vector<std::vector<Ticks>> expected = {
      dropped, kept, dropped, kept, kept, kept, {{4, 4}, {2, 4}, {4}, {2}}};  // parts from 3 to 6
  for (std::size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(name_of(policies()[i].residency));
    expect_ticks(sized_units(expert_tables(1, 2, policies()[i])), 1, expected[i]);
  }
}

// The list of the dense blocks. Block 1 reduces a copy in another dtype, which waits in flight while block 0 computes.
TEST(LiveIntegral, OfGradientsAndBuffersByHand) {
  ProgramTables tables = stage_tables(1, 2);
  tables.units[0].gradient_bytes = 1000;
  tables.units[1].gradient_bytes = 2000;
  tables.units[1].reduce_input_bytes = 300;
  tables.units[1].reduce_part_bytes = 30;
  const LiveIntegral integral = live_integral(compiled(tables, "1f1b", 2), 0);
  const BucketBytes &first = integral.unit_byte_steps[0], &second = integral.unit_byte_steps[1];
  EXPECT_EQ(first[Bucket::unsharded_gradients], 5 * 1000);   // 4-8
  EXPECT_EQ(second[Bucket::unsharded_gradients], 5 * 2000);  // 3-7
  EXPECT_EQ(integral.byte_steps[Bucket::unsharded_gradients], 15'000);
  EXPECT_EQ(first[Bucket::communication], 0);
  EXPECT_EQ(second[Bucket::communication], 300);  // 8; its part lives in the reduction alone
  EXPECT_EQ(integral.byte_steps[Bucket::communication], 300);
  EXPECT_EQ(integral.peak[Bucket::unsharded_gradients], 3000);
  EXPECT_EQ(integral.peak[Bucket::communication], 330);
}

// Weight gradients of the units 2, 1 and 0, each reduced at once. A wait in front of the last gives back what was
// reduced up to its unit.
TEST(LiveIntegral, OfReductionsInFlightByHand) {
  const auto gradients = [](std::optional<int> waited_for) {
    std::vector<std::int64_t> byte_steps;
    for (const BucketBytes& unit : live_integral(reduced_in_turn(waited_for), 0).unit_byte_steps) {
      byte_steps.push_back(unit[Bucket::unsharded_gradients]);
    }
    return byte_steps;
  };
  EXPECT_EQ(gradients(std::nullopt), (std::vector<std::int64_t>{150, 2 * 100, 3 * 100}));
  EXPECT_EQ(gradients(2), (std::vector<std::int64_t>{150, 2 * 100, 2 * 100}));
  EXPECT_EQ(gradients(1), (std::vector<std::int64_t>{150, 100, 2 * 100}));
}

// Full parameters of a rank at each of its computing actions, added up.
std::int64_t plain_reading(const Program& program, int rank) {
  std::vector<std::int64_t> held(program.units.size());
  std::int64_t sum = 0;
  for (const Action& action : program.ranks[static_cast<std::size_t>(rank)]) {
    if (is_gather(action.op) || is_reshard(action.op)) {
      const auto index = static_cast<std::size_t>(*action.unit);
      const ProgramUnit& unit = program.units[index];
      held[index] = is_gather(action.op)                 ? unit.unsharded_bytes
                    : action.op == Op::reshard_secondary ? unit.island_bytes
                                                         : 0;
    }
    if (!is_compute(action.op)) continue;
    for (const std::int64_t bytes : held) sum += bytes;
  }
  return sum;
}

TEST(LiveIntegral, IsTheSumOfTheCurveAndOfTheUnits) {
  std::int64_t communication = 0, gradients = 0;
  for (int seed = 0; seed < 300; ++seed) {
    Dice dice(static_cast<std::uint64_t>(9000 + seed));
    const Program program = random_program(dice);
    for (int rank = 0; rank < static_cast<int>(program.ranks.size()); ++rank) {
      SCOPED_TRACE(fmt::format("seed {}, rank {}", seed, rank));
      const LiveIntegral integral = live_integral(program, rank);
      ASSERT_EQ(integral.byte_steps[Bucket::unsharded_parameters], plain_reading(program, rank));
      const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
      const std::vector<LiveAction> curve = live_bytes(program, rank);
      for (const auto kind : {Bucket::unsharded_parameters, Bucket::unsharded_gradients, Bucket::communication}) {
        std::int64_t sum = 0, peak = 0, of_units = 0;
        for (std::size_t i = 0; i < actions.size(); ++i) {
          if (is_compute(actions[i].op)) sum += curve[i].after[kind];
          peak = std::max(peak, curve[i].most[kind]);
        }
        for (const BucketBytes& unit : integral.unit_byte_steps) of_units += unit[kind];
        ASSERT_EQ(integral.byte_steps[kind], sum);
        ASSERT_EQ(of_units, sum);
        ASSERT_EQ(integral.peak[kind], peak);
      }
      communication += integral.byte_steps[Bucket::communication];
      gradients += integral.byte_steps[Bucket::unsharded_gradients];
    }
  }
  EXPECT_GT(communication, 0);
  EXPECT_GT(gradients, 0);
}

// Computing actions of one second each, one after the other, and everything else in no time: byte-seconds are
// byte-steps.
TEST(LiveIntegral, IsTheIntegralOverTimeWhereTimeIsTicks) {
  for (const UnitPolicy& policy : policies()) {
    for (ProgramTables tables : {stage_tables(1, 4, policy), expert_tables(1, 2, policy)}) {
      tables = sized_units(std::move(tables));
      for (ProgramUnit& unit : tables.units) {
        unit.gradient_bytes = 2 * unit.unsharded_bytes;
        unit.reduce_input_bytes = unit.unsharded_bytes;
      }
      const Program program = compiled(tables, "1f1b", 3);
      const ProgramCosts costs = even_costs(program, {4.0, 2.0, 2.0});
      const auto channels = LaneChannels::serial();
      const ByteSeconds timed = byte_seconds(memory_curve(program, simulate(program, costs, channels), 0, channels));
      const BucketBytes listed = live_integral(program, 0).byte_steps;
      EXPECT_EQ(timed[Bucket::unsharded_parameters], static_cast<double>(listed[Bucket::unsharded_parameters]));
      EXPECT_EQ(timed[Bucket::unsharded_gradients], static_cast<double>(listed[Bucket::unsharded_gradients]));
      EXPECT_EQ(timed[Bucket::communication], static_cast<double>(listed[Bucket::communication]));
      EXPECT_GT(listed[Bucket::communication], 0);
    }
  }
}

// The list of MemoryCurve.ThingsComeWhenWorkBeginsAndGoWhenItEnds: 8 bytes from 0 to 15 s, 4 from 12 to 35 s, 2 from 15
// to 35 s.
TEST(LiveIntegral, OverTimeCountsTheSecondsOfTransfers) {
  const std::vector<MemorySample> curve = {sample(0, 8, 0, 0, 0), sample(12, 8, 4, 0, 16), sample(15, 0, 4, 2, 0),
                                           sample(35, 0, 0, 0, 0)};
  const ByteSeconds timed = byte_seconds(curve);
  EXPECT_EQ(timed[Bucket::unsharded_parameters], 8 * 15);
  EXPECT_EQ(timed[Bucket::unsharded_gradients], 4 * 23);
  EXPECT_EQ(timed[Bucket::communication], 2 * 20);
}

}  // namespace
}  // namespace weft
