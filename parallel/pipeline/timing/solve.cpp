#include "parallel/pipeline/timing/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "parallel/pipeline/timing/search.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

void require_budgets(const TimingProblem& problem, bool pin_reductions) {
  std::string faults;
  std::int64_t least = 0;
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const std::int64_t smallest = smallest_budget(problem.ranks[r], pin_reductions);
    least = std::max(least, smallest);
    if (problem.ranks[r].budget >= smallest) continue;
    faults += fmt::format("{}rank {} needs {} bytes, its budget is {}", faults.empty() ? "" : "; ", r, smallest,
                          problem.ranks[r].budget);
  }
  if (faults.empty()) return;
  fail_request("no reshard timing fits the memory budget: {}; the smallest budget that fits every rank is {} bytes",
               faults, least);
}

// Views of the problem; the views that are best most often come first.
std::vector<TimingView> views() {
  using Reductions = TimingView::Reductions;
  struct Room {
    double lead = 1, headroom = 0;
  };
  constexpr double nothing_stays = 1e6;  // units of headroom
  std::vector<TimingView> all;
  for (const bool eager : {false, true}) {
    for (const auto& [lead, headroom] :
         {Room{1}, Room{0, nothing_stays}, Room{2}, Room{1, 1}, Room{0.5}, Room{1, 2}, Room{0}}) {
      for (const Reductions order : {Reductions::when_free, Reductions::first, Reductions::last}) {
        for (const double weight : {1.0, 0.3, 0.0}) {
          if (headroom == nothing_stays && weight > 0) continue;
          all.push_back(
              {.lead = lead, .reduction_weight = weight, .headroom = headroom, .eager = eager, .reductions = order});
        }
      }
    }
  }
  return all;
}

}  // namespace

TimingSolution solve_timing(const TimingProblem& problem, const SolveOptions& options) {
  require_budgets(problem, options.pin_reductions);
  TimingSearch search(problem, options);
  TimingSolution solution;
  solution.compute_makespan = search.compute_makespan();
  solution.lower_bound = search.lower_bound();

  constexpr int least_candidates = 6;
  std::int64_t work = options.work;
  std::int64_t ops = 0;
  for (const TimingRank& rank : problem.ranks) ops += static_cast<std::int64_t>(rank.ops.size());
  // The search starts from the first of equal candidates. `leanest` is another of them, so that saving byte-steps
  // leaves the course of the search, and so the length of the step, as it is.
  std::optional<TimingCandidate> best, leanest;
  TimingView best_view;
  const auto consider = [&](TimingCandidate candidate, const TimingView& view) {
    ++solution.candidates;
    work -= 10 * ops;
    if (!best || candidate.score < best->score) {
      best = std::move(candidate);
      best_view = view;
      leanest.reset();
    } else if (search.is_leaner(candidate, leanest ? *leanest : *best)) {
      leanest = std::move(candidate);
    }
  };
  const auto may_go_on = [&] {
    return !best ||
           (!search.at_bound(best->makespan) && (solution.candidates < least_candidates || work > options.work / 2));
  };
  for (const TimingView& view : views()) {
    if (!may_go_on()) break;
    consider(search.build(view, search.compute_ends()), view);
  }
  // Urgency is taken from the ends of the best plan so far.
  for (int round = 0; round < 3 && may_go_on(); ++round) {
    consider(search.build(best_view, std::vector<double>(best->ends)), best_view);
  }
  solution.steps = search.improve(*best, best_view, work);
  if (leanest && search.is_leaner(*leanest, *best)) best = std::move(leanest);

  if (options.fixed_policies && !search.at_bound(best->makespan)) {
    constexpr int most_buffers = 32;
    auto fixed = best_fixed_timing(problem, options.pin_reductions, most_buffers, best->makespan);
    if (fixed) {
      solution.fixed = fixed->policy;
      best->makespan = fixed->makespan;
      best->plans = std::move(fixed->plan.ranks);
    }
  }
  solution.makespan = best->makespan;
  solution.plan.ranks = std::move(best->plans);
  return solution;
}

}  // namespace weft
