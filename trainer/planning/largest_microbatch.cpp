// The largest microbatches of compared strategies (compare.h).
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/planning/compare.h"
#include "trainer/planning/planned_variants.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

Config with_microbatch(Config config, std::int64_t size) {
  config.training.global_batch_size = config.microbatches() * config.parallelism.data() * size;
  config.training.microbatch_size = size;
  return config;
}

// Nothing if the rules refuse the size. A memory budget that is too small for any timing is no refusal: the run needs
// more than there is.
std::optional<Verdict> need_of(const Config& config, const Hardware& hardware) {
  if (!rule_faults(config).empty()) return std::nullopt;
  Verdict verdict{.fit = Fit::exceeds};
  refusal_of([&] { verdict = least_need(config, hardware); });
  return verdict;
}

std::int64_t largest_microbatch(Config config, Recompute recompute, const Hardware& hardware) {
  config.training.recompute = recompute;
  // Tensor ranks divide the tokens of a microbatch, so only multiples of the smallest size are accepted.
  std::int64_t unit = 1;
  while (unit < config.training.microbatch_size && !rule_faults(with_microbatch(config, unit)).empty()) ++unit;
  const auto need = [&](std::int64_t size) { return need_of(with_microbatch(config, size), hardware); };
  const std::optional<Verdict> first = need(unit);
  if (!first || !first->fits()) return 0;
  const SizeScale multiples{.most = static_cast<int>((most_sequences + unit - 1) / unit),
                            .size = [&](int number) { return unit * number; },
                            .number = [&](double size) { return size / static_cast<double>(unit); }};
  return multiples.size(find_size_limit(multiples, {.fits = 1, .fits_bytes = first->needed}, need).fits);
}

}  // namespace

std::vector<std::optional<LargestMicrobatch>> largest_microbatches(std::span<const StrategyPlan> plans,
                                                                   const Hardware& hardware) {
  std::vector<std::optional<LargestMicrobatch>> largest(plans.size());
  if (!hardware.memory) return largest;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    if (plans[i].refused.empty()) largest[i] = LargestMicrobatch{};
  }
  spread_work(2 * plans.size(), dry_threads(), [&](std::size_t task) {
    auto& found = largest[task / 2];
    if (!found) return;
    const bool plain = task % 2 == 0;
    (plain ? found->plain : found->recomputed) =
        largest_microbatch(plans[task / 2].config, plain ? Recompute::none : Recompute::full, hardware);
  });
  return largest;
}

}  // namespace weft
