#include "parallel/runtime/spread_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace weft {
namespace {

TEST(SpreadWork, DoesEachPartOnceWhateverTheThreads) {
  for (const std::size_t threads : {0u, 1u, 3u, 40u}) {
    std::vector<int> done(25, 0);  // each written by one thread
    std::set<std::thread::id> workers;
    std::mutex mutex;
    spread_work(done.size(), threads, [&](std::size_t i) {
      ++done[i];
      const std::lock_guard lock(mutex);
      workers.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(std::ranges::count(done, 1), 25) << threads;
    EXPECT_LE(workers.size(), std::max<std::size_t>(1, threads));
  }
  spread_work(0, 4, [](std::size_t) { FAIL(); });
}

TEST(SpreadWork, ThrowsWhatTheFirstOfThemThrewAfterAllHaveEnded) {
  std::vector<int> done(20, 0);
  const auto work = [&](std::size_t i) {
    done[i] = 1;
    if (i % 7 == 3) throw std::runtime_error(std::to_string(i));
  };
  try {
    spread_work(done.size(), 4, work);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
  }
  EXPECT_EQ(std::ranges::count(done, 1), 20);
}

}  // namespace
}  // namespace weft
