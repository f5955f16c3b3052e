#include "parallel/pipeline/check/check.h"
#include "tests/parallel/order_figures.h"

namespace weft {
namespace {

TEST(LoopedBfs, ByHand) {
  EXPECT_EQ(order_of("looped_bfs", {.ranks = 2, .chunks = 2, .microbatches = 3}),
            "0F0,0F1,0F2,2F0,2F1,2F2,2B2,2B1,2B0,0B2,0B1,0B0\n"
            "1F0,1F1,1F2,3F0,3F1,3F2,3B2,3B1,3B0,1B2,1B1,1B0\n");
}

// From as many microbatches as ranks on, a chunk lasts long enough for its first microbatch to come round. The bubble
// is then that of 1F1B divided by the chunks. With fewer, each of the V - 1 turns to the next chunk, of a forward and
// of a backward, waits for the P - M missing microbatches. All chunks of all microbatches are alive at the turn.
TEST(LoopedBfs, BubbleAndActivationsAreThoseOfTheFormulas) {
  const auto inputs = inputs_of(find_schedule("looped_bfs"), 8, 4, 16);
  ASSERT_EQ(inputs.size(), 8u * 4 * 16);
  for (const OrderInput& input : inputs) {
    const int missing = std::max(input.ranks - input.microbatches, 0);
    EXPECT_EQ(bubble_of("looped_bfs", input), 3 * (input.ranks - 1) + 3 * (input.chunks - 1) * missing)
        << described(find_schedule("looped_bfs"), input);
    for (int peak : chunks_in_flight("looped_bfs", input)) EXPECT_EQ(peak, input.microbatches * input.chunks);
  }
}

// A rank visits each of its stages twice, but the last one only once: 2 V - 1 visits.
TEST(LoopedBfs, GathersFollowTheClosedFormulas) {
  for (const OrderInput& input : inputs_of(find_schedule("looped_bfs"), 4, 4, 8)) {
    for (int units : {2, 3}) {
      const int uses = 2 * input.microbatches * input.chunks * units;
      for (int rank = 0; rank < input.ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        EXPECT_EQ(gathers_of("looped_bfs", input, units, Residency::reshard_after_use)[at], uses - 1);
        EXPECT_EQ(gathers_of("looped_bfs", input, units, Residency::while_on_stage)[at],
                  (2 * input.chunks - 1) * units);
        EXPECT_EQ(gathers_of("looped_bfs", input, units, Residency::step)[at], input.chunks * units);
      }
    }
  }
  const OrderInput published{.ranks = 4, .chunks = 2, .microbatches = 16};
  EXPECT_EQ(gathers_of("looped_bfs", published, 4, Residency::reshard_after_use), std::vector(4, 255));
  EXPECT_EQ(gathers_of("looped_bfs", published, 4, Residency::while_on_stage), std::vector(4, 12));
}

// Rank 0 takes the first microbatch back from the last rank only after all forwards of its first chunk. With one
// message on the way between two ranks at most, 2 ranks hold 4 microbatches on the way there. The others can only go
// out if rank 0 takes one that came back before it has a use for it.
TEST(LoopedBfs, ReceivesStandEarlierWhereSendsWouldStandStill) {
  const auto with_exchange = [](int microbatches) {
    return add_exchange(ordered(find_schedule("looped_bfs"), {.ranks = 2, .chunks = 2, .microbatches = microbatches}));
  };
  EXPECT_EQ(cells(with_exchange(2), 0),
            "0F0 0SEND_F0 0F1 0SEND_F1 2RECV_F0 2F0 2SEND_F0 2RECV_F1 2F1 2SEND_F1 "
            "2RECV_B1 2B1 2SEND_B1 2RECV_B0 2B0 2SEND_B0 0RECV_B1 0B1 0RECV_B0 0B0");
  for (int microbatches = 1; microbatches <= 12; ++microbatches) {
    const Program program = with_exchange(microbatches);
    EXPECT_TRUE(find_violations(program).empty()) << microbatches;
    // The order itself stays.
    EXPECT_EQ(to_csv(program, Detail::compute_only),
              order_of("looped_bfs", {.ranks = 2, .chunks = 2, .microbatches = microbatches}));
  }
  // With every receive back in front of its consumer, the program stands still.
  Program program = with_exchange(8);
  auto& actions = program.ranks[0];
  int moved = 0;
  for (auto receive = actions.end(); receive != actions.begin();) {
    if (!is_receive((--receive)->op)) continue;
    const auto consumer = std::find_if(receive, actions.end(), [&](const Action& a) {
      return is_compute(a.op) && a.stage == receive->stage && a.microbatch == receive->microbatch &&
             (a.op == Op::forward) == (receive->op == Op::receive_forward);
    });
    ASSERT_NE(consumer, actions.end());
    if (consumer - receive > 1) ++moved;
    std::rotate(receive, receive + 1, consumer);
  }
  EXPECT_GT(moved, 0);
  const auto findings = find_violations(program);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().violation, Violation::deadlock);
}

}  // namespace
}  // namespace weft
