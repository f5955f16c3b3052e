#include "parallel/runtime/phase_clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/parallel/clocked_device.h"

namespace weft {
namespace {

class PhaseClocks : public testing::Test {
 protected:
  // Work of `seconds` by the stream's clock, and none by the host's.
  void work(Phase phase, ClockedStream& stream, double seconds) {
    const PhaseClock::Scope scope(clock_, phase, stream);
    stream.time += seconds;
  }

  ClockedDevice device_;
  ClockedStream a_{device_}, b_{device_};
  PhaseClock clock_;
};

TEST_F(PhaseClocks, StreamsAreAskedForTheirOwnTime) {
  clock_.set_mode(PhaseClock::Mode::stream);
  work(Phase::products, a_, 2.0);
  a_.time += 100.0;  // between scopes
  work(Phase::products, a_, 1.0);
  work(Phase::communication, a_, 0.5);
  work(Phase::communication, b_, 8.0);
  EXPECT_EQ(clock_.seconds(Phase::products), 0.0);  // nobody has waited yet
  clock_.collect();
  EXPECT_EQ(clock_.seconds(Phase::products), 3.0);
  EXPECT_EQ(clock_.seconds(Phase::communication), 8.5);
  EXPECT_EQ(clock_.seconds(Phase::communication, a_), 0.5);
  EXPECT_EQ(clock_.seconds(Phase::communication, b_), 8.0);
  EXPECT_EQ(clock_.seconds(Phase::optimizer), 0.0);
  clock_.collect();  // nothing new
  EXPECT_EQ(clock_.seconds(Phase::products), 3.0);
  work(Phase::products, a_, 4.0);
  clock_.reset();  // what is under way is forgotten too
  clock_.collect();
  EXPECT_EQ(clock_.seconds(Phase::products), 0.0);
}

TEST_F(PhaseClocks, TheHostsTimeIsTakenWithoutEvents) {
  {
    const PhaseClock::Scope scope(clock_, Phase::attention, a_);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    a_.time += 1000.0;
  }
  clock_.collect();
  EXPECT_GE(clock_.seconds(Phase::attention), 0.002);
  EXPECT_LT(clock_.seconds(Phase::attention), 1000.0);
  EXPECT_EQ(clock_.seconds(Phase::attention, a_), clock_.seconds(Phase::attention));
  EXPECT_EQ(a_.recorded, 0);
}

TEST_F(PhaseClocks, OffMeansOff) {
  clock_.set_mode(PhaseClock::Mode::off);
  work(Phase::products, a_, 2.0);
  clock_.collect();
  EXPECT_EQ(clock_.seconds(Phase::products), 0.0);
  EXPECT_EQ(a_.recorded, 0);
}

// A stream that has failed is asked for nothing more: its error is on the way.
TEST_F(PhaseClocks, AScopeThatIsLeftByAnErrorRecordsNothing) {
  clock_.set_mode(PhaseClock::Mode::stream);
  EXPECT_THROW(
      {
        const PhaseClock::Scope scope(clock_, Phase::products, a_);
        fail("the device is gone");
      },
      Error);
  EXPECT_EQ(a_.recorded, 1);
  clock_.collect();
  EXPECT_EQ(clock_.seconds(Phase::products), 0.0);
}

}  // namespace
}  // namespace weft
