#include "trainer/planning/advise.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "parallel/runtime/error.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/planning/compare.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/chosen_timing.h"

namespace weft {
namespace {

// Values of a step beside the configured one, each with its words beside those kept so far.
using ValueWords = std::vector<std::pair<std::string, Overrides>>;

ValueWords wrap_words(const Config& config) {
  std::vector<std::string> wraps = {"half_block", "block"};
  // Of a stage's blocks at most; a stage has more than one unit then.
  for (int blocks = 2; blocks * config.stages() < config.model.layers(); blocks *= 2) {
    wraps.push_back(fmt::format("blocks {}", blocks));
  }
  std::erase(wraps, to_string(config.shard.wrap));
  ValueWords values;
  for (const std::string& wrap : wraps) values.push_back({wrap, {word("shard.wrap", wrap)}});
  return values;
}

// `read` reads the configuration with further words.
ValueWords strategy_words(const ReadWith& read, const Hardware& hardware) {
  const Config config = read({});
  std::vector<StrategyPlan> plans = unplanned_strategies(config, hardware);
  reach_families(plans, config, read);
  ValueWords values;
  for (const StrategyPlan& each : plans) {
    if (each.refused.empty() && !each.words.empty())
      values.push_back({std::string(name_of(each.sharding)), each.words});
  }
  return values;
}

ValueWords lookahead_words(const Config& config) {
  ValueWords values;
  for (const int lookahead : {0, 1, 2, 4, 8}) {
    if (lookahead == config.shard.lookahead) continue;
    values.push_back({fmt::format("{}", lookahead), {word("shard.lookahead", lookahead)}});
  }
  for (const BackwardPrefetch when : all_values<BackwardPrefetch>) {
    if (when == config.shard.backward_prefetch) continue;
    values.push_back(
        {fmt::format("backward_prefetch {}", name_of(when)), {word("shard.backward_prefetch", name_of(when))}});
  }
  return values;
}

// A run that fits may recompute less, one that does not more. The simulation has no time for norms and their like, so
// to recompute them in a run with room would only seem to be free.
ValueWords recompute_words(const Config& config, bool fits) {
  const Recompute now = config.training.recompute;
  ValueWords values;
  for (const Recompute mode : all_values<Recompute>) {
    const bool of_experts = mode == Recompute::experts || mode == Recompute::keep_dispatch;
    if (of_experts && !config.model.has(BlockKind::moe)) continue;
    if (fits ? mode > now : mode < now) continue;
    const Overrides words = {word("training.recompute", name_of(mode))};
    if (mode != now) values.push_back({std::string(name_of(mode)), words});
    if (!fits && recomputes_blocks(mode) && config.training.spares_blocks()) {
      values.push_back(
          {fmt::format("{}, of all blocks", name_of(mode)),
           merged_words(words, {word("training.recompute_every", 1), word("training.recompute_last_block", "true")})});
    }
    if (!recomputes_blocks(mode) || !config.training.recompute_last_block) continue;
    values.push_back({fmt::format("{}, not of the last block", name_of(mode)),
                      merged_words(words, {word("training.recompute_last_block", "false")})});
  }
  return values;
}

AdvisedStep tried_step(const PlannedVariants& variants, std::string_view what, const PlannedVariant& before,
                       const ValueWords& values) {
  AdvisedStep step{.what = what, .tried = {{"as before", before}}};
  step.tried.resize(1 + values.size());
  spread_work(values.size(), dry_threads(), [&](std::size_t i) {
    const auto& [value, words] = values[i];
    step.tried[1 + i] = {value, variants.with(merged_words(before.words, words))};
  });
  step.kept = value_to_keep(step.tried);
  return step;
}

// Faster beyond a tie, or no slower with no more memory.
bool does_as_well(const PlannedVariant& one, const PlannedVariant& now) {
  if (!one.fits()) return false;
  if (timing_tie * one.time.seconds < now.time.seconds) return true;
  return one.time.seconds <= now.time.seconds && !needs_less(now.verdict, one.verdict);
}

bool has_word(const PlannedVariant& variant, const std::string& word) {
  return std::ranges::find(variant.words, word) != variant.words.end();
}

// Later steps may have made the keys of earlier ones needless, or a cost. A step is added for each that goes back.
void take_back(const PlannedVariants& variants, std::vector<AdvisedStep>& steps) {
  const std::size_t turned = steps.size();
  while (steps.back().after().fits()) {
    const PlannedVariant now = steps.back().after();
    AdvisedStep back{.what = "taken back", .tried = {{"as before", now}}};
    for (std::size_t s = 0; s < turned; ++s) {
      const AdvisedStep& step = steps[s];
      Overrides words = now.words;
      const auto of_step = [&](const std::string& word) {
        return has_word(step.after(), word) && !has_word(step.before(), word);
      };
      if (std::erase_if(words, of_step) == 0) continue;
      back.tried.push_back({std::string(step.what), variants.with(words)});
      if (does_as_well(back.tried.back().variant, back.after())) back.kept = back.tried.size() - 1;
    }
    if (back.kept == 0) return;
    steps.push_back(std::move(back));
  }
}

}  // namespace

std::size_t value_to_keep(std::span<const TriedValue> tried) {
  double slowest = std::numeric_limits<double>::infinity();
  for (const auto& [value, variant] : tried) {
    if (variant.fits()) slowest = std::min(slowest, timing_tie * variant.time.seconds);
  }
  const PlannedVariant& before = tried.front().variant;
  if (before.verdict.exceeds_host()) return 0;  // no value changes what is kept there
  if (before.fits()) slowest = std::min(slowest, before.time.seconds);
  const bool any_fits = slowest < std::numeric_limits<double>::infinity();
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < tried.size(); ++i) {
    const PlannedVariant& variant = tried[i].variant;
    if (!variant.refused.empty() || (any_fits && (!variant.fits() || variant.time.seconds > slowest))) continue;
    left.push_back(i);
  }
  if (left.empty()) return 0;
  const auto verdict = [&](std::size_t i) { return tried[i].variant.verdict; };
  const Verdict least = verdict(*std::ranges::min_element(left, needs_less, verdict));
  const auto peak = [](const Verdict& of) { return static_cast<double>(of.needed - of.reserved); };
  std::erase_if(left, [&](std::size_t i) {
    const Verdict each = verdict(i);
    return each.exceeds_host() != least.exceeds_host() || peak(each) > timing_tie * peak(least);
  });
  return *std::ranges::min_element(left, {}, [&](std::size_t i) { return tried[i].variant.time.seconds; });
}

std::vector<AdvisedStep> advise(const ReadWith& read, const Hardware& hardware) {
  const PlannedVariants variants(read, hardware);
  const PlannedVariant start = variants.with({});
  if (!start.refused.empty()) fail_request("{}", start.refused);
  std::vector<AdvisedStep> steps;
  steps.push_back(tried_step(variants, "wrap", start, wrap_words(variants.config({}))));
  const Overrides wrapped = steps.back().after().words;
  const auto beside = [&](const Overrides& kept) -> ReadWith {
    return [&read, kept](const Overrides& words) { return read(merged_words(kept, words)); };
  };
  steps.push_back(tried_step(variants, "strategy", steps.back().after(), strategy_words(beside(wrapped), hardware)));
  const Overrides sharded = steps.back().after().words;
  steps.push_back(tried_step(variants, "lookahead", steps.back().after(), lookahead_words(variants.config(sharded))));
  const PlannedVariant gathered = steps.back().after();
  const ValueWords recomputes = recompute_words(variants.config(gathered.words), gathered.fits());
  steps.push_back(tried_step(variants, "recompute", gathered, recomputes));
  take_back(variants, steps);
  return steps;
}

}  // namespace weft
