#include "tests/parallel/order_figures.h"

namespace weft {
namespace {

// Qi et al. 2024, 2 ranks, 4 microbatches.
TEST(ZbH1, ByHand) {
  EXPECT_EQ(order_of("zb_h1", {.ranks = 2, .microbatches = 4}),
            "0F0,0F1,0I0,0W0,0F2,0I1,0W1,0F3,0I2,0W2,0I3,0W3\n"
            "1F0,1I0,1F1,1I1,1W0,1F2,1I2,1W1,1F3,1I3,1W2,1W3\n");
}

// With f = b = w = 1 the bubble is (P - 1)(f + b - w) = P - 1, if there are as many microbatches as ranks. With fewer,
// the last rank is out of weight gradients too early, and each missing microbatch adds one. Every rank keeps P
// microbatches: P - r run ahead, r wait for their weight gradient.
TEST(ZbH1, BubbleAndActivationsAreThoseOfTheFormulas) {
  for (const OrderInput& input : inputs_of(find_schedule("zb_h1"), 8, 1, 24)) {
    EXPECT_EQ(bubble_of("zb_h1", input), input.ranks - 1 + std::max(input.ranks - input.microbatches, 0))
        << described(find_schedule("zb_h1"), input);
    for (int peak : chunks_in_flight("zb_h1", input)) EXPECT_EQ(peak, std::min(input.ranks, input.microbatches));
  }
}

// Weight gradients read no parameters. W stands between I and the next F, not in their way. As in 1F1B a unit stays
// where two reads of it follow each other, and by visit it is gathered once.
TEST(ZbH1, GathersAreThoseOfOneForwardOneBackward) {
  for (const OrderInput& input : inputs_of(find_schedule("zb_h1"), 5, 1, 12)) {
    for (Residency residency : {Residency::reshard_after_use, Residency::while_on_stage, Residency::step}) {
      EXPECT_EQ(gathers_of("zb_h1", input, 3, residency), gathers_of("1f1b", input, 3, residency))
          << described(find_schedule("zb_h1"), input) << ", " << name_of(residency);
    }
  }
}

// PyTorch's own list for ScheduleInterleavedZeroBubble, 2 ranks, 2 stages a rank, 8 microbatches.
TEST(Zb1p, IsThatOfPyTorch) {
  EXPECT_EQ(order_of("zb1p", {.ranks = 2, .chunks = 2, .microbatches = 8}),
            "0F0,0F1,2F0,2F1,2I0,2W0,0F2,2I1,2W1,0F3,0I0,0W0,2F2,0I1,0W1,2F3,2I2,2W2,0F4,2I3,2W3,0F5,0I2,0W2,2F4,0I3,"
            "0W3,2F5,2I4,2W4,0F6,2I5,2W5,0F7,0I4,0W4,2F6,0I5,0W5,2F7,2I6,2W6,2I7,2W7,0I6,0W6,0I7,0W7\n"
            "1F0,1F1,3F0,3I0,3F1,3I1,3W0,1F2,1I0,3W1,1F3,1I1,1W0,3F2,3I2,1W1,3F3,3I3,3W2,1F4,1I2,3W3,1F5,1I3,1W2,3F4,"
            "3I4,1W3,3F5,3I5,3W4,1F6,1I4,3W5,1F7,1I5,1W4,3F6,3I6,1W5,3F7,3I7,3W6,1I6,3W7,1I7,1W6,1W7\n");
}

TEST(Zb1p, WithOneChunkIsZbH1) {
  for (const OrderInput& input : inputs_of(find_schedule("zb_h1"), 6, 1, 12)) {
    EXPECT_EQ(find_schedule("zb1p").order(input), find_schedule("zb_h1").order(input));
  }
}

// A rank waits for P - 1 forwards of a chunk on the way in, and for as many input gradients on the way out. There the
// last rank has as many weight gradients left. That makes (P - 1)(f + b - w) of a chunk, the bubble of ZB-H1 divided
// by the chunks. Rank r keeps P - 1 - r + (V - 1) P turns that it is ahead, r whose weight gradient waits, and the one
// it runs: V P.
TEST(Zb1p, BubbleAndActivationsAreThoseOfTheFormulas) {
  int interleaved = 0;
  for (const OrderInput& input : rounds_of("zb1p", 8, 4, 4)) {
    if (input.chunks == 1 || input.microbatches < input.ranks) continue;
    interleaved += input.microbatches % input.ranks == 0 ? 1 : 0;
    const int group = input.microbatches / (input.microbatches / input.ranks);
    EXPECT_EQ(bubble_of("zb1p", input), input.ranks - 1) << described(find_schedule("zb1p"), input);
    for (int peak : chunks_in_flight("zb1p", input)) EXPECT_EQ(peak, input.ranks + (input.chunks - 1) * group);
  }
  EXPECT_EQ(interleaved, 8 * 3 * 4);
}

// Longer groups cost activations, not time.
TEST(Zb1p, GroupsOfAnyLegalLengthKeepTheBubble) {
  int legal = 0;
  for (OrderInput input{.ranks = 2, .chunks = 2}; input.ranks <= 5; ++input.ranks) {
    for (input.microbatches = 1; input.microbatches <= 20; ++input.microbatches) {
      for (input.microbatch_group = 1; input.microbatch_group <= 9; ++input.microbatch_group) {
        if (!can_order("zb1p", input)) continue;
        ++legal;
        EXPECT_EQ(bubble_of("zb1p", input), input.ranks - 1)
            << described(find_schedule("zb1p"), input) << " in groups of " << input.microbatch_group;
      }
    }
  }
  EXPECT_GT(legal, 200);
}

}  // namespace
}  // namespace weft
