#include "trainer/planning/minimum_world.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace weft {

namespace {

// The smallest multiple of `unit` in (below, most] that fits. More ranks that share state never need more memory per
// rank, so growing steps and then bisection find it. Steps grow fast, because all of them are tried if nothing fits.
std::optional<int> smallest(const std::function<bool(int)>& fits, int below, int unit, int most) {
  int no = below / unit, yes = no + 1;
  for (;; yes *= 8) {
    yes = std::min(yes, most / unit);
    if (yes <= no) return std::nullopt;
    if (fits(yes * unit)) break;
    no = yes;
  }
  while (yes - no > 1) {
    const int middle = no + (yes - no) / 2;
    (fits(middle * unit) ? yes : no) = middle;
  }
  return yes * unit;
}

}  // namespace

std::optional<MinimumWorld> find_ranks(const Trials& trials, const Overrides& words) {
  const Config config = trials.config(words);
  const Degrees& d = config.parallelism;
  const int rest = d.world() / d.data_shard, stage_rest = d.stage_ranks() / d.data_shard;
  const auto scaled = [&](int shards) { return merged_words(words, scaled_words(config, shards)); };
  const auto fits = [&](int shards) { return trials.fits(scaled(shards)); };
  // Units of the search: numbers of shards that experts can be spread over, then numbers that also fill nodes.
  const int experts = d.expert * d.expert_tensor, spread = experts / std::gcd(experts, stage_rest);
  const int node = trials.node_ranks(), whole = std::lcm(spread, node / std::gcd(rest, node));
  auto found = smallest(fits, d.data_shard, spread, std::min(node, most_ranks) / rest);
  if (!found) found = smallest(fits, d.data_shard, whole, most_ranks / rest);
  if (!found) return std::nullopt;
  return MinimumWorld{words, trials.with(scaled(*found))};
}

std::optional<MinimumWorld> ranks_that_fit(const Trials& trials) {
  if (auto found = find_ranks(trials, {})) return found;
  std::optional<MinimumWorld> fewest;
  const auto consider = [&](const Overrides& words) {
    auto found = find_ranks(trials, words);
    if (found && (!fewest || found->trial.world < fewest->trial.world)) fewest = std::move(found);
  };
  Overrides words;
  for (const Remedy& remedy : remedies_beside_more_ranks()) {
    const auto trial = trials.best(remedy, words);
    if (!trial || !trial->refused.empty()) continue;
    words = trial->words;
    consider(words);
  }
  return fewest;
}

}  // namespace weft
