#include "trainer/planning/explain.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>

#include "layers/segments.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/step_programs.h"

namespace weft {
namespace {

constexpr int many_times = 64;

// Tries the remedies against the cause and the remedies that cannot help. A remedy of the second kind that fits
// nevertheless is listed last among the remedies.
void try_remedies(const PlannedVariants& variants, Explanation& explanation) {
  std::vector<Remedy> against;
  if (explanation.judged.verdict.exceeds_host())
    std::ranges::copy(remedies_against_host(), std::back_inserter(against));
  std::ranges::copy(remedies_for(explanation.cause), std::back_inserter(against));
  std::vector<Remedy> remedies = against;
  for (const Remedy& remedy : remedies_that_cannot_help(explanation.cause)) remedies.push_back(remedy);
  std::vector<std::optional<PlannedVariant>> best(remedies.size());
  spread_work(remedies.size(), dry_threads(), [&](std::size_t i) { best[i] = variants.best(remedies[i], {}); });
  for (std::size_t i = 0; i < remedies.size(); ++i) {
    if (!best[i]) continue;
    const bool helps = i < against.size() || best[i]->fits();
    auto& list = !best[i]->refused.empty() ? explanation.refused : helps ? explanation.remedies : explanation.cannot;
    list.push_back({remedies[i], *std::move(best[i])});
  }
}

// The words of all remedies together, chosen anew, so that removed remedies leave nothing behind.
Overrides words_of(const PlannedVariants& variants, const std::vector<Remedy>& remedies, std::optional<int> world) {
  Overrides words;
  for (const Remedy& remedy : remedies) {
    const auto variant = variants.best(remedy, words, world);
    if (variant && variant->refused.empty() && !variant->verdict.exceeds_host()) words = variant->words;
  }
  return words;
}

struct Greedy {
  std::vector<Remedy> remedies;
  PlannedVariant variant;
};

// Adds remedies in order, on the same ranks, if they lower the need, until the run fits. Remedies against the cause
// come first, then remedies against the cause that is largest by then. Remedies that keep the arithmetic come before
// those that change it.
Greedy combine(const PlannedVariants& variants, Cause cause, const PlannedVariant& base) {
  Greedy greedy{{}, base};
  std::set<std::string_view> tried_names;
  for (const RemedyKind kind : {RemedyKind::layout, RemedyKind::arithmetic}) {
    Cause now = cause;
    for (std::set<Cause> seen; seen.insert(now).second; now = largest_cause(greedy.variant.peak)) {
      for (const Remedy& remedy : remedies_for(now)) {
        if (remedy.kind != kind || !tried_names.insert(remedy.name).second) continue;
        auto variant = variants.best(remedy, greedy.variant.words, base.world);
        if (!variant || !variant->refused.empty() || !needs_less(variant->verdict, greedy.variant.verdict)) continue;
        greedy.remedies.push_back(remedy);
        greedy.variant = *std::move(variant);
        if (greedy.variant.fits()) return greedy;
      }
    }
  }
  return greedy;
}

// Removes remedies without which the run still fits.
void prune(const PlannedVariants& variants, Greedy& greedy, int world) {
  for (std::size_t m = 0; m < greedy.remedies.size();) {
    std::vector<Remedy> fewer = greedy.remedies;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(m));
    PlannedVariant variant = variants.with(words_of(variants, fewer, world));
    if (variant.fits() && variant.world == world) {
      greedy = {std::move(fewer), std::move(variant)};
    } else {
      ++m;
    }
  }
}

// If no single remedy fits: finds the first combination that fits. Returns its words, or those of the nearest one.
Overrides combine_remedies(const PlannedVariants& variants, const Config& config, Explanation& explanation) {
  if (explanation.first_that_fits()) return {};
  PlannedVariant base{explanation.judged};
  base.batch = config.training.global_batch_size;
  Greedy greedy = combine(variants, explanation.cause, base);
  Overrides words = greedy.variant.words;
  if (greedy.variant.fits()) {
    prune(variants, greedy, base.world);
    explanation.combined = std::move(greedy.remedies);
    explanation.combination = std::move(greedy.variant);
  }
  return words;
}

// Of the variants that fit under even routing.
void add_worst_needs(const PlannedVariants& variants, const Hardware& hardware, Explanation& explanation) {
  std::vector<PlannedVariant*> fitting;
  for (TriedRemedy& tried : explanation.remedies) {
    if (tried.variant.fits()) fitting.push_back(&tried.variant);
  }
  if (explanation.combination) fitting.push_back(&*explanation.combination);
  spread_work(fitting.size(), dry_threads(), [&](std::size_t v) {
    fitting[v]->worst_needed = worst_need(variants.config(fitting[v]->words), hardware);
  });
}

ActivationFacts activation_facts(const Config& config, const RankPlan& rank) {
  const Degrees& d = config.parallelism;
  const SegmentSetup setup = segment_setup(config, rank.ranks.at);
  ActivationFacts facts;
  facts.sequence_parallel = d.tensor > 1;
  const std::int64_t queries = setup.microbatch_tokens;  // of this rank; each query has all keys of its sequence
  if (config.model.has(Mixer::attention)) {
    facts.scores = 5 * (config.model.num_attention_heads / d.tensor) * queries * config.training.sequence_length;
  }
  const std::int64_t rows = balanced_part(config.model.vocab_size, d.tensor, rank.ranks.at.tp).count;
  facts.all_logits = queries * rows * size_of(DType::float32);
  facts.logits = logits_chunk_tokens(setup) * rows * size_of(DType::float32);
  facts.dlogits = queries * rows * size_of(setup.head_compute);
  const std::vector<StageBlocks> layout = stage_layout(config);
  const auto first = std::ranges::find_if(layout, [](const StageBlocks& stage) { return stage.count > 0; });
  int parts = config.recomputes(0) ? 2 : 0;  // two are a layer of the textbook
  for (const auto& segment : make_segments(config, setup, 0, *first)) {
    if (!segment->part().block || ++parts > 2) continue;
    facts.block_token += static_cast<double>(segment->activation_bytes()) / static_cast<double>(queries);
  }
  facts.textbook_token = 34 * config.model.hidden_size;
  return facts;
}

// By doubling, up to the largest size.
Limit limit_of(const PlannedVariants& variants, std::string_view what, std::int64_t now, std::int64_t largest,
               const std::function<Overrides(std::int64_t)>& words) {
  const auto number = [&](double size) { return std::log2(std::max(1.0, size / static_cast<double>(now))); };
  const SizeScale doublings{.most = static_cast<int>(number(static_cast<double>(largest))),
                            .size = [&](int doubled) { return now << doubled; },
                            .number = number};
  const std::int64_t needed = variants.least({}).value_or(Verdict{}).needed;
  const SizeLimit found = find_size_limit(doublings, {.fits_bytes = needed},
                                          [&](std::int64_t size) { return variants.least(words(size)); });
  Limit limit{.what = what, .fits = doublings.size(found.fits)};
  limit.exceeds = found.exceeds;
  limit.exceeds_bytes = found.exceeds_bytes;
  if (!found.exceeds && found.fits < doublings.most) {
    limit.refused = doublings.size(found.fits + 1);
    limit.reason = variants.with(words(*limit.refused)).refused;
  }
  const PlannedVariant most = variants.with(found.fits == 0 ? Overrides{} : words(limit.fits));
  limit.fits_bytes = most.verdict.needed;
  if (most.batch != variants.config({}).training.global_batch_size) limit.batch = most.batch;
  return limit;
}

std::vector<Limit> limits_of(const PlannedVariants& variants, const Config& config) {
  const TrainingConfig& training = config.training;
  const std::int64_t size_now = training.microbatch_size, length_now = training.sequence_length;
  const auto microbatch = [&](std::int64_t size) {
    const std::int64_t each = size * config.parallelism.data();
    const auto words = [&](std::int64_t microbatches) {
      return Overrides{word("training.microbatch_size", size), word("training.global_batch_size", microbatches * each)};
    };
    const Overrides fewest = words((training.global_batch_size + each - 1) / each);
    // Schedules have numbers of microbatches that they refuse.
    return refusal_of([&] { variants.config(fewest); }) ? words(config.microbatches()) : fewest;
  };
  const auto sequence = [&](std::int64_t length) { return Overrides{word("training.sequence_length", length)}; };
  std::vector<Limit> limits(2);
  spread_work(limits.size(), host_cores(), [&](std::size_t i) {
    limits[i] = i == 0 ? limit_of(variants, "training.microbatch_size", size_now, size_now << 12, microbatch)
                       : limit_of(variants, "training.sequence_length", length_now, longest_tried, sequence);
  });
  return limits;
}

}  // namespace

const TriedRemedy* Explanation::first_that_fits() const {
  const auto found = std::ranges::find_if(
      remedies, [&](const TriedRemedy& one) { return one.variant.fits() && one.variant.world == plan.world; });
  return found == remedies.end() ? nullptr : &*found;
}

const TriedRemedy* Explanation::fastest_that_fits() const {
  const TriedRemedy* fastest = first_that_fits();
  for (const TriedRemedy& one : remedies) {
    if (!one.variant.fits() || one.variant.world != plan.world) continue;
    if (one.variant.time.seconds < fastest->variant.time.seconds) fastest = &one;
  }
  return fastest;
}

const TriedRemedy* Explanation::first_that_always_fits() const {
  const auto found = std::ranges::find_if(remedies, [&](const TriedRemedy& one) {
    return one.variant.fits_in_worst_case() && one.variant.world == plan.world;
  });
  return found == remedies.end() ? nullptr : &*found;
}

namespace {

void explain_need(const PlannedVariants& variants, const Config& config, Explanation& result) {
  const BucketBytes& peak = result.judged.peak;
  const Verdict& verdict = result.judged.verdict;
  result.state_bytes = bytes_of(Cause::state, peak);
  result.state_exceeds = verdict.memory > 0 && result.state_bytes + verdict.reserved > verdict.memory;
  // What routing adds is too much for a run that fits with even routing.
  result.cause = result.routing == Routing::worst ? Cause::routing
                 : result.state_exceeds           ? Cause::state
                                                  : largest_cause(peak);
  result.cause_bytes = bytes_of(result.cause, peak);
  result.capacity_factor = config.model.moe.capacity_factor;
  result.activations = activation_facts(config, result.plan.ranks[result.plan.fullest]);
  try_remedies(variants, result);
  const int shards = config.parallelism.data_shard;
  if (result.cause != Cause::state && std::int64_t{many_times} * config.parallelism.world() <= most_ranks) {
    result.more_sharding = variants.with(scaled_words(config, many_times * shards));
  }
  // More ranks always help against state, so combinations and ranks are searched at once for that cause. For other
  // causes, ranks are searched only if nothing else helps.
  Overrides all;
  result.asked_for_ranks = result.cause == Cause::state;
  spread_work(result.asked_for_ranks ? 2 : 1, dry_threads(), [&](std::size_t i) {
    if (i == 0) all = combine_remedies(variants, config, result);
    if (i == 1) result.minimum_world = ranks_that_fit(variants);
  });
  if (!result.asked_for_ranks && !result.first_that_fits() && !result.combination) {
    result.asked_for_ranks = true;
    result.minimum_world = ranks_that_fit(variants);
  }
  if (result.asked_for_ranks && !result.minimum_world && !all.empty()) result.minimum_world = find_ranks(variants, all);
}

}  // namespace

Explanation explain_run(const ReadWith& read, const Hardware& hardware) {
  const PlannedVariants variants(read, hardware);
  const Config config = variants.config({});
  Explanation result;
  const RunPlan& plan = result.plan = plan_run(config, hardware);
  result.judged = {plan.world, plan.peak(), plan.verdict, plan.time};
  if (plan.verdict.fit == Fit::unknown) return result;
  const PlannedVariants worst(read, hardware, Routing::worst);
  if (plan.verdict.fits()) {
    result.limits = limits_of(plan.judging() == Routing::worst ? worst : variants, config);
  }
  if (plan.worst_fit() == Fit::fits) return result;
  if (plan.verdict.fits()) {
    result.routing = Routing::worst;
    result.judged = worst.with({});
    explain_need(worst, config, result);
    return result;
  }
  explain_need(variants, config, result);
  if (routing_decides(config)) add_worst_needs(variants, hardware, result);
  return result;
}

}  // namespace weft
