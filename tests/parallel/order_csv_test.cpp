// A user's own schedule: what is read, and that everything wrong is named at once with its place.
#include "parallel/pipeline/passes/order_csv.h"

#include <gtest/gtest.h>

#include "parallel/pipeline/check/check.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_interpreter.h"

namespace weft {
namespace {

template <typename Function>
std::string csv_error(Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}
std::string fault_of(std::string_view text) {
  return csv_error([&] { order_from_csv(text); });
}

// What every schedule prints reads back as the same program, placement included.
TEST(OrderCsv, TheOrdersOfAllSchedulesReadBack) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 4, 3, 9)) {
      const Program program = compiled(schedule, input, 2);
      const UserOrder order = order_from_csv(to_csv(program, Detail::compute_only));
      EXPECT_EQ(order.microbatches, input.microbatches);
      EXPECT_EQ(compile(program, order), program) << described(schedule, input);
    }
  }
}

TEST(OrderCsv, TakesIdleCellsCommentsBlanksAndLineEndsOfOtherSystems) {
  const UserOrder order = order_from_csv("# mine\r\n0F0, 0F1 ,,0I0,0B1,\t0W0\r\n , 1F0,1B0,1F1,1B1\r\n\r\n# end");
  EXPECT_EQ(to_csv({schedule_only_tables(order), order.microbatches, order.ranks}, Detail::everything),
            "0F0,0F1,0I0,0B1,0W0\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(order.microbatches, 2);
  EXPECT_EQ(order.stage_ranks, (std::vector{0, 1}));
}

// Any rank may run any stages, and as many as it likes.
TEST(OrderCsv, PlacementFollowsFromTheLines) {
  const UserOrder order = order_from_csv("2F0,2B0\n0F0,1F0,3F0,3B0,1B0,0B0\n");
  EXPECT_EQ(order.stage_ranks, (std::vector{1, 1, 0, 1}));
  const Program program = compile(schedule_only_tables(order), order);
  EXPECT_EQ(cells(program, 1), "0F0 1F0 1SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 1RECV_B0 1B0 0B0 GRAD_NORM STEP");
  EXPECT_EQ(fault_when_run(program), "");
}

TEST(OrderCsv, CellsThatCannotBeReadAreNamedWithTheirPlace) {
  EXPECT_EQ(fault_of("0F0,0BW0\n1F0, 1F0x ,1B0\n"),
            "line 1, column 5: cell \"0BW0\": kind \"BW\" is unknown; the kinds of an order are F, B, I, W and "
            "OVERLAP_F_B (PyTorch once wrote BW for B, and B for I)\n"
            "line 2, column 6: cell \"1F0x\": \"x\" is left over behind the action");
  EXPECT_EQ(fault_of("0F0,0X0\n1F0\n"),
            "line 1, column 5: cell \"0X0\": kind \"X\" is unknown; the kinds of an order are "
            "F, B, I, W and OVERLAP_F_B")
      << "0B0 may be what 0X0 should be";
  EXPECT_EQ(fault_of("0F0,0B0,65536F0,0F65536\n"),
            "line 1, column 9: cell \"65536F0\": stages and microbatches are numbered from 0 to 65535\n"
            "line 1, column 17: cell \"0F65536\": stages and microbatches are numbered from 0 to 65535");
  EXPECT_EQ(fault_of("0F99999999999,0B0\n"),
            "line 1, column 1: cell \"0F99999999999\": microbatch 99999999999 is too large");
  EXPECT_EQ(fault_of("0F0(blocks.0),0B0\n"),
            "line 1, column 1: cell \"0F0(blocks.0)\": an order speaks of whole stages; leave the name in parentheses "
            "out");
  EXPECT_EQ(fault_of("0F0,(0F1)OVERLAP_F_B,0B0,0B1\n"),
            "line 1, column 5: cell \"(0F1)OVERLAP_F_B\": an overlapped pair is two actions, as in "
            "(0F3;3B1)OVERLAP_F_B");
}

// PyTorch's form with communication: its gathers and messages follow other rules than weft's.
TEST(OrderCsv, WhatWeftAddsItselfIsRefusedOnce) {
  EXPECT_EQ(fault_of("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n1RECV_F0,1F0,1B0,1SEND_B0\n"),
            "line 1, column 1: cell \"0UNSHARD\": gathers, reductions, messages and R are added by weft; give the "
            "compute-only form, with F, B, I, W and OVERLAP_F_B alone (7 other cells here)");
}

TEST(OrderCsv, LinesWithoutCellsAreRanksThatRunNothing) {
  EXPECT_EQ(fault_of(""), "line 1, column 1: there is no rank; a schedule has one line of cells for each");
  EXPECT_EQ(fault_of("0F0,0B0\n\n1F0,1B0\n,,\n"),
            "line 2, column 1: a line without cells is a rank that runs no stage, and every rank does\n"
            "line 4, column 1: a line without cells is a rank that runs no stage, and every rank does");
}

TEST(OrderCsv, MissingActionsAreNamedWithTheRankTheyBelongOn) {
  EXPECT_EQ(fault_of("0F0,0F1,0B0\n1F0,1I0,1F1,1B1\n"),
            "line 1, column 12: rank 0 ends without 0B1\n"
            "line 2, column 16: rank 1 ends without 1W0");
  EXPECT_EQ(fault_of("0F0,0B0,0W1\n"), "line 1, column 12: rank 0 ends without 0F1 and 0I1");
  EXPECT_EQ(fault_of("0F0,0B0,0F2,0B2\n2F0,2B0,2F2,2B2\n"),
            "line 1, column 9: cell \"0F2\": there is a microbatch 2 but no microbatch 1; they are numbered without "
            "gaps\n"
            "line 2, column 1: cell \"2F0\": there is a stage 2 but no stage 1; they are numbered without gaps");
}

TEST(OrderCsv, ActionsThatContradictEachOtherAreNamedTogether) {
  EXPECT_EQ(fault_of("0F0,0F0,0B0\n0F1,1F0,1B0,1F1,1B1,0B1\n"),
            "line 1, column 5: cell \"0F0\": it was run before, at 0F0 (line 1, column 1)\n"
            "line 2, column 1: cell \"0F1\": stage 0 runs on rank 0 already, with 0F0 (line 1, column 1); a stage "
            "stands on one rank");
  EXPECT_EQ(fault_of("0B0,0F0,0F1,0W1,0I1,0F2,0B2,0W2\n"),
            "line 1, column 1: cell \"0B0\": it comes before its forward, 0F0 (line 1, column 5)\n"
            "line 1, column 13: cell \"0W1\": it comes before its input gradient, 0I1 (line 1, column 17)\n"
            "line 1, column 29: cell \"0W2\": it stands beside 0B2 (line 1, column 25): a backward is whole (B) or two "
            "halves (I, then W). Older files of PyTorch write B for I and BW for B");
}

TEST(OrderCsv, ACircleOfRanksIsNamedCellByCell) {
  // Rank 0 wants the gradient of microbatch 0 before it sends microbatch 1, which rank 1 wants first.
  EXPECT_EQ(fault_of("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"),
            "line 1, column 5: cell \"0B0\": deadlock: rank 0 at 0B0 (line 1, column 5) waits for 1B0 of rank 1, rank "
            "1 at 1F1 (line 2, column 1) waits for 0F1 of rank 0");
  // By itself each half of the pair could run; together they wait for each other through rank 1.
  EXPECT_EQ(fault_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n"),
            "line 1, column 10: cell \"0B0\": deadlock: rank 0 at 0B0 (line 1, column 10) waits for 1B0 of rank 1, "
            "rank 1 at 1F1 (line 2, column 6) waits for 0F1 of rank 0");
  EXPECT_EQ(fault_of("1F0,0F0,1B0,0B0\n"),
            "line 1, column 1: cell \"1F0\": deadlock: rank 0 at 1F0 (line 1, column 1) waits for 0F0 of rank 0");
}

TEST(OrderCsv, ManyFaultsAreCutShort) {
  std::string text = "0F0,0B0";
  for (int i = 0; i < 50; ++i) text += ",0F0";
  const std::string message = fault_of(text);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 20) << message;
  EXPECT_TRUE(message.ends_with("\nand more")) << message;
}

TEST(OrderCsv, OtherCountsAndOtherTablesAreRefused) {
  const UserOrder order = order_from_csv("2F0,2B0\n0F0,1F0,1B0,0B0\n");
  EXPECT_NO_THROW(require_same_counts(order, {}));
  EXPECT_NO_THROW(require_same_counts(order, {.ranks = 2, .microbatches = 1}));
  EXPECT_EQ(csv_error([&] { require_same_counts(order, {.ranks = 4, .chunks = 2, .microbatches = 8}); }),
            "the schedule's file sets the counts itself: 4 ranks asked for, but the file has 2 lines; 8 microbatches "
            "asked for, but the file runs 1; 2 stages per rank asked for, but rank 0 runs 1");
  EXPECT_EQ(csv_error([&] { compile(schedule_only_tables(2, 2), order); }),
            "the schedule's file of 2 ranks = 3 stages, but the layout has 2 stages");
  EXPECT_EQ(csv_error([&] { compile(schedule_only_tables(2, 3), order); }),
            "the schedule's file runs stage 0 on rank 1, but the layout puts it on rank 0");
}

}  // namespace
}  // namespace weft
