// The fewest ranks that a run fits on, its other degrees as they are.
#pragma once

#include "trainer/planning/trials.h"

namespace weft {

inline constexpr int most_ranks = 1 << 16;  // largest world that is tried

struct MinimumWorld {
  Overrides words;  // what was changed besides the number of ranks
  Trial trial;      // with the smallest number that fits
};

// With `words`: the smallest data_shard above the configured one that fits; the batch grows with it. Beyond one node,
// only whole nodes are tried. Absent if no number up to 65,536 ranks fits.
std::optional<MinimumWorld> find_ranks(const Trials& trials, const Overrides& words);
// The same for the configuration as it is. If no number of ranks fits, the fewest with remedies that lower other bytes
// than state.
std::optional<MinimumWorld> ranks_that_fit(const Trials& trials);

}  // namespace weft
