// The fewest ranks that a run fits on, its other degrees as they are.
#pragma once

#include "trainer/planning/trials.h"

namespace weft {

inline constexpr int most_ranks = 1 << 16;  // nobody is looked for beyond

struct MoreRanks {
  Overrides words;  // what was changed besides
  Trial trial;      // with the smallest number that fits
};

// With `words`: the smallest data_shard beyond the configured one that fits, in whole nodes where one is not enough,
// the batch growing along; absent where no number up to 65,536 ranks does.
std::optional<MoreRanks> find_ranks(const Trials& trials, const Overrides& words);
// As the configuration is. Where that fits on no number, the fewest with what takes less of everything but state.
std::optional<MoreRanks> ranks_that_fit(const Trials& trials);

}  // namespace weft
