#include "parallel/pipeline/orders/orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "parallel/pipeline/check/check.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/order_figures.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

std::string order_csv(std::string_view schedule, int ranks, int microbatches) {
  const OrderInput input{.ranks = ranks, .microbatches = microbatches};
  return to_csv({schedule_only_tables(ranks, ranks), microbatches, find_schedule(schedule).order(input)},
                Detail::everything);
}

std::string message_of(std::string_view schedule, const OrderInput& input) {
  try {
    find_schedule(schedule).order(input);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

// PyTorch's own list for Schedule1F1B, 4 ranks, 8 microbatches.
TEST(Orders, OneForwardOneBackwardIsThatOfPyTorch) {
  EXPECT_EQ(order_csv("1f1b", 4, 8),
            "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\n"
            "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\n"
            "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
            "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\n");
}

// PyTorch's own list for ScheduleGPipe, 2 ranks, 4 microbatches.
TEST(Orders, GPipeIsThatOfPyTorch) {
  EXPECT_EQ(order_csv("gpipe", 2, 4),
            "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"
            "1F0,1F1,1F2,1F3,1B0,1B1,1B2,1B3\n");
}

// By hand: as many microbatches as ranks, so that rank 0 is GPipe and the last rank alternates.
TEST(Orders, OneForwardOneBackwardByHand) {
  EXPECT_EQ(order_csv("1f1b", 4, 4),
            "0F0,0F1,0F2,0F3,0B0,0B1,0B2,0B3\n"
            "1F0,1F1,1F2,1B0,1F3,1B1,1B2,1B3\n"
            "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2B3\n"
            "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3\n");
}

// Fewer microbatches than ranks: the warm-up is all there is.
TEST(Orders, FewerMicrobatchesThanRanks) {
  EXPECT_EQ(order_csv("1f1b", 3, 1), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  EXPECT_EQ(order_csv("1f1b", 4, 2), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n3F0,3B0,3F1,3B1\n");
}

// An activation lives from its forward to its backward. 1F1B has run one forward more than the warm-up when its first
// backward comes, and never more. That is min(P - 1 - r, m) + 1 where a forward is left for it, hence min(P - r, m).
TEST(Orders, MicrobatchesInFlight) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int microbatches = 1; microbatches <= 16; ++microbatches) {
      const OrderInput input{.ranks = ranks, .microbatches = microbatches};
      const auto alternating = chunks_in_flight("1f1b", input), all = chunks_in_flight("gpipe", input);
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(alternating[rank], std::min(ranks - rank, microbatches))
            << ranks << " ranks, " << microbatches << " microbatches, rank " << rank;
        EXPECT_EQ(all[rank], microbatches);
      }
    }
  }
}

// Every count of a box is either ordered or refused, as the rule of each schedule says.
TEST(Orders, RefuseWhatTheyCannotOrder) {
  for (const Schedule& schedule : schedules()) {
    for (OrderInput input; input.ranks <= 5; ++input.ranks) {
      for (input.chunks = 1; input.chunks <= 4; ++input.chunks) {
        for (input.microbatches = 1; input.microbatches <= 16; ++input.microbatches) {
          EXPECT_EQ(message_of(schedule.name, input) == "accepted", can_order(schedule.name, input))
              << described(schedule, input);
        }
      }
    }
    EXPECT_NE(message_of(schedule.name, {.ranks = 0, .microbatches = 4}).find("0 ranks"), std::string::npos);
    EXPECT_NE(message_of(schedule.name, {.ranks = 2, .microbatches = 0}).find("0 microbatches"), std::string::npos);
    EXPECT_NE(message_of(schedule.name, {.ranks = 2, .chunks = 0, .microbatches = 1}).find("0 chunks"),
              std::string::npos);
  }
}

TEST(Orders, PartBackwardsWhereTheTableSaysSo) {
  for (const Schedule& schedule : schedules()) {
    bool parts = false;
    for (const OrderInput& input : inputs_of(schedule, 6, 3, 14)) {
      for (const std::vector<Action>& actions : schedule.order(input)) {
        parts |= std::ranges::find(actions, Op::backward_weight, &Action::op) != actions.end();
      }
    }
    EXPECT_EQ(parts, schedule.parts) << schedule.name;
  }
}

// By count, before any of it is listed.
TEST(Orders, TooManyActionsAreRefused) {
  for (const Schedule& schedule : schedules()) {
    const auto refused = [&](int ranks, int microbatches) -> std::string {
      try {
        schedule.order({.ranks = ranks, .chunks = schedule.least_chunks, .microbatches = microbatches});
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::request);
        return error.what();
      }
      return "accepted";
    };
    EXPECT_EQ(
        refused(100'000, 100'000),
        fmt::format("schedule {} on 100000 ranks with {} chunks and 100000 microbatches has {} actions; a program "
                    "has at most 32000000",
                    schedule.name, schedule.least_chunks, 60'000'000'000 * schedule.least_chunks - 400'000));
    EXPECT_NE(refused(2'147'483'647, 2'147'483'647).find("a program has at most"), std::string::npos);
  }
}

// Where only the number of microbatches is wrong, the refusal ends with the nearest right numbers. They are one below,
// where there is one, and one above, with no right number in between.
TEST(Orders, AWrongNumberOfMicrobatchesIsAnsweredWithTheNearestRightOnes) {
  std::map<std::string_view, int> refused;
  for (const Schedule& schedule : schedules()) {
    for (OrderInput input; input.ranks <= 5; ++input.ranks) {
      for (input.chunks = schedule.least_chunks; input.chunks <= 3; ++input.chunks) {
        for (int group : {0, 5, 7}) {
          input.microbatch_group = group;
          const auto right = [&](int microbatches) {
            OrderInput other = input;
            other.microbatches = microbatches;
            return can_order(schedule.name, other);
          };
          if (!right(840)) continue;  // something else is wrong as well
          for (input.microbatches = 1; input.microbatches <= 16; ++input.microbatches) {
            if (right(input.microbatches)) continue;
            ++refused[schedule.name];
            int below = input.microbatches, above = input.microbatches;
            while (below > 0 && !right(below)) --below;
            while (!right(above)) ++above;
            const std::string message = message_of(schedule.name, input);
            const bool group_decides = group > input.microbatches && input.microbatches >= input.ranks;
            const std::string advice = group_decides ? fmt::format("; set microbatch_group = {}, or microbatches = {}",
                                                                   input.microbatches, above)
                                       : below > 0   ? fmt::format("; set microbatches = {} or {}", below, above)
                                                     : fmt::format("; set microbatches = {}", above);
            EXPECT_TRUE(message.ends_with(advice)) << described(schedule, input) << ": " << message;
          }
        }
      }
    }
  }
  // All others run any number.
  EXPECT_EQ(refused.size(), 4u);
  for (const char* schedule : {"interleaved", "zb1p", "dualpipev", "combined_1f1b"})
    EXPECT_GT(refused[schedule], 10) << schedule;
}

TEST(Orders, AWrongNumberOfChunksIsAnsweredWithTheRightOne) {
  EXPECT_EQ(message_of("1f1b", {.ranks = 2, .chunks = 2, .microbatches = 4}),
            "schedule 1f1b runs one stage per rank, not 2; set chunks = 1 or choose one of: interleaved, looped_bfs, "
            "zb1p, zbv, v_half, v_min, dualpipev, combined_1f1b");
  EXPECT_EQ(message_of("zbv", {.ranks = 2, .chunks = 3, .microbatches = 4}),
            "schedule zbv runs 2 stages per rank, not 3; set chunks = 2 or choose one of: interleaved, looped_bfs, "
            "zb1p, combined_1f1b");
}

TEST(Orders, GroupsOfMicrobatchesAreRefusedWhereThereAreNone) {
  EXPECT_EQ(message_of("1f1b", {.ranks = 2, .microbatches = 4, .microbatch_group = 2}),
            "schedule 1f1b takes no groups of microbatches; leave microbatch_group out");
}

// Each stage runs every microbatch forward once, and backward once: whole, or as I and then W. A stage adds up its
// weight gradients in one order on whatever rank it stands: microbatches ascending. Only looped_bfs, which comes back
// the way it went, descends.
TEST(Orders, EveryMicrobatchRunsOnceAndAddsUpInOneOrder) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 6, 3, 14)) {
      const auto ranks = schedule.order(input);
      ASSERT_EQ(ranks.size(), static_cast<std::size_t>(input.ranks));
      std::map<std::pair<int, int>, std::string> done;  // (stage, microbatch) -> kinds
      std::map<int, std::vector<int>> added;            // stage -> microbatches in the order of their weight gradients
      for (const auto& actions : ranks) {
        for (const Action& action : actions) {
          done[{*action.stage, *action.microbatch}] += name_of(action.op);
          if (makes_weight_gradient(action.op)) added[*action.stage].push_back(*action.microbatch);
        }
      }
      EXPECT_EQ(static_cast<int>(done.size()), input.ranks * input.chunks * input.microbatches);
      for (const auto& [what, kinds] : done) {
        EXPECT_TRUE(kinds == "FB" || kinds == "FIW") << described(schedule, input) << ", stage " << what.first
                                                     << ", microbatch " << what.second << ": " << kinds;
      }
      for (auto& [stage, microbatches] : added) {
        if (descends(schedule.name)) std::reverse(microbatches.begin(), microbatches.end());
        EXPECT_TRUE(std::is_sorted(microbatches.begin(), microbatches.end()))
            << described(schedule, input) << ", stage " << stage;
      }
    }
  }
}

TEST(Orders, AnUnknownScheduleIsAnsweredWithTheKnownOnes) {
  try {
    find_schedule("1F1B");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(),
                 "schedule \"1F1B\" is unknown; the schedules are gpipe, 1f1b, interleaved, looped_bfs, zb_h1, zb1p, "
                 "zbv, v_half, v_min, dualpipev, combined_1f1b; a schedule of your own is the path of a .csv file");
  }
}

// The two directions of a placement, against each other.
TEST(Orders, APlacementGivesEveryStageOneRank) {
  for (Placement placement : {Placement::looped, Placement::v}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (int rank = 0; rank < ranks; ++rank) {
        for (int chunk = 0; chunk < 4; ++chunk) {
          const int stage = stage_of(placement, ranks, rank, chunk);
          EXPECT_EQ(stage / ranks, chunk);
          EXPECT_EQ(rank_of(placement, ranks, stage), rank);
        }
      }
    }
  }
}

TEST(Orders, BareTablesDealStagesInTurn) {
  const ProgramTables tables = schedule_only_tables(2, 4);
  ASSERT_EQ(tables.stages.size(), 4u);
  for (int stage = 0; stage < 4; ++stage) EXPECT_EQ(tables.stages[static_cast<std::size_t>(stage)].rank, stage % 2);
  const ProgramTables folded = schedule_only_tables(3, 9, Placement::v);
  const int ranks[] = {0, 1, 2, 2, 1, 0, 0, 1, 2};
  for (int stage = 0; stage < 9; ++stage) EXPECT_EQ(folded.stages[static_cast<std::size_t>(stage)].rank, ranks[stage]);
  EXPECT_THROW(schedule_only_tables(0, 1), Error);
  EXPECT_THROW(schedule_only_tables(3, 2), Error);
}

}  // namespace
}  // namespace weft
