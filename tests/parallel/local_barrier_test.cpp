#include "parallel/comm/local_barrier.h"

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

TEST(LocalBarrier, BothSidesOfARaceAgreeWhetherTheMeetingTookPlace) {
  int took_place = 0, given_up = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    LocalBarrier barrier(2, WaitStyle::yield);
    const auto meeting = barrier.arrive();
    std::atomic<bool> ready{false}, start{false};
    bool withdrew = false;
    std::thread other([&] {
      ready = true;
      while (!start.load()) {
      }
      withdrew = barrier.withdraw(*meeting);
    });
    while (!ready.load()) std::this_thread::yield();
    start = true;
    for (int delay = 0; delay < attempt % 64 * 8; ++delay) static_cast<void>(start.load());
    const bool came = barrier.arrive().has_value();
    other.join();
    ASSERT_NE(came, withdrew);
    ++(came ? took_place : given_up);
  }
  // Both outcomes came about, or there was no race.
  EXPECT_GT(took_place, 0) << given_up;
  EXPECT_GT(given_up, 0) << took_place;
}

}  // namespace
}  // namespace weft
