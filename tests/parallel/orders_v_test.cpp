// The orders whose chunks stand as a V: up the ranks and down again.
#include "parallel/runtime/error.h"
#include "tests/parallel/order_figures.h"

namespace weft {
namespace {

std::vector<OrderInput> v_inputs(std::string_view schedule, int ranks, int microbatches) {
  return inputs_of(find_schedule(schedule), ranks, 2, microbatches);
}

// --- zbv ------------------------------------------------------------------------------------------------------------

// By hand from the figure of Qi et al. 2024. Rank 0 runs 2 P - 1 = 3 forwards ahead, then one F of chunk 1 with its
// whole backward for each rank. Rank 1 runs one ahead, then the microbatch that turned at once.
TEST(Zbv, ByHand) {
  EXPECT_EQ(order_of("zbv", {.ranks = 2, .chunks = 2, .microbatches = 4}),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,1I3,1W2,2W3,1W3\n");
}

// (P - 1) f / 2 with f = b = w, that is P - 1 forwards of a chunk, once there are 2 P - 1 microbatches to fill the
// pipeline. Every rank keeps 2 P chunks.
TEST(Zbv, BubbleAndActivationsAreThoseOfTheFormulas) {
  for (const OrderInput& input : v_inputs("zbv", 8, 32)) {
    if (input.microbatches < 2 * input.ranks - 1) continue;
    EXPECT_EQ(bubble_of("zbv", input), input.ranks - 1) << described(find_schedule("zbv"), input);
    for (int peak : chunks_in_flight("zbv", input)) EXPECT_EQ(peak, 2 * input.ranks);
  }
}

// One microbatch has no other to overlap with. It passes 2 P chunks forward and 2 P back, and only the last weight
// gradient of rank 0 is still to come. 3 chunks x 2 of that are work of a rank.
TEST(Zbv, OneMicrobatchGoesThereAndBack) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    EXPECT_EQ(bubble_of("zbv", {.ranks = ranks, .chunks = 2, .microbatches = 1}), 4 * (ranks - 1));
  }
}

// From 2 P microbatches on, of 4 M U uses reshard_after_use saves one wherever two uses of a unit meet. In the steady
// state they meet at M - P turns from F to I in chunk 1 and at M - 2 P + r + 1 in chunk 0. Before them they meet at
// P - r in chunk 1, which makes 2 (M - P) + 1 in all. The unit with which an I ends and the F after it begins stays
// over the W between them too, since W reads no parameters. That happens P - r - 1 times on the way in. By visit U
// gathers each for 2 (M - P) + 3 + 4 r visits.
TEST(Zbv, GathersFollowTheClosedFormulas) {
  for (int ranks : {2, 3, 4, 6}) {
    for (int microbatches : {2 * ranks, 2 * ranks + 1, 3 * ranks, 4 * ranks}) {
      for (int units : {2, 4}) {
        const OrderInput input{.ranks = ranks, .chunks = 2, .microbatches = microbatches};
        const auto reshard_after_use = gathers_of("zbv", input, units, Residency::reshard_after_use);
        const auto visits = gathers_of("zbv", input, units, Residency::while_on_stage);
        const auto kept = gathers_of("zbv", input, units, Residency::step);
        for (int rank = 0; rank < ranks; ++rank) {
          const auto at = static_cast<std::size_t>(rank);
          EXPECT_EQ(reshard_after_use[at],
                    4 * microbatches * units - (2 * (microbatches - ranks) + 1) - (ranks - 1 - rank));
          EXPECT_EQ(visits[at], units * (2 * (microbatches - ranks) + 3 + 4 * rank));
          EXPECT_EQ(kept[at], 2 * units);
        }
      }
    }
  }
  const OrderInput published{.ranks = 4, .chunks = 2, .microbatches = 16};
  EXPECT_EQ(gathers_of("zbv", published, 4, Residency::reshard_after_use), (std::vector{228, 229, 230, 231}));
  EXPECT_EQ(gathers_of("zbv", published, 4, Residency::while_on_stage), (std::vector{108, 124, 140, 156}));
}

// --- v_half, v_min --------------------------------------------------------------------------------------------------

// The published figures, with f = b = w = 1 of a whole rank, are 2.5 and 8.5 for 4 and 8 ranks (V-Half), 5.5 and 13.5
// (V-Min). Here they are of a chunk, so doubled. Between and beyond them the bubbles grow evenly with the ranks of one
// remainder, because the block does. A rank adds 3 units (V-Half climbs in steps of 2 and comes down in steps of 1) or
// 4 (V-Min). The smallest pipelines close their gaps further, down to one unit, and a single rank has none.
int v_half_bubble(int ranks) {
  if (ranks <= 2) return ranks - 1;
  return ranks % 2 == 0 ? 3 * ranks - 7 : 3 * ranks - 4;
}
int v_min_bubble(int ranks) {
  if (ranks <= 2) return ranks - 1;
  return ranks % 3 == 0 ? 4 * ranks - 7 : 4 * ranks - 5;
}

TEST(VBlocks, BubblesAreThePublishedOnes) {
  EXPECT_EQ(v_half_bubble(4), 5);
  EXPECT_EQ(v_half_bubble(8), 17);
  EXPECT_EQ(v_min_bubble(4), 11);
  EXPECT_EQ(v_min_bubble(8), 27);
  for (const OrderInput& input : v_inputs("v_half", 9, 36)) {
    if (input.microbatches < input.ranks) continue;
    EXPECT_EQ(bubble_of("v_half", input), v_half_bubble(input.ranks)) << described(find_schedule("v_half"), input);
    if (input.microbatches < 2 * input.ranks) continue;
    EXPECT_EQ(bubble_of("v_min", input), v_min_bubble(input.ranks)) << described(find_schedule("v_min"), input);
  }
}

// (P + 2) / 2 and (P + 4) / 3 microbatches rounded down, each two chunks. No rank keeps more, whatever the
// microbatches; with enough of them the fullest rank keeps as many.
TEST(VBlocks, ActivationsAreThePublishedOnes) {
  for (const OrderInput& input : v_inputs("v_half", 9, 24)) {
    for (const auto& [schedule, published] :
         {std::pair("v_half", (input.ranks + 2) / 2 * 2), std::pair("v_min", (input.ranks + 4) / 3 * 2)}) {
      const auto peaks = chunks_in_flight(schedule, input);
      const int peak = *std::max_element(peaks.begin(), peaks.end());
      EXPECT_LE(peak, published) << described(find_schedule(schedule), input);
      if (input.microbatches >= input.ranks) {
        EXPECT_EQ(peak, published) << described(find_schedule(schedule), input);
      }
    }
  }
}

TEST(VBlocks, KeptParametersAreGatheredOnce) {
  for (const char* schedule : {"v_half", "v_min"}) {
    EXPECT_EQ(gathers_of(schedule, {.ranks = 4, .chunks = 2, .microbatches = 9}, 3, Residency::step),
              std::vector(4, 6));
  }
}

// --- dualpipev ------------------------------------------------------------------------------------------------------

// PyTorch's own list for ScheduleDualPipeV, 4 ranks, 10 microbatches (its test artifact dualpipev_4rank_10mb.csv).
TEST(DualPipeV, IsThatOfPyTorch) {
  EXPECT_EQ(order_of("dualpipev", {.ranks = 4, .chunks = 2, .microbatches = 10}),
            "0F0,0F1,0F2,0F3,0F4,0F5,0F6,7F0,7I0,7W0,7F1,7I1,7W1,7F2,7I2,7W2,7F3,(0F7;7B3)OVERLAP_F_B,"
            "(7F4;0B0)OVERLAP_F_B,(0F8;7B4)OVERLAP_F_B,(7F5;0B1)OVERLAP_F_B,(0F9;7B5)OVERLAP_F_B,"
            "(7F6;0B2)OVERLAP_F_B,7B6,(7F7;0B3)OVERLAP_F_B,7B7,(7F8;0B4)OVERLAP_F_B,7B8,(7F9;0B5)OVERLAP_F_B,7B9,"
            "0I6,0W6,0I7,0W7,0I8,0W8,0I9,0W9\n"
            "1F0,1F1,1F2,1F3,1F4,6F0,1F5,6F1,6I0,6W0,6F2,6I1,6W1,6F3,(1F6;6B2)OVERLAP_F_B,(6F4;1B0)OVERLAP_F_B,"
            "(1F7;6B3)OVERLAP_F_B,(6F5;1B1)OVERLAP_F_B,(1F8;6B4)OVERLAP_F_B,(6F6;1B2)OVERLAP_F_B,"
            "(1F9;6B5)OVERLAP_F_B,(6F7;1B3)OVERLAP_F_B,6B6,(6F8;1B4)OVERLAP_F_B,6B7,(6F9;1B5)OVERLAP_F_B,6B8,1B6,"
            "6I9,1I7,6W9,1I8,1W7,1I9,1W8,1W9\n"
            "2F0,2F1,2F2,5F0,2F3,5F1,2F4,5F2,5I0,5W0,5F3,(2F5;5B1)OVERLAP_F_B,(5F4;2B0)OVERLAP_F_B,"
            "(2F6;5B2)OVERLAP_F_B,(5F5;2B1)OVERLAP_F_B,(2F7;5B3)OVERLAP_F_B,(5F6;2B2)OVERLAP_F_B,"
            "(2F8;5B4)OVERLAP_F_B,(5F7;2B3)OVERLAP_F_B,(2F9;5B5)OVERLAP_F_B,(5F8;2B4)OVERLAP_F_B,5B6,"
            "(5F9;2B5)OVERLAP_F_B,5B7,2B6,5B8,2I7,5I9,2I8,2W7,2I9,5W9,2W8,2W9\n"
            "3F0,4F0,3F1,4F1,3F2,4F2,3F3,4F3,3F4,4B0,(4F4;3B0)OVERLAP_F_B,(3F5;4B1)OVERLAP_F_B,"
            "(4F5;3B1)OVERLAP_F_B,(3F6;4B2)OVERLAP_F_B,(4F6;3B2)OVERLAP_F_B,(3F7;4B3)OVERLAP_F_B,"
            "(4F7;3B3)OVERLAP_F_B,(3F8;4B4)OVERLAP_F_B,(4F8;3B4)OVERLAP_F_B,(3F9;4B5)OVERLAP_F_B,"
            "(4F9;3B5)OVERLAP_F_B,4B6,3B6,4B7,3B7,4I8,3I8,4I9,3I9,4W8,3W8,4W9,3W9\n");
}

// The published (P - 1)(F&B + B - 3 W) times of a chunk: without gain from the overlap F&B is f + b + w = 3, and B is a
// whole backward, 2. The pairs pay for their common end. One after the other, each handing on what it made at once,
// the same actions would stand still for (P - 1) only. Every rank keeps 2 P + 1 chunks.
TEST(DualPipeV, BubbleAndActivationsAreThoseOfTheFormulas) {
  for (const OrderInput& input : v_inputs("dualpipev", 8, 32)) {
    EXPECT_EQ(bubble_of("dualpipev", input), (input.ranks - 1) * (3 + 2 - 3 * 1))
        << described(find_schedule("dualpipev"), input);
    Program apart = ordered(find_schedule("dualpipev"), input);
    for (auto& actions : apart.ranks) {
      for (Action& action : actions) action.overlapped = false;
    }
    EXPECT_EQ(bubble_of(apart), input.ranks - 1);
    for (int peak : chunks_in_flight("dualpipev", input)) EXPECT_EQ(peak, 2 * input.ranks + 1);
  }
}

TEST(DualPipeV, TooFewMicrobatchesAreRefused) {
  try {
    find_schedule("dualpipev").order({.ranks = 4, .chunks = 2, .microbatches = 7});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_STREQ(error.what(),
                 "schedule dualpipev on 4 ranks needs at least 8 microbatches, not 7; set microbatches = 8");
  }
}

}  // namespace
}  // namespace weft
