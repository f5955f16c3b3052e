// Computations cut at their exchanges of rows between experts: what alternates, what is hidden, and what is refused.
#include <gtest/gtest.h>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/pipeline/timing/solve.h"
#include "parallel/pipeline/timing/timed_step.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/lane_channels.h"
#include "tests/parallel/program_interpreter.h"
#include "tests/parallel/random_program.h"

namespace weft {
namespace {

// Blocks of an attention and an expert part, the latter with exchanges; with R if `again` is not negative.
ProgramTables tables_of(const Schedule& schedule, const OrderInput& input, int blocks, int again = -1,
                        const UnitPolicy& policy = {}) {
  ProgramTables tables = expert_tables(input.ranks, blocks, policy, input.chunks, schedule.placement);
  for (std::size_t s = 0; s < tables.segments.size(); ++s) {
    if (again >= 0) tables.segments[s].region = static_cast<int>(s / 2 * 2);
    if (s % 2 == 1) exchange_rows(tables.segments[s], 2, again, 2);
  }
  return tables;
}

// The forward of microbatch 1 through stage 0 beside the backward of microbatch 0 through stage 1, each of one block.
Program one_pair(int again = -1) {
  Program program{tables_of(find_schedule("interleaved"), {.ranks = 1, .chunks = 2}, 1, again), 2, {{}}};
  program.ranks[0] = {{.op = Op::forward, .overlapped = true, .stage = 0, .microbatch = 1},
                      {.op = Op::backward, .overlapped = true, .stage = 1, .microbatch = 0}};
  program.ranks = alternate_pairs(add_recompute(lower_to_segments(program))).ranks;
  return program;
}

// Each action of the pair by its kind, part and whether it belongs to attention or experts.
std::string short_text(const Program& program) {
  std::string text;
  for (const Action& action : program.ranks[0]) {
    const char* of = *action.segment % 2 == 0 ? "a" : "e";
    const std::string part = action.part.count > 1 ? std::to_string(action.part.index + 1) : "";
    text += fmt::format("{}{}{}{}", text.empty() ? "" : " ", name_of(action.op), of, part);
  }
  return text;
}

TEST(RowExchange, HalvesGoOnUntilAnExchange) {
  EXPECT_EQ(short_text(one_pair()), "Be1 ROWS_Be1 Fa Fe1 ROWS_Fe1 Be2 ROWS_Be2 Fe2 ROWS_Fe2 Be3 Ba Fe3");
  // R exchanges rows too, out and back, and its half then takes more turns; or not at all where rows are kept.
  EXPECT_EQ(short_text(one_pair(2)),
            "Ra Re1 ROWS_Re1 Re2 ROWS_Re2 Fa Fe1 ROWS_Fe1 Re3 Be1 ROWS_Be1 Be2 ROWS_Be2 Fe2 ROWS_Fe2 Be3 Ba Fe3");
  EXPECT_EQ(short_text(one_pair(0)), "Ra Re Be1 ROWS_Be1 Fa Fe1 ROWS_Fe1 Be2 ROWS_Be2 Fe2 ROWS_Fe2 Be3 Ba Fe3");
}

ProgramCosts costs_of_pair(const Program& program, double out, double back) {
  ProgramCosts costs = even_costs(program, {});
  for (std::size_t s = 0; s < costs.segments.size(); ++s) {
    costs.segments[s] = s % 2 == 0 ? ComputeCost{1.0, 2.0, 1.0}
                                   : ComputeCost{.forward = 2.0 + out + back,
                                                 .backward_input = 4.0 + out + back,
                                                 .backward_weight = 2.0,
                                                 .forward_out = out,
                                                 .forward_back = back,
                                                 .backward_out = out,
                                                 .backward_back = back};
  }
  return costs;
}

// The same behind the forwards of microbatch 0, which it depends on. These are not cut.
Simulation simulated_pair(const Program& pair, const ProgramCosts& costs, const LaneChannels& channels) {
  Program program = pair;
  std::vector<Action>& actions = program.ranks[0];
  for (const int stage : {1, 0}) {
    for (const int segment : {2 * stage + 1, 2 * stage}) {
      actions.insert(actions.begin(), {.op = Op::forward, .stage = stage, .microbatch = 0, .segment = segment});
    }
  }
  Simulation simulation = simulate(program, costs, channels);
  auto& times = simulation.ranks[0];
  const double before = times[3].end;
  times.erase(times.begin(), times.begin() + 4);
  for (SimulatedAction& time : times) time.start -= before, time.end -= before;
  simulation.seconds -= before;
  return simulation;
}

// By hand. Compute takes 1 + 2 forward and 4 + 2 + 2 + 1 backward. Exchanges of half a second each are hidden; with one
// channel for all lanes, nothing is.
TEST(RowExchange, HidesBehindTheOtherHalf) {
  const Program pair = one_pair();
  const ProgramCosts costs = costs_of_pair(pair, 0.5, 0.5), slow = costs_of_pair(pair, 3.0, 3.0);
  const LaneChannels own = LaneChannels::own(), serial = LaneChannels::serial();
  const Simulation hidden = simulated_pair(pair, costs, own);
  EXPECT_EQ(hidden.seconds, 12.0);
  EXPECT_EQ(rank_times(pair, hidden, 0).compute, 12.0);
  EXPECT_EQ(rank_times(pair, hidden, 0).rows, 0.0);
  EXPECT_EQ(simulated_pair(pair, costs, serial).seconds, 14.0);
  // Three seconds each: rows go out from 0 to 3 and 3 to 6. The backward's second part waits until 3 and runs to 7,
  // the forward's to 9. Rows come back from 7 to 10 and 10 to 13, and the backward's last part runs from 10 to 15.
  const Simulation exposed = simulated_pair(pair, slow, own);
  EXPECT_EQ(exposed.seconds, 15.0);
  EXPECT_EQ(rank_times(pair, exposed, 0).compute, 12.0);
  EXPECT_EQ(rank_times(pair, exposed, 0).rows, 3.0);
  EXPECT_EQ(rank_times(pair, simulated_pair(pair, slow, serial), 0, serial).rows, 12.0);
}

// A second of each second part needs no rows. Of the three seconds above, the backward's second part begins at 2 and
// runs to 6. Its rows come back from 6 to 9, and it ends at 14. The forward's second part begins at 6, though its rows
// arrive at 6, because the backward's runs until then. On one channel for all nothing is covered.
TEST(RowExchange, HidesBehindItsOwnPartToo) {
  const Program pair = one_pair();
  ProgramCosts costs = costs_of_pair(pair, 3.0, 3.0);
  const double in_line = simulated_pair(pair, costs, LaneChannels::serial()).seconds;
  for (ComputeCost& cost : costs.segments) {
    if (cost.forward_out == 0.0) continue;
    cost.forward -= cost.forward_covered = 1.0;
    cost.backward_input -= cost.backward_covered = 1.0;
  }
  const Simulation covered = simulated_pair(pair, costs, LaneChannels::own());
  EXPECT_EQ(covered.seconds, 14.0);
  EXPECT_EQ(rank_times(pair, covered, 0).compute, 12.0);
  EXPECT_EQ(rank_times(pair, covered, 0).rows, 2.0);
  EXPECT_EQ(simulated_pair(pair, costs, LaneChannels::serial()).seconds, in_line);
}

int row_exchanges_in(const Program& program) {
  int count = 0;
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) count += is_row_exchange(action.op);
  }
  return count;
}
int pairs_in(const RankLists& lists) {
  int count = 0;
  for (const auto& actions : lists) count += static_cast<int>(find_overlaps(actions).pairs.size());
  return count;
}

// Every schedule, with and without R, is sound to the checker and right to the interpreter. It is the same after its
// text is read again, and has as many exchanges as its pairs have. Bytes live are those of the whole computations.
TEST(RowExchange, EveryProgramIsSound) {
  int cut = 0;
  for (const Schedule& schedule : schedules()) {
    bool overlaps = false;
    for (const OrderInput& input : inputs_of(schedule, 4, 2, 9)) {
      const int pairs = pairs_in(schedule.order(input));
      overlaps = overlaps || pairs > 0;
      for (const int again : {-1, 0, 1, 2}) {
        for (const Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::step}) {
          ProgramTables tables = tables_of(schedule, input, 1 + input.ranks % 2, again, {.residency = residency});
          for (ProgramSegment& segment : tables.segments) segment.activation_bytes = 10;
          const Program program = compile(tables, schedule, input);
          SCOPED_TRACE(fmt::format("{}, R with {} exchanges", described(schedule, input), again));
          const auto findings = find_violations(program);
          ASSERT_TRUE(findings.empty()) << findings.front().message;
          ASSERT_EQ(fault_when_run(program), "");
          const int blocks = 1 + input.ranks % 2;
          ASSERT_EQ(row_exchanges_in(program), pairs * blocks * (4 + std::max(again, 0)));
          ASSERT_EQ(from_csv(program, to_csv(program, Detail::everything)).ranks, program.ranks);
          cut += pairs > 0;
          for (int rank = 0; rank < input.ranks; ++rank) {
            ASSERT_EQ(live_bytes(program, rank).back().after.total(), 0);
          }
        }
      }
    }
    EXPECT_EQ(overlaps, schedule.overlaps) << schedule.name;
  }
  EXPECT_GT(cut, 100);
}

// Nothing may be lost, doubled, or change its place with a neighbour of its own computation.
TEST(RowExchange, BrokenPartsAreFound) {
  const Schedule& schedule = find_schedule("dualpipev");
  const OrderInput input{.ranks = 2, .chunks = 2, .microbatches = 5};
  const Program sound = compile(tables_of(schedule, input, 1, 2), schedule, input);
  int broken = 0;
  for (std::size_t i = 0; i < sound.ranks[0].size(); ++i) {
    const Action action = sound.ranks[0][i];
    if (action.part.count == 1) continue;
    Program lost = sound, twice = sound, other = sound;
    const auto at = static_cast<std::ptrdiff_t>(i);
    lost.ranks[0].erase(lost.ranks[0].begin() + at);
    twice.ranks[0].insert(twice.ranks[0].begin() + at, action);
    other.ranks[0][i].part.index = static_cast<std::uint8_t>((action.part.index + 1) % action.part.count);
    for (const Program* program : {&lost, &twice, &other}) {
      const auto findings = find_violations(*program);
      ASSERT_FALSE(findings.empty()) << i;
      ++broken;
      EXPECT_NE(fault_when_run(*program), "") << i;
      const auto is_it = [](const Finding& finding) { return finding.violation == Violation::broken_parts; };
      // What lacks its last part has not been computed.
      if (program != &lost || !action.part.last()) {
        EXPECT_TRUE(std::ranges::any_of(findings, is_it)) << findings.front().message;
      }
    }
  }
  EXPECT_GT(broken, 100);
}

// A solved step takes the seconds of its plan, to the bit: the plan knows that exchanges follow one another.
TEST(RowExchange, ASolvedStepTakesWhatItsPlanSays) {
  Dice dice(7);
  int cut = 0;
  for (int i = 0; i < 200; ++i) {
    const Schedule& schedule = find_schedule(i % 2 == 0 ? "dualpipev" : "combined_1f1b");
    const OrderInput input = random_input(dice, schedule, 3, 8);
    ProgramTables tables = tables_of(schedule, input, dice.between(1, 2), dice.between(-1, 2));
    for (ProgramUnit& unit : tables.units) {
      unit.policy.residency = Residency::solved;
      unit.gradient_bytes = 2;
    }
    for (ProgramSegment& segment : tables.segments) segment.activation_bytes = dice.below(9);
    Program lowered = lower_order(tables, schedule, input);
    const ProgramCosts costs = random_costs(dice, tables, 10, 0);
    std::vector<std::int64_t> budgets(lowered.ranks.size(), 1000);
    const TimingProblem problem = timing_problem(lowered, costs, budgets);
    const TimingSolution solution = solve_timing(problem, {.work = 2000});
    cut += row_exchanges_in(lowered) > 0;
    const Program timed = add_timing(lowered, solution.plan);
    ASSERT_EQ(simulate(timed, costs, shared_collectives()).seconds, solution.makespan) << described(schedule, input);
  }
  EXPECT_GT(cut, 50);
}

}  // namespace
}  // namespace weft
