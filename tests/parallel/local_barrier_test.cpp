#include "parallel/comm/local_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace weft {
namespace {

TEST(LocalBarrier, WhoWithdrawsInTimeKeepsTheMeetingFromTakingPlace) {
  LocalBarrier barrier(2, WaitStyle::yield);
  const auto meeting = barrier.arrive();
  ASSERT_TRUE(meeting);
  EXPECT_FALSE(barrier.wait(*meeting));
  EXPECT_TRUE(barrier.withdraw(*meeting));
  EXPECT_FALSE(barrier.arrive());
}

TEST(LocalBarrier, WhoWithdrawsTooLateGoesOnWithTheOthers) {
  LocalBarrier barrier(2, WaitStyle::yield);
  const auto meeting = barrier.arrive();
  ASSERT_TRUE(barrier.arrive());
  EXPECT_FALSE(barrier.withdraw(*meeting));
  EXPECT_TRUE(barrier.wait(*meeting));
  // Nor does it disturb the next meeting, which another rank has joined already.
  const auto next = barrier.arrive();
  EXPECT_FALSE(barrier.withdraw(*meeting));
  ASSERT_TRUE(barrier.arrive());
  EXPECT_TRUE(barrier.wait(*next));
}

// Lets `turns` go by; the long ones give the processor away, so that the other side runs on one core, too.
void take_turns(int turns) {
  for (int turn = 0; turn < turns; ++turn) {
    if (turns >= 4096) std::this_thread::yield();
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
}

TEST(LocalBarrier, BothSidesOfARaceAgreeWhetherTheMeetingTookPlace) {
  int took_place = 0, given_up = 0;
  // Either side lingers in turn, for 1 to 2^14 turns: somewhere in between the two meet, and at the ends one of them is
  // first. Which, a busy machine decides; so it goes on until both have come about.
  for (int attempt = 0; attempt < 200 || (attempt < 20'000 && (took_place == 0 || given_up == 0)); ++attempt) {
    const int turns = 1 << attempt / 2 % 15;
    const bool late = attempt % 2 == 0;
    LocalBarrier barrier(2, WaitStyle::yield);
    const auto meeting = barrier.arrive();
    std::atomic<bool> ready{false}, start{false};
    bool withdrew = false;
    std::thread other([&] {
      ready = true;
      while (!start.load()) std::this_thread::yield();
      if (late) take_turns(turns);
      withdrew = barrier.withdraw(*meeting);
    });
    while (!ready.load()) std::this_thread::yield();
    start = true;
    if (!late) take_turns(turns);
    const bool came = barrier.arrive().has_value();
    other.join();
    ASSERT_NE(came, withdrew);
    ++(came ? took_place : given_up);
  }
  EXPECT_GT(took_place, 0) << given_up;
  EXPECT_GT(given_up, 0) << took_place;
}

}  // namespace
}  // namespace weft
