#include "parallel/pipeline/timing/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace weft {
namespace {
constexpr double most_worse = 0.05;  // share of the best plan's excess over the bound
constexpr int most_steps = 3000;
}  // namespace

// splitmix64
std::uint64_t TimingRandom::next() {
  std::uint64_t value = state_ += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

TimingSearch::TimingSearch(const TimingProblem& problem, const SolveOptions& options)
    : problem_(problem), options_(options), clock_(problem) {
  for (const TimingRank& rank : problem.ranks) tables_.push_back(timing_table(rank, options.pin_reductions));
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) decoders_.emplace_back(problem.ranks[r], tables_[r]);
  compute_ends_.resize(clock_.ops());
  std::vector<double> rank_ends(problem.ranks.size());
  compute_makespan_ = clock_.run({}, compute_ends_, rank_ends);
  lower_bound_ = find_lower_bound();
}

// Relaxes the budget. Every unit is gathered once, in the order of first needs. Every rank reduces each of its
// gradients once, after the last add at the earliest.
double TimingSearch::find_lower_bound() const {
  std::vector<TimingRankPlan> plans;
  for (std::size_t r = 0; r < problem_.ranks.size(); ++r) {
    TimingRankPlan plan;
    const int ops = static_cast<int>(problem_.ranks[r].ops.size());
    for (const TimingUse& use : tables_[r].reads) {
      if (use.previous >= 0) continue;
      plan.channel.push_back({false, static_cast<int>(plan.gathers.size())});
      plan.gathers.push_back({use.unit, -1, use.op, ops - 1});
    }
    plans.push_back(std::move(plan));
  }
  const TimingCandidate relaxed = evaluate(std::move(plans));
  double bound = relaxed.makespan;
  for (std::size_t r = 0; r < problem_.ranks.size(); ++r) {
    double channel = 0;
    for (const TimingUse& use : tables_[r].adds) {
      if (use.next >= 0) continue;
      const double added = relaxed.ends[clock_.first_op(static_cast<int>(r)) + use.op];
      channel = std::max(channel, added) + problem_.ranks[r].units[use.unit].reduce_seconds;
    }
    bound = std::max(bound, channel);
  }
  return bound;
}

void TimingSearch::begin(int rank, const TimingView& view, const std::vector<double>& ends) {
  const TimingRank& own = problem_.ranks[rank];
  const auto own_ends = std::span(ends).subspan(clock_.first_op(rank), own.ops.size());
  decoders_[rank].begin(select_stays(own, tables_[rank], own_ends, view, options_.pin_reductions), own_ends, view);
}

void TimingSearch::rate(TimingCandidate& candidate) const {
  candidate.makespan = clock_.run(candidate.channels, candidate.ends, candidate.rank_ends);
  double busy = 0;
  for (const TimingChannel& channel : candidate.channels) {
    busy += std::accumulate(channel.seconds.begin(), channel.seconds.end(), 0.0);
  }
  const double ends = std::accumulate(candidate.rank_ends.begin(), candidate.rank_ends.end(), 0.0);
  const auto ranks = static_cast<double>(candidate.channels.size());
  candidate.score = candidate.makespan + (1e-3 * ends + 1e-4 * busy) / ranks;
}

TimingCandidate TimingSearch::evaluate(std::vector<TimingRankPlan> plans) const {
  TimingCandidate candidate;
  candidate.plans = std::move(plans);
  for (std::size_t r = 0; r < candidate.plans.size(); ++r) {
    candidate.channels.push_back(timing_channel(problem_.ranks[r], candidate.plans[r]));
  }
  candidate.ends.resize(clock_.ops());
  candidate.rank_ends.resize(problem_.ranks.size());
  rate(candidate);
  return candidate;
}

bool TimingSearch::is_leaner(const TimingCandidate& one, const TimingCandidate& other) const {
  return one.makespan == other.makespan && one.score == other.score &&
         reserved_byte_steps(problem_, one.plans) < reserved_byte_steps(problem_, other.plans);
}

TimingCandidate TimingSearch::build(const TimingView& view, const std::vector<double>& ends) {
  for (int r = 0; r < static_cast<int>(decoders_.size()); ++r) {
    begin(r, view, ends);
  }
  std::vector<double> decoded(clock_.ops());
  for (const TimingClock::Stretch& stretch : clock_.stretches()) {
    const int base = clock_.first_op(stretch.rank);
    for (int q = stretch.first; q < stretch.end; ++q) {
      decoded[base + q] = decoders_[stretch.rank].run_op(q, clock_.ready(base + q, decoded));
    }
  }
  std::vector<TimingRankPlan> plans;
  for (TimingDecoder& decoder : decoders_) plans.push_back(decoder.finish());
  return evaluate(std::move(plans));
}

// Decodes one rank as if the other ranks did not react.
TimingRankPlan TimingSearch::decode_alone(int rank, const TimingView& view, const std::vector<double>& ends) {
  TimingDecoder& decoder = decoders_[rank];
  begin(rank, view, ends);
  const int base = clock_.first_op(rank), ops = static_cast<int>(problem_.ranks[rank].ops.size());
  for (int q = 0; q < ops; ++q) decoder.run_op(q, clock_.ready(base + q, ends));
  return decoder.finish();
}

void TimingSearch::vary(int rank, TimingView& view) {
  constexpr double leads[] = {0, 0.5, 1, 1.5, 2, 3};
  constexpr double headrooms[] = {0, 0, 0.5, 1, 2};
  constexpr double weights[] = {0, 0.1, 0.3, 0.6, 1, 1.5};
  using Reductions = TimingView::Reductions;
  constexpr Reductions orders[] = {Reductions::when_free, Reductions::first, Reductions::last};
  switch (random_.below(20)) {
    case 0:
      view.lead = leads[random_.below(6)];
      return;
    case 1:
      view.headroom = headrooms[random_.below(5)];
      return;
    case 2:
      view.reduction_weight = weights[random_.below(6)];
      return;
    case 3:
      view.reductions = orders[random_.below(3)];
      return;
    case 4:
      view.eager = random_.below(2) == 0;
      view.overtake = random_.below(2) == 0;
      view.bridge = random_.below(4) != 0;
      return;
    default:
      break;
  }
  // In a random stretch of the rank, gaps get other weights, or transfers other urgencies.
  const TimingTable& table = tables_[rank];
  const int ops = static_cast<int>(table.core.size());
  const int length = std::max(2, static_cast<int>(ops * std::pow(random_.uniform(), 2.0)));
  const int first = random_.below(ops + length) - length, end = first + length;
  const double spread = 0.5 + 2 * random_.uniform();
  const auto vary_each = [&](const std::vector<TimingUse>& uses, std::vector<float>& list, float usual, auto vary_one) {
    if (list.empty()) list.assign(uses.size(), usual);
    for (std::size_t i = 0; i < uses.size(); ++i) {
      if (uses[i].op >= first && uses[i].op < end) list[i] = static_cast<float>(vary_one(list[i]));
    }
  };
  const int which = random_.below(6);  // weights, urgencies, or both
  if (which < 4) {
    const auto reweigh = [&](double weight) {
      if (random_.below(12) == 0) return 0.0;
      if (weight == 0) return random_.below(2) == 0 ? 0.0 : 1.0;
      return std::clamp(weight * std::exp(spread * (2 * random_.uniform() - 1)), 1e-3, 1e3);
    };
    vary_each(table.reads, view.read_weights, 1, reweigh);
    vary_each(table.adds, view.add_weights, 1, reweigh);
  }
  if (which < 3) return;
  double longest = 0;
  for (const TimingUnit& unit : problem_.ranks[rank].units) {
    longest = std::max({longest, unit.gather_seconds, unit.reduce_seconds});
  }
  const auto hurry = [&](double) { return random_.below(3) == 0 ? 0 : spread * longest * (2 * random_.uniform() - 1); };
  vary_each(table.reads, view.read_urgency, 0, hurry);
  vary_each(table.adds, view.add_urgency, 0, hurry);
  if (random_.below(2) == 0) return;
  vary_each(table.adds, view.add_patience, 0, [&](double) { return std::max(0, random_.below(8) - 4); });
}

int TimingSearch::improve(TimingCandidate& best, const TimingView& view, std::int64_t work) {
  std::vector<TimingView> views(problem_.ranks.size(), view);
  TimingCandidate current = best;
  std::vector<double> ends(current.ends.size()), rank_ends(current.rank_ends.size());
  std::int64_t largest = 0;
  for (const TimingRank& rank : problem_.ranks) largest = std::max(largest, static_cast<std::int64_t>(rank.ops.size()));
  const double expected_steps = std::min(static_cast<double>(most_steps),
                                         static_cast<double>(work) / static_cast<double>(clock_.ops() + 8 * largest));
  int steps = 0;
  for (; work > 0 && steps < most_steps && !at_bound(best.makespan); ++steps) {
    const int rank = random_.below(static_cast<int>(views.size()));
    const auto ops = static_cast<std::int64_t>(problem_.ranks[rank].ops.size());
    work -= clock_.ops() + 8 * ops;
    if (ops == 0) continue;
    TimingView varied = views[rank];
    vary(rank, varied);
    TimingRankPlan plan = decode_alone(rank, varied, current.ends);
    if (plan == current.plans[rank]) {
      views[rank] = std::move(varied);
      continue;
    }
    TimingChannel channel = timing_channel(problem_.ranks[rank], plan);
    const double before = current.score;
    std::swap(current.channels[rank], channel);
    std::swap(current.ends, ends);
    std::swap(current.rank_ends, rank_ends);
    const double makespan = current.makespan;
    rate(current);
    // A slightly worse plan is sometimes accepted, ever less of it, because the best one may lie behind it.
    const double worse =
        random_.uniform() * most_worse * std::max(0.0, 1 - steps / expected_steps) * (best.makespan - lower_bound_);
    if (current.score <= before + worse) {
      views[rank] = std::move(varied);
      current.plans[rank] = std::move(plan);
      if (current.makespan < best.makespan ||
          (current.makespan == best.makespan && (current.score < best.score || is_leaner(current, best)))) {
        best = current;
      }
      continue;
    }
    std::swap(current.channels[rank], channel);
    std::swap(current.ends, ends);
    std::swap(current.rank_ends, rank_ends);
    current.makespan = makespan;
    current.score = before;
  }
  return steps;
}

}  // namespace weft
