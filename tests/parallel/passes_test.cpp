#include "parallel/pipeline/passes/passes.h"

#include <gtest/gtest.h>

#include <map>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// --- exchange -------------------------------------------------------------------------------------------------------

TEST(Exchange, StandsAroundItsProducerAndConsumer) {
  const Program program = bare("1f1b", 2, 2);
  EXPECT_EQ(cells(program, 0), "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1");
  EXPECT_EQ(cells(program, 1), "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1");
}

TEST(Exchange, NamesPeersAndBytes) {
  const Program program = compiled(stage_tables(3, 1), "gpipe", 1);
  std::map<std::string, std::pair<int, std::int64_t>> found;  // cell -> peer, bytes
  for (const Action& action : program.ranks[1]) {
    if (action.peer) found[format_action(program, action)] = {*action.peer, action.bytes};
  }
  // Stage s hands on 100 + s bytes; a gradient is as large as the activation it belongs to.
  const std::map<std::string, std::pair<int, std::int64_t>> expected = {
      {"1RECV_F0", {0, 100}}, {"1SEND_F0", {2, 101}}, {"1RECV_B0", {2, 101}}, {"1SEND_B0", {0, 100}}};
  EXPECT_EQ(found, expected);
}

TEST(Exchange, StagesOfOneRankHandOverWithoutIt) {
  // Stages 0 and 1 on rank 0, stage 2 on rank 1.
  Program program{schedule_only_tables(2, 3), 1, {}};
  program.stages[1].rank = 0;
  program.stages[2].rank = 1;
  program.ranks.resize(2);
  for (Op op : {Op::forward, Op::backward}) {
    for (int stage : {0, 1}) {
      program.ranks[0].push_back({.op = op, .stage = op == Op::forward ? stage : 1 - stage, .microbatch = 0});
    }
    program.ranks[1].push_back({.op = op, .stage = 2, .microbatch = 0});
  }
  program = add_exchange(program);
  EXPECT_EQ(cells(program, 0), "0F0 1F0 1SEND_F0 1RECV_B0 1B0 0B0");
  EXPECT_TRUE(find_violations(program).empty());
}

// A split backward sends what its input gradient made, before the weight gradient that nobody waits for.
TEST(Exchange, AWeightGradientExchangesNothing) {
  Program program{schedule_only_tables(2, 2), 1, {}};
  program.ranks.resize(2);
  for (int rank : {0, 1}) {
    for (Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
      program.ranks[static_cast<std::size_t>(rank)].push_back({.op = op, .stage = rank, .microbatch = 0});
    }
  }
  program = add_exchange(program);
  EXPECT_EQ(cells(program, 0), "0F0 0SEND_F0 0RECV_B0 0I0 0W0");
  EXPECT_EQ(cells(program, 1), "1RECV_F0 1F0 1I0 1SEND_B0 1W0");
}

// Rank 0 runs all forwards first, rank 1 alternates. With one message on the way in each direction, microbatch 3 can
// leave rank 0 only when rank 1 has taken microbatch 2. But rank 1 stands in front of that with its second gradient,
// which can leave only when rank 0 has taken the first. So rank 1 takes microbatch 2 where it stands.
TEST(Exchange, AReceiveStandsEarlierWhereASendWouldStandStill) {
  const OrderInput input{.ranks = 2, .microbatches = 4};
  Program program{
      schedule_only_tables(2, 2), 4, {find_schedule("gpipe").order(input)[0], find_schedule("1f1b").order(input)[1]}};
  program = add_exchange(program);
  EXPECT_EQ(cells(program, 0), cells(bare("gpipe", 2, 4), 0));
  EXPECT_EQ(cells(program, 1),
            "1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1RECV_F2 1SEND_B1 1F2 1B2 1SEND_B2 1RECV_F3 1F3 1B3 1SEND_B3");
  EXPECT_TRUE(find_violations(program).empty());
}

TEST(Exchange, IsMatchedAndFreeOfDeadlockOnTheWholeGrid) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 8, 3, 16)) {
      const auto findings = find_violations(add_exchange(ordered(schedule, input)));
      EXPECT_TRUE(findings.empty()) << described(schedule, input) << ": " << findings.front().message;
    }
  }
}

// --- segments -------------------------------------------------------------------------------------------------------

TEST(Segments, RunForwardInOrderAndBackwardInReverseInsideTheirExchange) {
  const ProgramTables tables = stage_tables(2, 2);
  Program program = bare("1f1b", 2, 1);
  static_cast<ProgramTables&>(program) = tables;
  program = lower_to_segments(program);
  EXPECT_EQ(cells(program, 0), "0F0(blocks.0) 0F0(blocks.1) 0SEND_F0 0RECV_B0 0B0(blocks.1) 0B0(blocks.0)");
  EXPECT_EQ(cells(program, 1), "1RECV_F0 1F0(blocks.2) 1F0(blocks.3) 1B0(blocks.3) 1B0(blocks.2) 1SEND_B0");
}

TEST(Segments, AStageWithoutThemKeepsItsActions) {
  const Program program = bare("gpipe", 2, 3);
  EXPECT_EQ(lower_to_segments(program), program);
}

// --- residency ------------------------------------------------------------------------------------------------------

std::string residency_cells(const UnitPolicy& policy, int units, int microbatches) {
  const ProgramTables tables = stage_tables(1, units, policy);
  const OrderInput input{.ranks = 1, .microbatches = microbatches};
  return cells(add_residency(lower_to_segments({tables, microbatches, find_schedule("gpipe").order(input)})), 0);
}

// Two units, one microbatch, by hand. Unit 1 is used twice in a row at the turn and stays.
TEST(Residency, WithoutLookaheadAGatherStandsBeforeItsUse) {
  EXPECT_EQ(residency_cells({.residency = Residency::reshard_after_use, .lookahead = 0}, 2, 1),
            "0UNSHARD(blocks.0) 0F0(blocks.0) 0RESHARD(blocks.0) "
            "0UNSHARD(blocks.1) 0F0(blocks.1) 0B0(blocks.1) 0RESHARD(blocks.1) "
            "0UNSHARD(blocks.0) 0B0(blocks.0) 0RESHARD(blocks.0)");
}

TEST(Residency, LookaheadIssuesAGatherOneUseEarlier) {
  EXPECT_EQ(residency_cells({.residency = Residency::reshard_after_use, .lookahead = 1}, 2, 1),
            "0UNSHARD(blocks.0) 0UNSHARD(blocks.1) 0F0(blocks.0) 0RESHARD(blocks.0) 0F0(blocks.1) "
            "0UNSHARD(blocks.0) 0B0(blocks.1) 0RESHARD(blocks.1) 0B0(blocks.0) 0RESHARD(blocks.0)");
}

TEST(Residency, StepKeepsFromFirstUseToLast) {
  EXPECT_EQ(residency_cells({.residency = Residency::step, .lookahead = 0}, 2, 1),
            "0UNSHARD(blocks.0) 0F0(blocks.0) 0UNSHARD(blocks.1) 0F0(blocks.1) 0B0(blocks.1) 0RESHARD(blocks.1) "
            "0B0(blocks.0) 0RESHARD(blocks.0)");
}

// The backward of a block with experts reads both its units at once. Both are gathered one segment ahead: while the
// expert part of the block behind it is at its own backward.
TEST(Residency, ASegmentsUnitsAreGatheredTogether) {
  Program program{expert_tables(1, 2, {.residency = Residency::reshard_after_use, .lookahead = 1}), 1, {}};
  program.ranks = find_schedule("gpipe").order({.ranks = 1, .microbatches = 1});
  EXPECT_EQ(cells(add_residency(lower_to_segments(program)), 0),
            "0UNSHARD(blocks.0) 0UNSHARD(blocks.1) 0F0(blocks.0) 0UNSHARD(blocks.2) 0F0(blocks.1) 0RESHARD(blocks.0) "
            "0RESHARD(blocks.1) 0UNSHARD(blocks.3) 0F0(blocks.2) 0F0(blocks.3) 0UNSHARD(blocks.0) 0UNSHARD(blocks.1) "
            "0B0(blocks.3) 0RESHARD(blocks.3) 0B0(blocks.2) 0RESHARD(blocks.2) 0B0(blocks.1) 0RESHARD(blocks.1) "
            "0B0(blocks.0) 0RESHARD(blocks.0)");
}

// Looking two ahead over two units: what is dropped behind its forward is what would be gathered next.
TEST(Residency, WhatWouldBeGatheredWhereItIsDroppedStays) {
  EXPECT_EQ(residency_cells({.residency = Residency::reshard_after_use, .lookahead = 2}, 2, 1),
            "0UNSHARD(blocks.0) 0UNSHARD(blocks.1) 0F0(blocks.0) 0F0(blocks.1) 0B0(blocks.1) 0RESHARD(blocks.1) "
            "0B0(blocks.0) 0RESHARD(blocks.0)");
}

// A lookahead longer than the way from one use of a unit to its next: the gather waits for the reshard between them.
TEST(Residency, AGatherNeverOvertakesTheReshardBeforeIt) {
  for (int units : {2, 3}) {
    for (int lookahead : {1, 2, 3, 9}) {
      const UnitPolicy policy{.residency = Residency::reshard_after_use, .lookahead = lookahead};
      EXPECT_TRUE(find_violations(compiled(stage_tables(2, units, policy), "gpipe", 3)).empty());
    }
  }
}

// A gather is issued before the rank waits for its input, a reshard after its output is on the way.
TEST(Residency, StandsOutsideTheExchange) {
  const Program program =
      compiled(stage_tables(2, 1, {.residency = Residency::reshard_after_use, .lookahead = 0}), "1f1b", 1);
  EXPECT_EQ(cells(program, 0),
            "0UNSHARD(blocks.0) 0F0(blocks.0) 0SEND_F0 0RECV_B0 0B0(blocks.0) 0REDUCE_GRAD(blocks.0) "
            "0RESHARD(blocks.0) GRAD_NORM STEP");
  EXPECT_EQ(cells(program, 1),
            "1UNSHARD(blocks.1) 1RECV_F0 1F0(blocks.1) 1B0(blocks.1) 1SEND_B0 1REDUCE_GRAD(blocks.1) "
            "1RESHARD(blocks.1) GRAD_NORM STEP");
}

// Each unit is used 2M times per step. `reshard_after_use` saves a gather wherever two uses meet. GPipe turns once.
// 1F1B turns at every forward-backward pair behind the warm-up (M - w) and at the way back between them (M - w - 1).
// With a warm-up of all microbatches 1F1B is GPipe. A second one is saved at a turn of U units with lookahead 2. When
// unit U - 2 is dropped, the next units not there are itself and the one before, so it would be gathered at once.
// There must be a unit between those of two turns for that, and more units than are looked ahead to.
int reshard_after_use_gathers(std::string_view schedule, int units, int ranks, int rank, int microbatches,
                              int lookahead) {
  const int steady = microbatches - std::min(ranks - 1 - rank, microbatches);
  const int turns = schedule == "gpipe" || steady == 0 ? 1 : 2 * steady - 1;
  return 2 * microbatches * units - (lookahead == 2 ? 2 : 1) * turns;
}

TEST(Residency, GathersFollowTheClosedFormulas) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int ranks : {1, 2, 3, 4, 8}) {
      for (int microbatches : {1, 2, 3, 4, 8, 16}) {
        for (int units : {2, 3, 8}) {
          for (Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::step}) {
            for (int lookahead : {0, 1, 2}) {
              if (residency == Residency::reshard_after_use && lookahead > 0 && units < 2 * lookahead + 1) continue;
              const Program program = compiled(
                  stage_tables(ranks, units, {.residency = residency, .lookahead = lookahead}), schedule, microbatches);
              for (int rank = 0; rank < ranks; ++rank) {
                const int expected =
                    residency == Residency::reshard_after_use
                        ? reshard_after_use_gathers(schedule, units, ranks, rank, microbatches, lookahead)
                        : units;
                ASSERT_EQ(count_of(program, rank, Op::unshard), expected)
                    << schedule << " rank " << rank << " of " << ranks << ", " << microbatches << " microbatches, "
                    << units << " units, " << name_of(residency);
                ASSERT_EQ(count_of(program, rank, Op::reshard), expected);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Residency, PublishedExample) {
  // 4 ranks, 16 microbatches, 8 units.
  const Program program = compiled(stage_tables(4, 8), "1f1b", 16);
  const int expected[] = {231, 229, 227, 225};
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(count_of(program, rank, Op::unshard), expected[rank]);
}

// Parameters dropped after every forward and backward are gathered 2m times per step on every rank of 1F1B. That holds
// for the units that do not lie at a turn. Parameters never dropped are gathered once.
TEST(Residency, GathersOfAUnitPerStep) {
  for (int microbatches : {8, 16}) {
    const Program dropped = compiled(stage_tables(4, 8), "1f1b", microbatches);
    const Program kept = compiled(stage_tables(4, 8, {.residency = Residency::step}), "1f1b", microbatches);
    for (int rank = 0; rank < 4; ++rank) {
      for (int unit = 8 * rank; unit < 8 * rank + 8; ++unit) {
        const bool at_a_turn = unit % 8 == 0 || unit % 8 == 7;
        if (!at_a_turn) {
          EXPECT_EQ(count_of(dropped, rank, Op::unshard, unit), 2 * microbatches);
        }
        EXPECT_EQ(count_of(kept, rank, Op::unshard, unit), 1);
      }
    }
  }
}

// The window is the unit in use and one for each step of lookahead, as long as there are units to look ahead to.
TEST(Residency, LookaheadSetsTheWindow) {
  for (const Schedule& schedule : schedules()) {
    const OrderInput input{.ranks = 4, .chunks = schedule.least_chunks, .microbatches = 8};
    for (int lookahead : {0, 1, 2}) {
      const Program program =
          compiled(schedule, input, 6, {.residency = Residency::reshard_after_use, .lookahead = lookahead});
      for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(transient_peak(program, rank).bytes, 1 + lookahead);
    }
    const Program kept = compiled(schedule, input, 6, {.residency = Residency::step});
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(transient_peak(kept, rank).bytes, 6 * input.chunks);
  }
}

TEST(Residency, GathersAreIssuedInOrderOfNeedWhateverTheLookahead) {
  ProgramTables tables = stage_tables(1, 6);
  for (std::size_t unit = 0; unit < 6; ++unit) tables.units[unit].policy.lookahead = static_cast<int>(unit * 5 % 7);
  const Program program = compiled(tables, "gpipe", 3);
  // For each gather, the use it serves: the next one of its unit.
  const auto& actions = program.ranks[0];
  std::size_t previous_need = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].op != Op::unshard) continue;
    std::size_t need = i;
    while (!is_compute(actions[need].op) || actions[need].segment != actions[i].unit) ++need;
    EXPECT_LE(previous_need, need) << "action " << i;
    previous_need = need;
  }
}

// "while_on_stage" ends where the rank turns to another stage: two stages on one rank, in turns.
TEST(Residency, AVisitEndsWithTheStage) {
  ProgramTables tables = stage_tables(2, 1, {.residency = Residency::while_on_stage, .lookahead = 0});
  tables.stages[1].rank = 0;
  Program program{tables, 2, {{}}};
  const auto add = [&](Op op, int stage, int microbatch) {
    program.ranks[0].push_back({.op = op, .stage = stage, .microbatch = microbatch, .segment = stage});
  };
  for (int microbatch : {0, 1}) {
    add(Op::forward, 0, microbatch);
    add(Op::forward, 1, microbatch);
  }
  add(Op::backward, 1, 0);
  add(Op::backward, 1, 1);
  add(Op::backward, 0, 0);
  add(Op::backward, 0, 1);
  program = add_residency(program);
  EXPECT_EQ(count_of(program, 0, Op::unshard, 0), 3);  // F0 | F1 | B0 B1
  EXPECT_EQ(count_of(program, 0, Op::unshard, 1), 2);  // F0 | F1 B0 B1
  EXPECT_TRUE(find_violations(add_reduction(program)).empty());
}

// dW = dy^T x reads no parameters, so a unit is not gathered for it.
TEST(Residency, WeightGradientsReadNoParameters) {
  Program program{stage_tables(1, 2, {.residency = Residency::reshard_after_use, .lookahead = 0}), 1, {{}}};
  for (Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
    program.ranks[0].push_back({.op = op, .stage = 0, .microbatch = 0});
  }
  program = add_reduction(add_residency(lower_to_segments(program)));
  EXPECT_EQ(cells(program, 0),
            "0UNSHARD(blocks.0) 0F0(blocks.0) 0RESHARD(blocks.0) 0UNSHARD(blocks.1) 0F0(blocks.1) 0I0(blocks.1) "
            "0RESHARD(blocks.1) 0UNSHARD(blocks.0) 0I0(blocks.0) 0RESHARD(blocks.0) "
            "0W0(blocks.1) 0REDUCE_GRAD(blocks.1) 0W0(blocks.0) 0REDUCE_GRAD(blocks.0)");
}

// --- reduction ------------------------------------------------------------------------------------------------------

TEST(Reduction, CountsFollowThePolicy) {
  for (int microbatches = 1; microbatches <= 16; ++microbatches) {
    for (int every : {0, 1, 2, 3, 5, 16, 20}) {
      const Program program = compiled(stage_tables(3, 2, {.reduce_every = every}), "1f1b", microbatches);
      const int expected = every == 0 ? 1 : (microbatches + every - 1) / every;
      for (int unit = 0; unit < 6; ++unit) {
        EXPECT_EQ(count_of(program, unit / 2, Op::reduce_gradient, unit), expected)
            << microbatches << " microbatches, every " << every;
      }
    }
  }
}

TEST(Reduction, CountsMicrobatchesInTheOrderOfTheRank) {
  // Backward in descending order: the second one run is microbatch 1, and the last is microbatch 0.
  Program program{stage_tables(1, 1, {.residency = Residency::step, .reduce_every = 2}), 3, {{}}};
  for (int microbatch : {0, 1, 2})
    program.ranks[0].push_back({.op = Op::forward, .stage = 0, .microbatch = microbatch});
  for (int microbatch : {2, 1, 0})
    program.ranks[0].push_back({.op = Op::backward, .stage = 0, .microbatch = microbatch});
  program = add_reduction(lower_to_segments(program));
  EXPECT_EQ(cells(program, 0),
            "0F0(blocks.0) 0F1(blocks.0) 0F2(blocks.0) 0B2(blocks.0) 0B1(blocks.0) 0REDUCE_GRAD(blocks.0) "
            "0B0(blocks.0) 0REDUCE_GRAD(blocks.0)");
}

// A tied embedding, say: the first and the last segment add to unit 0, which is reduced after the first one's backward.
TEST(Reduction, AUnitOfTwoSegmentsWaitsForBoth) {
  ProgramTables tables =
      stage_tables(1, 3, {.residency = Residency::reshard_after_use, .lookahead = 0, .reduce_every = 1});
  tables.segments[2].units = {2, 0};
  const Program program = compiled(tables, "gpipe", 1);
  EXPECT_EQ(cells(program, 0),
            "0UNSHARD(blocks.0) 0F0(blocks.0) 0RESHARD(blocks.0) "
            "0UNSHARD(blocks.1) 0F0(blocks.1) 0RESHARD(blocks.1) "
            "0UNSHARD(blocks.2) 0UNSHARD(blocks.0) 0F0(blocks.2) "
            "0B0(blocks.2) 0REDUCE_GRAD(blocks.2) 0RESHARD(blocks.2) 0RESHARD(blocks.0) "
            "0UNSHARD(blocks.1) 0B0(blocks.1) 0REDUCE_GRAD(blocks.1) 0RESHARD(blocks.1) "
            "0UNSHARD(blocks.0) 0B0(blocks.0) 0REDUCE_GRAD(blocks.0) 0RESHARD(blocks.0) GRAD_NORM STEP");
  EXPECT_TRUE(find_violations(program).empty());
}

TEST(Reduction, ReplicatedUnitsAreReducedAndNeverGathered) {
  ProgramTables tables = stage_tables(2, 2, {.reduce_every = 1});
  tables.units[1].replicated = true;
  const Program program = compiled(tables, "1f1b", 4);
  EXPECT_EQ(count_of(program, 0, Op::unshard, 1), 0);
  EXPECT_EQ(count_of(program, 0, Op::reshard, 1), 0);
  EXPECT_EQ(count_of(program, 0, Op::reduce_gradient, 1), 4);
  EXPECT_TRUE(find_violations(program).empty());
}

TEST(Reduction, CarriesTheBytesOfTheUnit) {
  const Program program = compiled(stage_tables(2, 2), "1f1b", 2);
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      if (action.op == Op::unshard) {
        EXPECT_EQ(action.bytes, 10 + *action.unit);
      }
      if (action.op == Op::reduce_gradient) {
        EXPECT_EQ(action.bytes, 20 + *action.unit);
      }
      if (action.op == Op::reshard) {
        EXPECT_EQ(action.bytes, 0);
      }
    }
  }
}

// --- the whole ------------------------------------------------------------------------------------------------------

TEST(Compile, RefusesTablesThatDoNotFitTheSchedule) {
  const auto message = [](const ProgramTables& tables, const OrderInput& input) -> std::string {
    try {
      compile(tables, find_schedule("1f1b"), input);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      return error.what();
    }
    return "accepted";
  };
  EXPECT_NE(message(stage_tables(3, 1), {.ranks = 2, .microbatches = 2}).find("2 ranks x 1 chunks = 2 stages"),
            std::string::npos);
  ProgramTables swapped = stage_tables(2, 1);
  std::swap(swapped.stages[0].rank, swapped.stages[1].rank);
  EXPECT_NE(message(swapped, {.ranks = 2, .microbatches = 2}).find("the layout puts it on rank 1"), std::string::npos);
  EXPECT_NE(message(stage_tables(2, 1, {.lookahead = -1}), {.ranks = 2, .microbatches = 2}).find("unit blocks.0"),
            std::string::npos);
}

TEST(Compile, ALongStepOfManySegmentsStaysLinear) {
  // 512 x 64 segment actions each way; a quadratic pass would take minutes.
  const Program program = compiled(stage_tables(1, 64), "1f1b", 512);
  EXPECT_EQ(count_of(program, 0, Op::forward), 512 * 64);
  EXPECT_TRUE(find_violations(program).empty());
}

}  // namespace
}  // namespace weft
