// Overlapped pairs through all passes: what is printed, exchanged, gathered and checked.
#include "parallel/pipeline/program/overlap.h"

#include <gtest/gtest.h>

#include <random>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_interpreter.h"

namespace weft {
namespace {

std::string overlap_error(const ProgramTables& tables, std::string_view cell) {
  try {
    parse_cell(tables, cell);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

UserOrder without_pairs(UserOrder order) {
  for (auto& actions : order.ranks) {
    for (Action& action : actions) action.overlapped = false;
  }
  return order;
}

// dualpipev as an order that can be changed.
UserOrder dualpipev(const OrderInput& input) {
  const Program program = ordered(find_schedule("dualpipev"), input);
  UserOrder order{program.ranks, {}, input.microbatches};
  for (const ProgramStage& stage : program.stages) order.stage_ranks.push_back(stage.rank);
  return order;
}

// --- text -----------------------------------------------------------------------------------------------------------

TEST(OverlapCells, APairIsTwoMarkedActions) {
  const ProgramTables tables = stage_tables(2, 2);
  const std::vector<Action> pair = {{.op = Op::forward, .overlapped = true, .stage = 0, .microbatch = 3},
                                    {.op = Op::backward_input, .overlapped = true, .stage = 1, .microbatch = 1}};
  EXPECT_EQ(parse_cell(tables, "(0F3;1I1)OVERLAP_F_B"), pair);
  EXPECT_EQ(parse_cell(tables, "( 0F3; 1I1 )OVERLAP_F_B"), pair);
  const Program program{tables, 4, {}};
  EXPECT_EQ(format_actions(program, pair, ","), "(0F3;1I1)OVERLAP_F_B");
  EXPECT_EQ(format_action(program, pair[0]), "(0F3)OVERLAP_F_B");
  EXPECT_EQ(parse_action(tables, "(0F3)OVERLAP_F_B"), pair[0]);
  EXPECT_EQ(format_actions(program, {pair[0], {.op = Op::unshard, .stage = 1, .unit = 3}, pair[1]}, ","),
            "(0F3)OVERLAP_F_B,1UNSHARD(blocks.3),(1I1)OVERLAP_F_B");
}

TEST(OverlapCells, MalformedOnesAreRefusedWithTheFault) {
  const ProgramTables tables = stage_tables(2, 2);
  const std::pair<const char*, const char*> all[] = {
      {"(0F3;1B1)", "an overlapped pair is written (0F3;3B1)OVERLAP_F_B"},
      {"(0F3;1B1)OVERLAP_F_Bx", "an overlapped pair is written"},
      {"(", "an overlapped pair is written"},
      {")OVERLAP_F_B", "expected a kind such as F"},
      {"()OVERLAP_F_B", "it is empty"},
      {"(0F3;)OVERLAP_F_B", "it is empty"},
      {"(0F3;1B1;0F2)OVERLAP_F_B", "\";0F2\" is left over"},
      {"(0F3;1X1)OVERLAP_F_B", "kind \"X\" is unknown"},
      {"(0F3;1W1)OVERLAP_F_B", "W cannot be overlapped"},
      {"(0SEND_F3;1B1)OVERLAP_F_B", "SEND_F cannot be overlapped"},
      {"(1B1;0F3)OVERLAP_F_B", "a forward and then a backward of another microbatch"},
      {"(0F3;1F1)OVERLAP_F_B", "a forward and then a backward of another microbatch"},
      {"(0F3;1B3)OVERLAP_F_B", "a forward and then a backward of another microbatch"},
      {"(0F3;7B1)OVERLAP_F_B", "stage 7 does not exist"},
      {"0F3;1B1", "\";1B1\" is left over"},
  };
  for (const auto& [cell, fault] : all) {
    const std::string message = overlap_error(tables, cell);
    EXPECT_NE(message.find(fault), std::string::npos) << cell << ": " << message;
  }
  EXPECT_THROW(parse_action(tables, "(0F3;1B1)OVERLAP_F_B"), Error);
}

void expect_round_trip(const Program& program, Detail detail) {
  const std::string text = to_csv(program, detail);
  EXPECT_EQ(to_csv(from_csv(program, text), Detail::everything), text);
  Program merged = program;
  for (auto& actions : merged.ranks) actions = at_detail(actions, detail);
  // Merged per stage, a gather has the bytes of all units gathered in its place.
  if (detail != Detail::stages_only) {
    EXPECT_EQ(from_csv(program, text).ranks, merged.ranks) << text;
  }
  if (detail == Detail::compute_only) return;
  // A merged list is as sound as the lowered one: the stage of either half is gathered in front of the pair.
  const auto findings = find_violations(merged);
  EXPECT_TRUE(findings.empty()) << findings.front().message << "\n" << text;
}

TEST(OverlapText, SurvivesTheRoundTripAtEveryDetail) {
  for (const OrderInput& input : inputs_of(find_schedule("dualpipev"), 4, 2, 10)) {
    for (Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::step}) {
      for (int lookahead : {0, 1}) {
        const UnitPolicy policy{.residency = residency, .lookahead = lookahead, .reduce_every = 2};
        const Program program = compiled(find_schedule("dualpipev"), input, 3, policy);
        for (Detail detail : {Detail::everything, Detail::stages_only, Detail::compute_only}) {
          expect_round_trip(program, detail);
        }
      }
    }
  }
}

// --- passes ---------------------------------------------------------------------------------------------------------

// Stages 0 and 3 on rank 0, 1 and 2 on rank 1.
constexpr std::string_view small_pairs =
    "0F0,0F1,3F0,3B0,(3F1;0B0)OVERLAP_F_B,3B1,0B1\n"
    "1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n";

TEST(OverlapExchange, BothReceivesStandBeforeThePairAndBothSendsBehindIt) {
  const UserOrder order = order_from_csv("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  const Program program = compile(schedule_only_tables(order), order);
  EXPECT_EQ(
      format_actions(program, program.ranks[0], " "),
      "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 (0F2;0B0)OVERLAP_F_B 0SEND_F2 0RECV_B1 0B1 0RECV_B2 0B2 GRAD_NORM STEP");
  const UserOrder v = order_from_csv(small_pairs);
  const Program turned = compile(schedule_only_tables(v), v);
  EXPECT_EQ(format_actions(turned, turned.ranks[0], " "),
            "0F0 0SEND_F0 0F1 0SEND_F1 3RECV_F0 3F0 3B0 3SEND_B0 3RECV_F1 0RECV_B0 (3F1;0B0)OVERLAP_F_B 3B1 3SEND_B1 "
            "0RECV_B1 0B1 GRAD_NORM STEP");
}

std::string lowered_pair(std::size_t forward_segments, std::size_t backward_segments) {
  Program program{schedule_only_tables(1, 2), 2, {{}}};
  for (std::size_t stage = 0; stage < 2; ++stage) {
    for (std::size_t i = 0; i < (stage == 0 ? forward_segments : backward_segments); ++i) {
      program.stages[stage].segments.push_back(static_cast<int>(program.segments.size()));
      program.segments.push_back({.name = fmt::format("{}", i), .stage = static_cast<int>(stage)});
    }
  }
  program.ranks[0] = {{.op = Op::forward, .overlapped = true, .stage = 0, .microbatch = 1},
                      {.op = Op::backward, .overlapped = true, .stage = 1, .microbatch = 0}};
  program = alternate_pairs(lower_to_segments(program));
  std::string text;
  for (const Action& action : program.ranks[0]) {
    EXPECT_TRUE(action.overlapped);
    text += fmt::format("{}{}", name_of(action.op),
                        action.segment ? program.segments[static_cast<std::size_t>(*action.segment)].name : "");
  }
  return text;
}

// The forward begins, the backward ends; in between the shorter one is spread over the longer.
TEST(OverlapSegments, TakeTurns) {
  EXPECT_EQ(lowered_pair(1, 1), "F0B0");
  EXPECT_EQ(lowered_pair(3, 3), "F0B2F1B1F2B0");
  EXPECT_EQ(lowered_pair(2, 4), "F0B3B2F1B1B0");
  EXPECT_EQ(lowered_pair(4, 2), "F0F1B1F2F3B0");
  EXPECT_EQ(lowered_pair(1, 3), "F0B2B1B0");
  EXPECT_EQ(lowered_pair(3, 1), "F0F1F2B0");
  EXPECT_EQ(lowered_pair(5, 2), "F0F1F2B1F3F4B0");
  EXPECT_EQ(lowered_pair(0, 2), "FB1B0");
}

// Stages of one to five segments in blocks of one to three that share a unit. Now and then a segment reads none or
// reads nothing backward.
ProgramTables random_tables(const std::vector<int>& stage_ranks, const UnitPolicy& policy, std::mt19937& engine) {
  ProgramTables tables;
  for (std::size_t stage = 0; stage < stage_ranks.size(); ++stage) {
    const int number = static_cast<int>(stage);
    ProgramStage entry{.rank = stage_ranks[stage]};
    const std::size_t segments = 1 + engine() % 5;
    while (entry.segments.size() < segments) {
      const int unit = static_cast<int>(tables.units.size());
      tables.units.push_back({.name = fmt::format("u{}", unit),
                              .stage = number,
                              .replicated = engine() % 9 == 0,
                              .unsharded_bytes = 1,
                              .policy = policy});
      for (std::size_t i = 0; i < 1 + engine() % 3; ++i) {
        entry.segments.push_back(static_cast<int>(tables.segments.size()));
        tables.segments.push_back({.name = fmt::format("s{}", tables.segments.size()),
                                   .stage = number,
                                   .units = {unit},
                                   .reads_weights_backward = engine() % 6 != 0});
      }
    }
    tables.stages.push_back(entry);
  }
  return tables;
}

// Without the rule for partners the turns would drop and gather each block again at every segment.
TEST(OverlapResidency, GathersNoMoreThanTheSameOrderWithoutPairs) {
  std::mt19937 engine(5);
  int equal = 0, fewer = 0;
  for (const OrderInput& input : inputs_of(find_schedule("dualpipev"), 3, 2, 9)) {
    const UserOrder order = dualpipev(input);
    for (Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::window,
                                Residency::step, Residency::keep_after_forward, Residency::keep_after_backward}) {
      // Without lookahead. With it fewer are gathered either way, those that would be where they are dropped.
      ProgramTables tables =
          random_tables(order.stage_ranks, {.residency = residency, .window_stages = 1, .lookahead = 0}, engine);
      const Program plain = compile(tables, without_pairs(order));
      for (int lookahead : {0, 1, 2}) {
        for (ProgramUnit& unit : tables.units) unit.policy.lookahead = lookahead;
        const Program paired = compile(tables, order);
        EXPECT_TRUE(find_violations(paired).empty());
        EXPECT_EQ(fault_when_run(paired), "");
        for (int rank = 0; rank < input.ranks; ++rank) {
          const int gathers = count_of(paired, rank, Op::unshard), before = count_of(plain, rank, Op::unshard);
          EXPECT_LE(gathers, before) << name_of(residency) << ", lookahead " << lookahead << ", rank " << rank;
          ++(gathers == before ? equal : fewer);
          for (Op op : {Op::reduce_gradient, Op::reshard}) {
            EXPECT_EQ(count_of(paired, rank, op), op == Op::reshard ? gathers : count_of(plain, rank, op));
          }
        }
      }
    }
  }
  EXPECT_GT(equal, 100);
}

// 1F1B with every forward and backward that stand side by side overlapped. They are of one stage, so that the segments
// meet in the middle. The unit there is gathered once for both, as the one at the turn is without overlap.
TEST(OverlapResidency, APairOfOneStageMeetsInTheMiddle) {
  const UserOrder order = order_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,(0F2;0B1)OVERLAP_F_B,0B2\n");
  for (int units : {2, 3, 4, 5}) {
    const ProgramTables tables = stage_tables(1, units, {.residency = Residency::reshard_after_use, .lookahead = 0});
    const Program paired = compile(tables, order);
    EXPECT_TRUE(find_violations(paired).empty());
    EXPECT_EQ(count_of(paired, 0, Op::unshard), count_of(compile(tables, without_pairs(order)), 0, Op::unshard));
  }
}

// By hand: one microbatch forward beside the backward of another, two segments each; a segment keeps 10 bytes, a unit
// takes 1 gathered. At the last backward segment of the pair both forwards are kept and one backward is gone.
TEST(OverlapPeak, CountsBothHalves) {
  ProgramTables tables = stage_tables(1, 2, {.residency = Residency::step});
  for (ProgramSegment& segment : tables.segments) segment.activation_bytes = 10;
  const UserOrder order = order_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  const Program program = compile(tables, order);
  EXPECT_EQ(format_actions(program, at_detail(program.ranks[0], Detail::compute_only), " "),
            "0F0 (0F1;0B0)OVERLAP_F_B 0B1");
  // F0: 20; F1's first segment: 30; B0's last: still 30, then 20; F1's second: 30.
  EXPECT_EQ(transient_peak(program, 0).buckets[Bucket::activations], 30);
  EXPECT_EQ(transient_peak(compile(tables, without_pairs(order)), 0).buckets[Bucket::activations], 40);
}

// --- checks ---------------------------------------------------------------------------------------------------------

TEST(OverlapCheck, AMarkWithoutItsPartnerIsAFinding) {
  const UserOrder order = order_from_csv(small_pairs);
  for (bool lowered : {false, true}) {
    ProgramTables tables = schedule_only_tables(order);
    if (lowered) {
      std::mt19937 engine(1);
      tables = random_tables(order.stage_ranks, {}, engine);
    }
    const Program sound = compile(tables, order);
    EXPECT_TRUE(find_violations(sound).empty());
    for (std::size_t i = 0; i < sound.ranks[0].size(); ++i) {
      if (!is_compute(sound.ranks[0][i].op)) continue;
      Program broken = sound;
      broken.ranks[0][i].overlapped = !broken.ranks[0][i].overlapped;
      const auto findings = find_violations(broken);
      ASSERT_FALSE(findings.empty()) << "action " << i;
      EXPECT_EQ(findings.front().violation, Violation::broken_pair);
    }
  }
}

// Rank 0 is through the forward of microbatch 2 after 5 units, but rank 1 gets it when the pair is over, after 7.
TEST(OverlapTimeline, APairBeginsAndEndsTogether) {
  const UserOrder order = order_from_csv("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_EQ(format_timeline({schedule_only_tables(order), 3, order.ranks}),
            "pp 0  | 0  1        2 [ 0  ][ 1  ]   [ 2  ]|\n"
            "pp 1  |    0 [ 0  ] 1 [ 1  ] 2 [ 2  ]|\n");
}

}  // namespace
}  // namespace weft
