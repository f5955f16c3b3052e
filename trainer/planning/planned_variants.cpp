#include "trainer/planning/planned_variants.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/runtime/error.h"

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

bool needs_less(const Verdict& one, const Verdict& other) {
  return std::pair(one.exceeds_host(), one.needed) < std::pair(other.exceeds_host(), other.needed);
}

std::string reason_of(std::string_view refusal) {
  std::string_view line = refusal.substr(0, refusal.find('\n'));
  constexpr std::string_view mark = ": error: ";
  if (const std::size_t at = line.find(mark); at != std::string_view::npos) line.remove_prefix(at + mark.size());
  return std::string(line);
}

const PlannedVariant* PlannedVariants::known(const Overrides& words) const {
  const std::lock_guard lock(mutex_);
  const auto found = known_.find(words);
  return found == known_.end() ? nullptr : &found->second;
}

PlannedVariant PlannedVariants::with(const Overrides& words) const {
  if (const PlannedVariant* variant = known(words)) return *variant;
  PlannedVariant variant;
  const auto refused = refusal_of([&] {
    const Config config = read_(words);
    variant = {outline_run(config, hardware_, routing_)};
    variant.batch = config.training.global_batch_size;
  });
  variant.words = words;
  if (refused) variant.refused = reason_of(*refused);
  const std::lock_guard lock(mutex_);
  return known_.try_emplace(words, std::move(variant)).first->second;
}

std::optional<Verdict> PlannedVariants::least(const Overrides& words) const {
  std::optional<Verdict> verdict;
  refusal_of([&] { verdict = least_need(read_(words), hardware_, routing_); });
  return verdict;
}

bool PlannedVariants::fits(const Overrides& words) const {
  if (const PlannedVariant* variant = known(words)) return variant->fits();
  const std::optional<Verdict> verdict = least(words);
  return verdict && verdict->fits();
}

PlannedVariant PlannedVariants::with(const Overrides& words, const RemedyOverrides& strength) const {
  const Overrides plain = merged_words(words, strength.words);
  if (strength.by_family.empty()) return with(plain);
  const Overrides whole = merged_words(plain, strength.by_family);
  bool same = false;
  refusal_of([&] { same = read_(plain) == read_(whole); });
  return with(same ? plain : whole);
}

std::optional<PlannedVariant> PlannedVariants::best(const Remedy& remedy, const Overrides& words,
                                                    std::optional<int> world) const {
  std::optional<PlannedVariant> best;
  for (const RemedyOverrides& strength : remedy.strengths(config(words))) {
    PlannedVariant variant = with(words, strength);
    if (world && variant.world != *world) continue;
    const bool better =
        !best || !best->refused.empty() || (variant.refused.empty() && needs_less(variant.verdict, best->verdict));
    if (better) best = std::move(variant);
    if (best->fits()) break;
  }
  return best;
}

SizeLimit find_size_limit(const SizeScale& scale, SizeLimit known,
                          const std::function<std::optional<Verdict>(std::int64_t size)>& need) {
  // A line can mislead where another action becomes the peak. Halving the interval ends the search in any case.
  constexpr int predictions = 8;
  SizeLimit limit = known;
  int beyond = scale.most + 1, next = limit.fits + 1;
  for (int tries = 1; limit.fits + 1 < beyond; ++tries) {
    const std::int64_t size = scale.size(next), below = scale.size(limit.fits);
    const std::optional<Verdict> tried = need(size);
    const Verdict verdict = tried.value_or(Verdict{});
    const double bytes_each =
        static_cast<double>(verdict.needed - limit.fits_bytes) / static_cast<double>(size - below);
    if (tried && tried->fits()) {
      limit.fits = next;
      limit.fits_bytes = verdict.needed;
    } else {
      beyond = next;
      limit.exceeds = tried ? std::optional(size) : std::nullopt;
      limit.exceeds_bytes = verdict.needed;
    }
    next = limit.fits + (beyond - limit.fits) / 2;
    if (verdict.memory > 0 && tries <= predictions) {
      const double room = Verdict::limit * static_cast<double>(verdict.memory) - static_cast<double>(limit.fits_bytes);
      const double largest = static_cast<double>(scale.size(limit.fits)) + room / std::max(bytes_each, 1.0);
      next = static_cast<int>(std::min<double>(scale.number(largest), scale.most));
    }
    next = std::clamp(next, limit.fits + 1, std::max(limit.fits + 1, beyond - 1));
  }
  return limit;
}

std::optional<MinimumWorld> find_ranks(const PlannedVariants& variants, const Overrides& words) {
  const Config config = variants.config(words);
  const Degrees& d = config.parallelism;
  const int rest = d.world() / d.data_shard, stage_rest = d.stage_ranks() / d.data_shard;
  const auto scaled = [&](int shards) { return merged_words(words, scaled_words(config, shards)); };
  const auto fits = [&](int shards) { return variants.fits(scaled(shards)); };
  // Units of the search: numbers of shards that experts can be spread over, then numbers that also fill nodes.
  const int experts = d.expert * d.expert_tensor, spread = experts / std::gcd(experts, stage_rest);
  const int node = variants.node_ranks(), whole = std::lcm(spread, node / std::gcd(rest, node));
  const int below = words.empty() ? d.data_shard : 0;
  auto found = smallest(fits, below, spread, std::min(node, most_ranks) / rest);
  if (!found) found = smallest(fits, below, whole, most_ranks / rest);
  if (!found) return std::nullopt;
  return MinimumWorld{words, variants.with(scaled(*found))};
}

std::optional<MinimumWorld> ranks_that_fit(const PlannedVariants& variants) {
  if (auto found = find_ranks(variants, {})) return found;
  std::optional<MinimumWorld> fewest;
  const auto consider = [&](const Overrides& words) {
    auto found = find_ranks(variants, words);
    if (found && (!fewest || found->variant.world < fewest->variant.world)) fewest = std::move(found);
  };
  Overrides words;
  for (const Remedy& remedy : remedies_beside_more_ranks()) {
    const auto variant = variants.best(remedy, words);
    if (!variant || !variant->refused.empty()) continue;
    words = variant->words;
    consider(words);
  }
  return fewest;
}

}  // namespace weft
