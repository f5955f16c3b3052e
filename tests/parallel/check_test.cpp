// One program that is sound, broken in one way at a time: the checker must name the way and the place.
#include "parallel/pipeline/check/check.h"

#include <gtest/gtest.h>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// 2 ranks, 2 microbatches, 2 units per stage; small enough to know every cell.
Program sound_program() {
  return compiled(stage_tables(2, 2, {.residency = Residency::reshard_after_use, .lookahead = 0}), "1f1b", 2);
}

std::vector<Action>& list(Program& program, int rank) {
  return program.ranks[static_cast<std::size_t>(rank)];
}

// The place of the n-th cell that reads so.
std::size_t place(const Program& program, int rank, std::string_view cell, int n = 0) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (format_action(program, actions[i]) == cell && n-- == 0) return i;
  }
  ADD_FAILURE() << "rank " << rank << " has no " << cell << " in " << cells(program, rank);
  return actions.size() - 1;
}

Action removed(Program& program, int rank, std::size_t index) {
  const Action action = list(program, rank)[index];
  list(program, rank).erase(list(program, rank).begin() + static_cast<std::ptrdiff_t>(index));
  return action;
}
void insert(Program& program, int rank, std::size_t index, const Action& action) {
  list(program, rank).insert(list(program, rank).begin() + static_cast<std::ptrdiff_t>(index), action);
}
// Moves a cell in front of another one.
void move_before(Program& program, int rank, std::string_view cell, std::string_view target) {
  const Action action = removed(program, rank, place(program, rank, cell));
  insert(program, rank, place(program, rank, target), action);
}
void swap_cells(Program& program, int rank, std::string_view one, std::string_view other) {
  std::swap(list(program, rank)[place(program, rank, one)], list(program, rank)[place(program, rank, other)]);
}

// The first finding is this one, and the error shows it in the grid.
void expect_first(const Program& program, Violation violation, int rank, std::size_t index, std::string_view marked,
                  const CheckOptions& options = {}) {
  const auto findings = find_violations(program, options);
  ASSERT_FALSE(findings.empty()) << "nothing found";
  const Finding& first = findings.front();
  EXPECT_EQ(name_of(first.violation), name_of(violation)) << first.message;
  EXPECT_EQ(first.rank, rank) << first.message;
  EXPECT_EQ(first.index, index) << first.message;
  EXPECT_FALSE(first.message.empty());
  try {
    check(program, options);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    const std::string text = error.what();
    EXPECT_NE(text.find(first.message), std::string::npos) << text;
    EXPECT_NE(text.find(name_of(violation)), std::string::npos) << text;
    EXPECT_NE(text.find(fmt::format(">>{}<<", marked)), std::string::npos) << text;
    EXPECT_NE(text.find("\nrank  0 |"), std::string::npos) << text;
  }
}

TEST(Check, TheProgramToBreakIsSound) {
  const Program program = sound_program();
  EXPECT_TRUE(find_violations(program).empty());
  EXPECT_NO_THROW(check(program));
}

TEST(Check, EveryCompiledProgramIsSound) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 8, 3, 16)) {
      for (Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::step}) {
        for (int variant = 0; variant < 3; ++variant) {
          const UnitPolicy policy{.residency = residency, .lookahead = variant, .reduce_every = variant * variant};
          const auto findings = find_violations(compiled(schedule, input, 3, policy));
          ASSERT_TRUE(findings.empty()) << described(schedule, input) << ", " << name_of(residency) << ", variant "
                                        << variant << ": " << findings.front().message;
        }
      }
    }
  }
}

TEST(Check, UnknownStage) {
  Program program = sound_program();
  const std::size_t index = place(program, 0, "0F1(blocks.0)");
  list(program, 0)[index].stage = 1;
  expect_first(program, Violation::unknown_stage, 0, index, "1F1(blocks.0)");

  Program foreign = bare("gpipe", 2, 1);
  insert(foreign, 0, 0, {.op = Op::forward, .stage = 1, .microbatch = 0});
  expect_first(foreign, Violation::unknown_stage, 0, 0, "1F0");

  Program beyond = bare("gpipe", 2, 1);
  insert(beyond, 1, 2, {.op = Op::forward, .stage = 7, .microbatch = 0});
  expect_first(beyond, Violation::unknown_stage, 1, 2, "7F0");

  Program extra = bare("gpipe", 2, 1);
  insert(extra, 0, 1, {.op = Op::forward, .stage = 0, .microbatch = 1});
  expect_first(extra, Violation::unknown_stage, 0, 1, "0F1");
}

TEST(Check, UsedWhileSharded) {
  Program program = sound_program();
  removed(program, 1, place(program, 1, "1UNSHARD(blocks.3)"));
  expect_first(program, Violation::used_while_sharded, 1, place(program, 1, "1F0(blocks.3)"), "1F0(blocks.3)");
}

// The weight gradient reads no parameters, so it may run when they are gone.
TEST(Check, WeightGradientsMayRunSharded) {
  Program program{stage_tables(1, 2), 2, {{}}};
  for (Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
    for (int microbatch : {0, 1}) list(program, 0).push_back({.op = op, .stage = 0, .microbatch = microbatch});
  }
  program = add_update(add_reduction(add_residency(lower_to_segments(program))));
  EXPECT_TRUE(find_violations(program).empty());
}

TEST(Check, DoubleUnshard) {
  Program program = sound_program();
  const std::size_t index = place(program, 0, "0UNSHARD(blocks.1)");
  insert(program, 0, index + 1, list(program, 0)[index]);
  expect_first(program, Violation::double_unshard, 0, index + 1, "0UNSHARD(blocks.1)");
}

TEST(Check, AReplicatedUnitIsNeverGathered) {
  Program program = sound_program();
  program.units[0].replicated = true;
  expect_first(program, Violation::double_unshard, 0, place(program, 0, "0UNSHARD(blocks.0)"), "0UNSHARD(blocks.0)");
}

TEST(Check, ReshardOfSharded) {
  Program program = sound_program();
  const std::size_t index = place(program, 0, "0RESHARD(blocks.0)");
  insert(program, 0, index + 1, list(program, 0)[index]);
  expect_first(program, Violation::reshard_of_sharded, 0, index + 1, "0RESHARD(blocks.0)");
}

TEST(Check, UnshardedAtEnd) {
  Program program = sound_program();
  removed(program, 0, place(program, 0, "0RESHARD(blocks.0)", 3));  // behind B1, its last use
  expect_first(program, Violation::unsharded_at_end, 0, list(program, 0).size(), "end");
}

TEST(Check, RepeatedCompute) {
  Program program = sound_program();
  const std::size_t index = place(program, 1, "1F0(blocks.2)");
  insert(program, 1, index + 1, list(program, 1)[index]);
  expect_first(program, Violation::repeated_compute, 1, index + 1, "1F0(blocks.2)");

  // B is I and W in one: none of the two may follow it.
  for (Op op : {Op::backward_input, Op::backward_weight}) {
    Program mixed = bare("gpipe", 1, 1);
    list(mixed, 0).push_back({.op = op, .stage = 0, .microbatch = 0});
    expect_first(mixed, Violation::repeated_compute, 0, 2, fmt::format("0{}0", name_of(op)));
  }
}

TEST(Check, MissingCompute) {
  Program program = bare("1f1b", 1, 3);
  removed(program, 0, place(program, 0, "0B1"));
  expect_first(program, Violation::missing_compute, 0, list(program, 0).size(), "end");

  Program half{schedule_only_tables(1, 1), 1, {{}}};
  for (Op op : {Op::forward, Op::backward_input}) list(half, 0).push_back({.op = op, .stage = 0, .microbatch = 0});
  expect_first(half, Violation::missing_compute, 0, 2, "end");
  EXPECT_NE(find_violations(half).front().message.find("weight gradient of microbatch 0"), std::string::npos);
}

TEST(Check, BackwardBeforeForward) {
  Program program = bare("gpipe", 1, 2);
  swap_cells(program, 0, "0F1", "0B1");
  expect_first(program, Violation::backward_before_forward, 0, 1, "0B1");
}

TEST(Check, SegmentOrder) {
  Program forward{stage_tables(1, 3, {.residency = Residency::step}), 1, {find_schedule("gpipe").order({}).front()}};
  forward = add_update(add_reduction(add_residency(lower_to_segments(forward))));
  Program backward = forward;
  swap_cells(forward, 0, "0F0(blocks.0)", "0F0(blocks.1)");
  expect_first(forward, Violation::segment_order, 0, place(forward, 0, "0F0(blocks.1)"), "0F0(blocks.1)");
  swap_cells(backward, 0, "0B0(blocks.2)", "0B0(blocks.1)");
  expect_first(backward, Violation::segment_order, 0, place(backward, 0, "0B0(blocks.1)"), "0B0(blocks.1)");
}

TEST(Check, WeightBeforeInput) {
  Program program{schedule_only_tables(1, 1), 1, {{}}};
  for (Op op : {Op::forward, Op::backward_weight, Op::backward_input}) {
    list(program, 0).push_back({.op = op, .stage = 0, .microbatch = 0});
  }
  expect_first(program, Violation::weight_before_input, 0, 1, "0W0");
}

TEST(Check, UnmatchedSend) {
  Program program = sound_program();
  const std::size_t index = place(program, 0, "0SEND_F1");
  insert(program, 0, index + 1, list(program, 0)[index]);
  expect_first(program, Violation::unmatched_send, 0, index + 1, "0SEND_F1");
}

TEST(Check, UnmatchedReceive) {
  Program program = sound_program();
  removed(program, 0, place(program, 0, "0SEND_F0"));
  expect_first(program, Violation::unmatched_receive, 1, place(program, 1, "1RECV_F0"), "1RECV_F0");
}

TEST(Check, CrossedMessages) {
  Program program = bare("gpipe", 2, 2);
  swap_cells(program, 1, "1RECV_F0", "1RECV_F1");  // F1, F0 received, but F0 runs first
  swap_cells(program, 1, "1F0", "1F1");
  expect_first(program, Violation::crossed_messages, 1, 0, "1RECV_F1");
}

TEST(Check, MissingReceive) {
  Program program = sound_program();
  removed(program, 0, place(program, 0, "0RECV_B1"));
  expect_first(program, Violation::missing_receive, 0, place(program, 0, "0B1(blocks.1)"), "0B1(blocks.1)");

  // Late is as bad as never.
  Program late = bare("gpipe", 2, 1);
  swap_cells(late, 1, "1RECV_F0", "1F0");
  expect_first(late, Violation::missing_receive, 1, 0, "1F0");
}

// Two stages of one rank need no message between them, but still their order.
TEST(Check, MissingInputFromAStageOfTheSameRank) {
  Program program{schedule_only_tables(1, 2), 1, {{}}};
  for (int stage : {1, 0}) list(program, 0).push_back({.op = Op::forward, .stage = stage, .microbatch = 0});
  for (int stage : {1, 0}) list(program, 0).push_back({.op = Op::backward, .stage = stage, .microbatch = 0});
  expect_first(program, Violation::missing_receive, 0, 0, "1F0");
}

TEST(Check, SendBeforeCompute) {
  Program program = sound_program();
  move_before(program, 0, "0SEND_F0", "0F0(blocks.1)");
  expect_first(program, Violation::send_before_compute, 0, place(program, 0, "0SEND_F0"), "0SEND_F0");
  Program backward = bare("gpipe", 2, 1);
  swap_cells(backward, 1, "1SEND_B0", "1B0");
  expect_first(backward, Violation::send_before_compute, 1, 2, "1SEND_B0");
}

TEST(Check, WrongPeer) {
  Program program = bare("1f1b", 3, 2);
  const std::size_t index = place(program, 0, "0SEND_F0");
  list(program, 0)[index].peer = 2;
  expect_first(program, Violation::wrong_peer, 0, index, "0SEND_F0");
  list(program, 0)[index].peer = std::nullopt;
  expect_first(program, Violation::wrong_peer, 0, index, "0SEND_F0");

  Program last = bare("1f1b", 2, 1);
  insert(last, 1, 2, {.op = Op::send_forward, .stage = 1, .microbatch = 0, .peer = 0});
  expect_first(last, Violation::wrong_peer, 1, 2, "1SEND_F0");
}

TEST(Check, Deadlock) {
  Program program = bare("gpipe", 2, 1);
  swap_cells(program, 0, "0SEND_F0", "0RECV_B0");  // waits for an answer to what it has not sent
  expect_first(program, Violation::deadlock, 0, 1, "0RECV_B0");
  EXPECT_EQ(find_violations(program).front().message,
            "rank 0 at 0RECV_B0 waits for rank 1, rank 1 at 1RECV_F0 waits for rank 0");
}

// Each rank alone is a good order and all messages match. With one message under way per direction the all-forward
// rank cannot hand over microbatch 3 before the alternating one has had an answer. The exchange of the two together
// would let rank 0 take an answer earlier.
TEST(Check, DeadlockBetweenTwoSoundOrders) {
  Program program = bare("gpipe", 2, 4);
  program.ranks[1] = bare("1f1b", 2, 4).ranks[1];
  expect_first(program, Violation::deadlock, 0, place(program, 0, "0SEND_F3"), "0SEND_F3");
}

// Two replicas of one stage: what one gathers first the other must gather first.
TEST(Check, CollectiveOrder) {
  Program program = compiled(stage_tables(1, 3, {.lookahead = 2}), "gpipe", 1);
  program.ranks.push_back(program.ranks[0]);
  const CheckOptions options{.replica_rows = {{0, 1}}};
  EXPECT_TRUE(find_violations(program, options).empty());
  swap_cells(program, 1, "0UNSHARD(blocks.1)", "0UNSHARD(blocks.2)");
  expect_first(program, Violation::collective_order, 1, 1, "0UNSHARD(blocks.2)", options);

  Program shorter = compiled(stage_tables(1, 3, {.residency = Residency::step}), "gpipe", 1);
  shorter.ranks.push_back(compiled(stage_tables(1, 3), "gpipe", 1).ranks[0]);
  EXPECT_EQ(find_violations(shorter, options).front().violation, Violation::collective_order);
}

TEST(Check, ReducedTooEarly) {
  Program program = sound_program();
  move_before(program, 0, "0REDUCE_GRAD(blocks.1)", "0RECV_B1");
  expect_first(program, Violation::reduced_too_early, 0, place(program, 0, "0REDUCE_GRAD(blocks.1)"),
               "0REDUCE_GRAD(blocks.1)");

  // Every second microbatch, three in all: after 2 and after 3, not after 1.
  Program periodic = compiled(stage_tables(1, 1, {.residency = Residency::step, .reduce_every = 2}), "gpipe", 3);
  move_before(periodic, 0, "0REDUCE_GRAD(blocks.0)", "0B1(blocks.0)");
  expect_first(periodic, Violation::reduced_too_early, 0, place(periodic, 0, "0REDUCE_GRAD(blocks.0)"),
               "0REDUCE_GRAD(blocks.0)");
}

// A unit of two segments is whole only after the second one to add to it.
TEST(Check, ReducedBetweenTwoSegmentsOfAUnit) {
  ProgramTables tables = stage_tables(1, 2, {.residency = Residency::step, .reduce_every = 1});
  tables.segments[1].units = {0};
  tables.units.pop_back();
  Program program = compiled(tables, "gpipe", 1);
  ASSERT_TRUE(find_violations(program).empty());
  move_before(program, 0, "0REDUCE_GRAD(blocks.0)", "0B0(blocks.0)");
  expect_first(program, Violation::reduced_too_early, 0, place(program, 0, "0REDUCE_GRAD(blocks.0)"),
               "0REDUCE_GRAD(blocks.0)");
}

TEST(Check, MissingReduction) {
  Program program = sound_program();
  removed(program, 1, place(program, 1, "1REDUCE_GRAD(blocks.2)"));
  expect_first(program, Violation::missing_reduction, 1, place(program, 1, "GRAD_NORM"), "GRAD_NORM");
  list(program, 1).resize(list(program, 1).size() - 2);
  expect_first(program, Violation::missing_reduction, 1, list(program, 1).size(), "end");
}

TEST(Check, RepeatedReduction) {
  Program program = sound_program();
  const std::size_t index = place(program, 1, "1REDUCE_GRAD(blocks.2)");
  insert(program, 1, index + 1, list(program, 1)[index]);
  expect_first(program, Violation::repeated_reduction, 1, index + 1, "1REDUCE_GRAD(blocks.2)");
}

// Once for each reduction, and behind it.
TEST(Check, IdleWait) {
  const Program sound = sound_program();
  const std::size_t reduced = place(sound, 1, "1REDUCE_GRAD(blocks.2)");
  const Action wait{.op = Op::wait_reduction, .stage = 1, .unit = 2};
  Program program = sound;
  insert(program, 1, reduced + 1, wait);
  EXPECT_TRUE(find_violations(program).empty());
  insert(program, 1, reduced + 2, wait);
  expect_first(program, Violation::idle_wait, 1, reduced + 2, "1WAIT_REDUCE(blocks.2)");
  program = sound;
  insert(program, 1, reduced, wait);
  expect_first(program, Violation::idle_wait, 1, reduced, "1WAIT_REDUCE(blocks.2)");
  program = sound;
  insert(program, 1, reduced + 1, {.op = Op::wait_reduction, .stage = 1, .unit = 3});
  const bool of_other = place(sound, 1, "1REDUCE_GRAD(blocks.3)") < reduced;
  EXPECT_EQ(find_violations(program).empty(), of_other);  // blocks.3 is the later part of the stage
  EXPECT_TRUE(of_other);
  // The norm has waited for all.
  program = sound;
  insert(program, 1, place(program, 1, "GRAD_NORM") + 1, wait);
  expect_first(program, Violation::step_too_early, 1, place(program, 1, "GRAD_NORM") + 1, "1WAIT_REDUCE(blocks.2)");
}

TEST(Check, StepTooEarly) {
  Program swapped = sound_program();
  swap_cells(swapped, 0, "GRAD_NORM", "STEP");
  expect_first(swapped, Violation::step_too_early, 0, place(swapped, 0, "STEP"), "STEP");

  Program after = sound_program();
  list(after, 1).push_back(removed(after, 1, place(after, 1, "1RESHARD(blocks.2)", 2)));
  expect_first(after, Violation::step_too_early, 1, list(after, 1).size() - 1, "1RESHARD(blocks.2)");

  Program normed = sound_program();
  move_before(normed, 1, "GRAD_NORM", "1SEND_B1");
  const std::size_t index = place(normed, 1, "1SEND_B1");
  const auto findings = find_violations(normed);
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [&](const Finding& finding) {
    return finding.violation == Violation::step_too_early && finding.rank == 1 && finding.index == index;
  }));
}

// --- memory ---------------------------------------------------------------------------------------------------------

// Bytes that tell the three kinds apart: a gathered unit 1, a gradient 100, kept activations 10000.
Program weighed_program(const UnitPolicy& policy, int microbatches) {
  ProgramTables tables = stage_tables(2, 2, policy);
  for (ProgramUnit& unit : tables.units) unit.gradient_bytes = 100;
  for (ProgramSegment& segment : tables.segments) segment.activation_bytes = 10000;
  return compiled(tables, "1f1b", microbatches);
}

// Rank 0 keeps both microbatches of both segments when its first backward starts, which adds the first gradient; one
// unit is gathered then. The second segment's backward has one piece less of activations and one gradient more.
TEST(TransientPeak, AddsWhatIsAliveWhileAnActionRuns) {
  const Program program = weighed_program({.residency = Residency::reshard_after_use, .lookahead = 0}, 2);
  const TransientPeak peak = transient_peak(program, 0);
  EXPECT_EQ(peak.buckets[Bucket::unsharded_parameters], 1);
  EXPECT_EQ(peak.buckets[Bucket::unsharded_gradients], 100);
  EXPECT_EQ(peak.buckets[Bucket::activations], 4 * 10000);
  EXPECT_EQ(peak.bytes, 40101);
  EXPECT_EQ(peak.index, place(program, 0, "0B0(blocks.1)"));
}

TEST(Check, OverBudget) {
  const Program program = weighed_program({.residency = Residency::reshard_after_use, .lookahead = 0}, 2);
  EXPECT_TRUE(find_violations(program, {.memory_budget = 40101}).empty());
  expect_first(program, Violation::over_budget, 0, place(program, 0, "0B0(blocks.1)"), "0B0(blocks.1)",
               {.memory_budget = 40100});
}

// --- stage-level lists ----------------------------------------------------------------------------------------------

TEST(Check, AnOrderAloneHasNoGathers) {
  EXPECT_TRUE(find_violations(from_csv(schedule_only_tables(1, 1), "0F0,0B0\n")).empty());
}

// The lowered list merged back per stage says the same and is as sound.
TEST(Check, AMergedListIsAsSoundAsTheLoweredOne) {
  for (Residency residency : {Residency::reshard_after_use, Residency::step}) {
    const ProgramTables tables = stage_tables(3, 2, {.residency = residency, .reduce_every = 2});
    const Program merged = from_csv(tables, to_csv(compiled(tables, "1f1b", 5), Detail::stages_only));
    const auto findings = find_violations(merged);
    EXPECT_TRUE(findings.empty()) << findings.front().message << "\n" << to_csv(merged, Detail::everything);
  }
}

TEST(Grid, ShowsAllRanksAroundTheMarkedCell) {
  const Program program = bare("1f1b", 2, 4);
  EXPECT_EQ(format_grid(program, 1, 5, 1),
            "actions 5 and around\n"
            "rank  0 | ... 0RECV_B0 0B0     0F2 ...\n"
            "rank  1 | ... 1RECV_F1 >>1F1<< 1B1 ...\n");
  EXPECT_EQ(format_grid(program, 0, program.ranks[0].size(), 1),
            "actions 16 and around\n"
            "rank  0 | ... 0B3      >>end<<\n"
            "rank  1 | ... 1SEND_B3\n");
}

}  // namespace
}  // namespace weft
