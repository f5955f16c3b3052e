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

// Weight gradients read no parameters. W stands between I and the next F, not in their way: as in 1F1B a unit stays
// where two reads of it follow each other, and by visit it is gathered once.
TEST(ZbH1, GathersAreThoseOfOneForwardOneBackward) {
  for (const OrderInput& input : inputs_of(find_schedule("zb_h1"), 5, 1, 12)) {
    for (Residency residency : {Residency::each_use, Residency::visit, Residency::step}) {
      EXPECT_EQ(gathers_of("zb_h1", input, 3, residency), gathers_of("1f1b", input, 3, residency))
          << described(find_schedule("zb_h1"), input) << ", " << name_of(residency);
    }
  }
}

}  // namespace
}  // namespace weft
