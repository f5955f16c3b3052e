#include "trainer/rank/dry_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace weft {
namespace {

std::vector<LiveTensors> summed(const std::map<std::intptr_t, LiveTensors>& live) {
  std::map<std::pair<Bucket, std::optional<std::size_t>>, std::int64_t> sums;
  for (const auto& [data, tensor] : live) sums[{tensor.bucket, tensor.action}] += tensor.bytes;
  std::vector<LiveTensors> result;
  for (const auto& [key, bytes] : sums) {
    if (bytes > 0) result.push_back({key.first, key.second, bytes});
  }
  return result;
}

// Against a copy of all that is there at each peak; addresses serve again at once.
TEST(LiveLog, KnowsWhatThereWasAtThePeakAndKeepsNoMore) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    LiveLog log;
    std::map<std::intptr_t, LiveTensors> live, peak;
    std::int64_t total = 0, most = 0;
    std::size_t largest = 0;
    const unsigned steps = random() % 2000, room = 2 + random() % 50;
    for (unsigned i = 0; i < steps; ++i) {
      const auto address = static_cast<std::intptr_t>(1 + random() % room);
      const auto* data = reinterpret_cast<const void*>(address);
      if (const auto found = live.find(address); found != live.end()) {
        total -= found->second.bytes;
        live.erase(found);
        log.went(data);
        continue;
      }
      LiveTensors tensor{static_cast<Bucket>(random() % 3), std::nullopt, static_cast<std::int64_t>(random() % 100)};
      if (random() % 3 > 0) tensor.action = random() % 4;
      live.emplace(address, tensor);
      log.came(data, tensor);
      total += tensor.bytes;
      if (total <= most) continue;
      most = total;
      peak = live;
      log.mark_peak();
      largest = std::max(largest, live.size());
    }
    EXPECT_LE(log.size(), 2 * largest + room) << seed;
    EXPECT_EQ(log.at_peak(), summed(peak)) << seed;
    EXPECT_EQ(log.at_peak(), summed(peak)) << seed;
  }
}

TEST(LiveLog, LetsGoWhatItNeverSawCome) {
  LiveLog log;
  const int from_before = 0, own = 0;
  log.went(&from_before);
  log.came(&own, {Bucket::activations, 3, 8});
  log.mark_peak();
  log.went(&own);
  log.went(&from_before);
  EXPECT_EQ(log.at_peak(), (std::vector<LiveTensors>{{Bucket::activations, 3, 8}}));
}

}  // namespace
}  // namespace weft
