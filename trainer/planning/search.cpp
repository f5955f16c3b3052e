#include "trainer/planning/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "parallel/runtime/quantities.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/planning/candidate_evaluator.h"

namespace weft {
namespace {

// Number of choices looked at concurrently, for any number of threads.
constexpr std::size_t wave = 32;
// Meshes with a microbatch that a dive searches at a time.
constexpr std::size_t dive_groups = 8;
constexpr double unlimited = std::numeric_limits<double>::infinity();

// Sets `front` among plans that are sorted by time, then by memory. Only earlier ones can be better in both.
void mark_front(std::vector<SearchedPlan>& plans) {
  std::optional<std::pair<double, std::int64_t>> least;  // by memory, so far
  for (SearchedPlan& plan : plans) {
    const std::pair figures{plan.time.seconds, plan.peak.total()};
    plan.front = !least || figures.second < least->second || figures == *least;
    if (plan.front) least = figures;
  }
}

struct NeedsLess {
  bool operator()(const SearchNode& one, const SearchNode& other) const {
    return std::tuple(one.bytes, one.choice, one.known) < std::tuple(other.bytes, other.choice, other.known);
  }
};

class Search {
 public:
  Search(const SearchSpace& space, const SearchOptions& options, const std::function<void(const SearchProgress&)>& told)
      : space_(space), evaluator_(space), options_(options), told_(told) {}

  SearchResult run() {
    result_.counts.choices = space_.choices();
    weigh(evaluator_.first(result_.counts));
    if (options_.seconds) dive();
    while (!stopped() && !finished()) account(looked_at(take(), &CandidateEvaluator::evaluate));
    if (stopped() && !finished()) keep_known();
    for (const SearchNode& node : queue_) leave(node);
    if (result_.plans.empty() && !result_.not_below) result_.least = least();
    mark_front(result_.plans);
    return std::move(result_);
  }

 private:
  // Looks at each node, several at once.
  using Look = CandidateEvaluation (CandidateEvaluator::*)(const SearchNode& node) const;
  std::vector<CandidateEvaluation> looked_at(const std::vector<SearchNode>& nodes, Look look) const {
    std::vector<CandidateEvaluation> steps(nodes.size());
    spread_work(nodes.size(), options_.threads, [&](std::size_t i) { steps[i] = (evaluator_.*look)(nodes[i]); });
    return steps;
  }

  bool stopped() const { return options_.seconds && std::chrono::steady_clock::now() - began_ >= limit(); }
  std::chrono::duration<double> limit() const { return std::chrono::duration<double>(*options_.seconds); }

  void weigh(std::vector<SearchNode> nodes) {
    const std::size_t at_once = options_.seconds ? 32 * wave : nodes.size();
    while (!nodes.empty() && !stopped()) {
      const auto from = nodes.end() - static_cast<std::ptrdiff_t>(std::min(at_once, nodes.size()));
      const std::vector<SearchNode> next(from, nodes.end());
      nodes.erase(from, nodes.end());
      account(looked_at(next, &CandidateEvaluator::weigh));
    }
    queue_.insert(nodes.begin(), nodes.end());
  }

  // Finds the fastest plan of a few groups at a time, by ascending bounds. The queue would come to a plan only when no
  // group has a lower bound. Of meshes that differ in replicas alone, which are much alike, one comes first.
  void dive() {
    std::set<SearchNode> firsts, others, left;
    std::set<std::pair<Degrees, std::size_t>> known;
    for (const SearchNode& node : std::exchange(queue_, {})) {
      Degrees alike = space_.meshes[node.choice.mesh];
      alike.data_replicate = alike.data_shard = 1;
      const bool is_first = known.insert({alike, node.choice.microbatch}).second;
      (is_first ? firsts : others).insert(node);
    }
    for (std::set<SearchNode>* groups : {&firsts, &others}) {
      while (!groups->empty() && groups->begin()->seconds < fastest_ && !stopped()) {
        for (std::size_t i = 0; i < dive_groups && !groups->empty(); ++i) {
          queue_.insert(groups->extract(groups->begin()));
        }
        while (!stopped() && !queue_.empty() && queue_.begin()->known != Known::all &&
               queue_.begin()->seconds < fastest_) {
          account(looked_at(take(fastest_), &CandidateEvaluator::evaluate));
        }
        left.merge(queue_);
        queue_.clear();
      }
      left.merge(*groups);
    }
    queue_ = std::move(left);
  }

  // Of a search that was stopped: its fastest plans, whatever else may be as fast.
  void keep_known() {
    for (auto node = queue_.begin(); node != queue_.end();) {
      const bool kept = node->known == Known::all && result_.plans.size() < options_.top;
      if (node->known != Known::all && !result_.not_below) result_.not_below = node->seconds;
      if (kept) result_.plans.push_back(*node->plan);
      node = kept ? queue_.erase(node) : std::next(node);
    }
  }

  // Takes known plans from the front of the queue: nothing behind them can be faster. Once there are enough, the rest
  // of the queue matters only for the front of time against memory.
  bool finished() {
    while (!queue_.empty()) {
      const SearchNode& first = *queue_.begin();
      const bool enough = result_.plans.size() >= options_.top;
      if (enough && first.seconds > options_.front_within * best_seconds()) return true;
      if (enough && (options_.front_within == 0.0 || first.bytes >= least_bytes_)) {
        leave(first);
      } else if (first.known == Known::all) {
        result_.plans.push_back(*first.plan);
        least_bytes_ = std::min(least_bytes_, first.bytes);
      } else {
        return false;
      }
      queue_.erase(queue_.begin());
    }
    return true;
  }
  double best_seconds() const { return result_.plans.empty() ? 0.0 : result_.plans.front().time.seconds; }
  void leave(const SearchNode& node) {
    if (node.known == Known::all) return;  // counted as planned
    const double slowest = result_.plans.size() < options_.top ? unlimited : result_.plans.back().time.seconds;
    if (result_.not_below && node.seconds <= slowest) {
      result_.counts[ChoiceOutcome::open] += node.choices;
      return;
    }
    result_.counts[node.known >= Known::seconds ? ChoiceOutcome::simulated : ChoiceOutcome::slower] += node.choices;
  }

  // The next choices in the queue that are not planned yet and can still matter, of those within `limit`.
  std::vector<SearchNode> take(double limit = unlimited) {
    std::vector<SearchNode> next;
    std::size_t found = result_.plans.size();
    for (auto node = queue_.begin(); node != queue_.end() && next.size() < wave && node->seconds <= limit;) {
      if (node->known == Known::all) {
        ++found;
        ++node;
        if (found >= options_.top && options_.front_within == 0.0) break;
      } else {
        next.push_back(*node);
        node = queue_.erase(node);
      }
    }
    return next;
  }

  void account(const std::vector<CandidateEvaluation>& steps) {
    for (const CandidateEvaluation& step : steps) {
      add(result_.counts, step.counts);
      for (const SearchNode& node : step.nodes) {
        if (node.known == Known::all) fastest_ = std::min(fastest_, node.seconds);
      }
      queue_.insert(step.nodes.begin(), step.nodes.end());
      too_large_.insert(step.too_large.begin(), step.too_large.end());
    }
    if (!told_) return;
    SearchProgress progress{.counts = result_.counts, .waiting = queue_.size()};
    if (fastest_ < unlimited) progress.best_seconds = fastest_;
    told_(progress);
  }

  // Among choices that do not fit, the one with least bytes: a best-first search by bytes.
  std::optional<SearchedPlan> least() {
    while (!too_large_.empty()) {
      std::vector<SearchNode> next;
      while (!too_large_.empty() && next.size() < wave && too_large_.begin()->known != Known::all) {
        next.push_back(std::move(too_large_.extract(too_large_.begin()).value()));
      }
      if (next.empty()) return *too_large_.begin()->plan;
      for (const CandidateEvaluation& step : looked_at(next, &CandidateEvaluator::evaluate_bytes)) {
        for (const auto* nodes : {&step.nodes, &step.too_large}) too_large_.insert(nodes->begin(), nodes->end());
      }
    }
    return std::nullopt;
  }

  const SearchSpace& space_;
  CandidateEvaluator evaluator_;
  const SearchOptions& options_;
  const std::function<void(const SearchProgress&)>& told_;
  SearchResult result_;
  std::set<SearchNode> queue_;
  std::set<SearchNode, NeedsLess> too_large_;
  double fastest_ = unlimited;  // of the plans that fit
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::int64_t least_bytes_ = std::numeric_limits<std::int64_t>::max();
};

BestOfKind best_of_kind(SearchSpace space, LayoutKind kind, const SearchResult& found, SearchOptions options) {
  BestOfKind best;
  const bool known = !found.plans.empty() && kind_of(space.meshes[found.plans.front().choice.mesh]) == kind;
  if (known) {
    best.config = config_of(space, found.plans.front().choice);
  } else {
    std::erase_if(space.meshes, [&](const Degrees& mesh) { return kind_of(mesh) != kind; });
    if (space.meshes.empty()) return best;
    options.top = 1;
    options.front_within = 0.0;
    const SearchResult of_kind = search_plans(space, options);
    if (!of_kind.plans.empty()) {
      best.config = config_of(space, of_kind.plans.front().choice);
    } else if (of_kind.least) {
      best.config = config_of(space, of_kind.least->choice);
    }
    best.stopped = of_kind.plans.empty() && of_kind.not_below;
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
  if (best.stopped) return fmt::format("no plan that is {} was found before the time was up", name_of(kind));
  return fmt::format("rules refuse every choice that is {}", name_of(kind));
}

}  // namespace

SearchResult search_plans(const SearchSpace& space, const SearchOptions& options,
                          const std::function<void(const SearchProgress&)>& progress) {
  return Search(space, options, progress).run();
}

LayoutKind kind_of(const Degrees& mesh) {
  const bool split = std::max({mesh.pipeline, mesh.context, mesh.tensor, mesh.expert, mesh.expert_tensor}) > 1;
  if (split) return LayoutKind::hybrid;
  return mesh.data_replicate == 1 ? LayoutKind::data_sharding : LayoutKind::neither;
}

KindsOfLayout compare_kinds(const SearchSpace& space, const SearchResult& found, const SearchOptions& options) {
  KindsOfLayout kinds{.data_sharding = best_of_kind(space, LayoutKind::data_sharding, found, options),
                      .hybrid = best_of_kind(space, LayoutKind::hybrid, found, options)};
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
