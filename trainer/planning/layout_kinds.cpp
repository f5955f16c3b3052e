#include "trainer/planning/layout_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "parallel/runtime/quantities.h"

namespace weft {
namespace {

BestOfKind best_of_kind(SearchSpace space, LayoutKind kind, const SearchResult& found, std::size_t threads) {
  BestOfKind best;
  const bool known = !found.plans.empty() && kind_of(space.meshes[found.plans.front().choice.mesh]) == kind;
  if (known) {
    best.config = config_of(space, found.plans.front().choice);
  } else {
    std::erase_if(space.meshes, [&](const Degrees& mesh) { return kind_of(mesh) != kind; });
    if (space.meshes.empty()) return best;
    const SearchResult of_kind = search_plans(space, {.top = 1, .threads = threads});
    if (!of_kind.plans.empty()) {
      best.config = config_of(space, of_kind.plans.front().choice);
    } else if (of_kind.least) {
      best.config = config_of(space, of_kind.least->choice);
    }
  }
  best.searched = true;
  if (best.config) best.plan = plan_run(*best.config, space.hardware, PlanRoutings::even);
  return best;
}

std::vector<TermOfKinds> terms_of(const RunPlan& data_sharding, const RunPlan& hybrid) {
  std::map<std::string, TermOfKinds> terms;
  for (const StepPart& part : data_sharding.mean) terms[part.what].data_sharding = part.seconds;
  for (const StepPart& part : hybrid.mean) terms[part.what].hybrid = part.seconds;
  std::vector<TermOfKinds> sorted;
  for (auto& [what, term] : terms) {
    term.what = what;
    sorted.push_back(std::move(term));
  }
  std::ranges::stable_sort(sorted, std::ranges::greater{},
                           [](const TermOfKinds& term) { return std::abs(term.difference()); });
  return sorted;
}

std::string absence(const BestOfKind& best, LayoutKind kind) {
  if (!best.searched) return fmt::format("no mesh of the axes is {}", name_of(kind));
  return fmt::format("rules refuse every choice that is {}", name_of(kind));
}

}  // namespace

LayoutKind kind_of(const Degrees& mesh) {
  const bool split = std::max({mesh.pipeline, mesh.context, mesh.tensor, mesh.expert, mesh.expert_tensor}) > 1;
  if (split) return LayoutKind::hybrid;
  return mesh.data_replicate == 1 ? LayoutKind::data_sharding : LayoutKind::neither;
}

KindsOfLayout compare_kinds(const SearchSpace& space, const SearchResult& found, std::size_t threads) {
  KindsOfLayout kinds{.data_sharding = best_of_kind(space, LayoutKind::data_sharding, found, threads),
                      .hybrid = best_of_kind(space, LayoutKind::hybrid, found, threads)};
  if (kinds.data_sharding.plan && kinds.hybrid.plan) {
    kinds.terms = terms_of(*kinds.data_sharding.plan, *kinds.hybrid.plan);
  }
  return kinds;
}

std::string KindsOfLayout::decision() const {
  if (!data_sharding.plan) return absence(data_sharding, LayoutKind::data_sharding);
  if (!hybrid.plan) return absence(hybrid, LayoutKind::hybrid);
  if (!data_sharding.fits() || !hybrid.fits()) {
    const bool alone = !data_sharding.fits();
    return fmt::format("memory: {} {}{}", name_of(alone ? LayoutKind::data_sharding : LayoutKind::hybrid),
                       (alone ? data_sharding : hybrid).plan->verdict.text(),
                       alone && !hybrid.fits() ? ", and no hybrid fits either" : "");
  }
  const double slower = hybrid.plan->time.seconds - data_sharding.plan->time.seconds;
  const TermOfKinds& term = terms.front();
  return fmt::format("{}: {} of data sharding alone and {} of the hybrid, of steps that differ by {}", term.what,
                     format_time(term.data_sharding, false), format_time(term.hybrid, false),
                     format_time(std::abs(slower), false));
}

}  // namespace weft
