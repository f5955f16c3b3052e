#include "parallel/pipeline/timing/fixed.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "parallel/pipeline/timing/clock.h"

namespace weft {
namespace {

// The visits of a rank's ops: how often the rank has changed its stage, and the stages between two visits.
class Visits {
 public:
  explicit Visits(const TimingRank& rank) {
    visit_of_.reserve(rank.ops.size());
    for (const TimingOp& op : rank.ops) {
      if (stages_.empty() || stages_.back() != op.stage) stages_.push_back(op.stage);
      visit_of_.push_back(static_cast<int>(stages_.size()) - 1);
    }
  }
  bool same(int op, int other) const { return visit_of_[op] == visit_of_[other]; }
  // Whether fewer than `window` other stages are visited between two ops of one stage.
  bool within(int op, int other, int window) const {
    std::vector<int> others;
    for (int visit = visit_of_[op] + 1; visit < visit_of_[other]; ++visit) {
      const int stage = stages_[visit];
      if (stage == stages_[visit_of_[op]] || std::ranges::find(others, stage) != others.end()) {
        continue;
      }
      others.push_back(stage);
      if (static_cast<int>(others.size()) >= window) return false;
    }
    return true;
  }

 private:
  std::vector<int> stages_, visit_of_;
};

class FixedRank {
 public:
  FixedRank(const TimingRank& rank, const TimingTable& table, const FixedPolicy& policy)
      : rank_(rank), table_(table), policy_(policy), ops_(static_cast<int>(rank.ops.size())) {}

  std::optional<TimingRankPlan> plan() {
    const Visits visits(rank_);
    add_gathers(visits);
    trigger_gathers();
    if (!fits()) return {};  // no room even without gradients
    add_reductions(visits);
    if (!fits()) return {};
    order_channel();
    return std::move(plan_);
  }

 private:
  using Kept = FixedPolicy::Residency;

  bool fits() const {
    const std::vector<std::int64_t> bytes = reserved_bytes(rank_, plan_);
    return bytes.empty() || *std::ranges::max_element(bytes) <= rank_.budget;
  }

  bool stays(const Visits& visits, int op, int next) const {
    switch (policy_.residency) {
      case Kept::each_use:
      case Kept::buffers:
        return false;
      case Kept::visit:
        return visits.same(op, next);
      case Kept::window:
        return visits.within(op, next, policy_.count);
      case Kept::step:
        return true;
    }
    return false;
  }

  void add_gathers(const Visits& visits) {
    const bool buffers = policy_.residency == Kept::buffers;
    std::vector<int> last(rank_.units.size(), -1);  // index of the unit's last gather
    struct Buffer {
      int unit = -1, until = -1;
    };
    std::vector<Buffer> all(std::max(1, policy_.count));
    for (const TimingUse& use : table_.reads) {
      int& gather = last[use.unit];
      Buffer& buffer = all[buffers ? use.unit % policy_.count : 0];
      const bool kept =
          gather >= 0 && (plan_.gathers[gather].until + 1 >= use.op ||
                          (buffers ? buffer.unit == use.unit : stays(visits, plan_.gathers[gather].until, use.op)));
      if (kept) {
        plan_.gathers[gather].until = use.op;
      } else {
        gather = static_cast<int>(plan_.gathers.size());
        // This very op may read the unit that used the buffer last.
        plan_.gathers.push_back({use.unit, buffers ? std::min(buffer.until, use.op - 1) : -1, use.op, use.op});
      }
      if (buffers) buffer = {use.unit, use.op};
    }
  }

  void trigger_gathers() {
    std::vector<int> until(rank_.units.size(), -1);
    int latest = -1;
    for (std::size_t i = 0; i < plan_.gathers.size(); ++i) {
      TimedGather& gather = plan_.gathers[i];
      if (policy_.residency != Kept::buffers) {
        const auto ahead = static_cast<std::size_t>(policy_.lookahead);
        if (i >= ahead) gather.after = plan_.gathers[i - ahead].need - 1;
        latest = gather.after = std::max(latest, gather.after);
      }
      gather.after = std::max(gather.after, until[gather.unit]);
      latest = std::max(latest, gather.after);  // not read with buffers
      until[gather.unit] = gather.until;
    }
  }

  void add_reductions(const Visits& visits) {
    std::vector<int> current(rank_.units.size(), -1);
    for (const TimingUse& use : table_.adds) {
      int& reduction = current[use.unit];
      const int before = reduction < 0 ? -1 : plan_.reductions[reduction].after;
      const bool goes_on =
          reduction >= 0 && (policy_.reduction == FixedPolicy::Reduction::step || before + 1 == use.op ||
                             (policy_.reduction == FixedPolicy::Reduction::visit && visits.same(before, use.op)));
      if (goes_on) {
        plan_.reductions[reduction].after = use.op;
        continue;
      }
      reduction = static_cast<int>(plan_.reductions.size());
      plan_.reductions.push_back({use.unit, use.op, use.op, ops_});
    }
    // Compute waits where it would begin one gradient too many.
    if (policy_.outstanding >= 0) {
      std::vector<int> begun(ops_);  // gradients begun up to each op
      for (const TimedReduction& reduction : plan_.reductions) ++begun[reduction.first];
      for (std::size_t q = 1; q < begun.size(); ++q) begun[q] += begun[q - 1];
      for (TimedReduction& reduction : plan_.reductions) {
        const int too_many = begun[reduction.after] + policy_.outstanding;
        if (too_many < static_cast<int>(plan_.reductions.size())) reduction.wait = plan_.reductions[too_many].first;
      }
    }
    const auto earlier = [](const TimedReduction& one, const TimedReduction& other) { return one.after < other.after; };
    if (!std::ranges::is_sorted(plan_.reductions, earlier)) std::ranges::stable_sort(plan_.reductions, earlier);
  }

  // Orders by trigger. At the same trigger a reduction goes first only if the next op waits for it.
  void order_channel() {
    struct Place {
      int after = 0, turn = 0;
      TimedCollective collective;
    };
    std::vector<Place> gathers, reductions, places;
    gathers.reserve(plan_.gathers.size());
    for (std::size_t i = 0; i < plan_.gathers.size(); ++i) {
      gathers.push_back({plan_.gathers[i].after, 1, {false, static_cast<int>(i)}});
    }
    reductions.reserve(plan_.reductions.size());
    for (std::size_t i = 0; i < plan_.reductions.size(); ++i) {
      const auto& reduction = plan_.reductions[i];
      reductions.push_back(
          {reduction.after, reduction.wait == reduction.after + 1 ? 0 : 2, {true, static_cast<int>(i)}});
    }
    const auto earlier = [](const Place& one, const Place& other) {
      return one.after != other.after ? one.after < other.after : one.turn < other.turn;
    };
    // The lists are mostly sorted already, and sorting would dominate the time.
    for (auto* list : {&gathers, &reductions}) {
      if (!std::ranges::is_sorted(*list, earlier)) std::ranges::stable_sort(*list, earlier);
    }
    places.resize(gathers.size() + reductions.size());
    std::merge(gathers.begin(), gathers.end(), reductions.begin(), reductions.end(), places.begin(), earlier);
    plan_.channel.reserve(places.size());
    for (const Place& place : places) plan_.channel.push_back(place.collective);
  }

  const TimingRank& rank_;
  const TimingTable& table_;
  const FixedPolicy& policy_;
  const int ops_;
  TimingRankPlan plan_;
};

}  // namespace

std::vector<FixedPolicy> fixed_policies(const TimingProblem& problem, bool pin_reductions, int most_buffers) {
  using Kept = FixedPolicy::Residency;
  using Reduction = FixedPolicy::Reduction;
  int chunks = 1, units = 1;
  for (const TimingRank& rank : problem.ranks) {
    std::set<int> stages;
    for (const TimingOp& op : rank.ops) stages.insert(op.stage);
    chunks = std::max(chunks, static_cast<int>(stages.size()));
    units = std::max(units, static_cast<int>(rank.units.size()));
  }
  std::vector<FixedPolicy> residencies;
  for (const int lookahead : {1, 2, 4}) {
    residencies.push_back({Kept::each_use, 0, lookahead});
    residencies.push_back({Kept::visit, 0, lookahead});
    for (int window = 2; window <= chunks; ++window) residencies.push_back({Kept::window, window, lookahead});
    residencies.push_back({Kept::step, 0, lookahead});
  }
  const int step = (units + most_buffers - 1) / std::max(1, most_buffers);
  for (int count = step; count <= units; count += step) residencies.push_back({Kept::buffers, count, 0});
  std::vector<FixedPolicy> policies;
  for (FixedPolicy policy : residencies) {
    for (const Reduction reduction : {Reduction::step, Reduction::visit, Reduction::each_use}) {
      if (pin_reductions && reduction != Reduction::step) continue;
      for (const int outstanding : {-1, 2, 1, 0}) {
        policy.reduction = reduction;
        policy.outstanding = outstanding;
        policies.push_back(policy);
      }
    }
  }
  return policies;
}

std::optional<TimingRankPlan> fixed_plan(const TimingRank& rank, const TimingTable& table, const FixedPolicy& policy) {
  return FixedRank(rank, table, policy).plan();
}

std::optional<TimingPlan> fixed_plan(const TimingProblem& problem, const FixedPolicy& policy) {
  TimingPlan plan;
  for (const TimingRank& rank : problem.ranks) {
    auto rank_plan = fixed_plan(rank, timing_table(rank, false), policy);
    if (!rank_plan) return {};
    plan.ranks.push_back(std::move(*rank_plan));
  }
  return plan;
}

std::optional<FixedTiming> best_fixed_timing(const TimingProblem& problem, bool pin_reductions, int most_buffers,
                                             double shorter_than) {
  const TimingClock clock(problem);
  std::vector<double> ends(clock.ops()), rank_ends(problem.ranks.size());
  std::vector<TimingTable> tables;
  for (const TimingRank& rank : problem.ranks) tables.push_back(timing_table(rank, pin_reductions));
  std::optional<FixedTiming> best;
  for (const FixedPolicy& policy : fixed_policies(problem, pin_reductions, most_buffers)) {
    TimingPlan plan;
    std::vector<TimingChannel> channels;
    for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
      auto rank_plan = fixed_plan(problem.ranks[r], tables[r], policy);
      if (!rank_plan) break;
      channels.push_back(timing_channel(problem.ranks[r], *rank_plan));
      plan.ranks.push_back(std::move(*rank_plan));
      // A step is at least as long as the work of any single channel.
      const auto& seconds = channels.back().seconds;
      if (std::accumulate(seconds.begin(), seconds.end(), 0.0) > shorter_than) break;
    }
    if (plan.ranks.size() < problem.ranks.size()) continue;
    const double makespan = clock.run(channels, ends, rank_ends);
    const auto is_leaner = [&] {
      return best && makespan == shorter_than &&
             reserved_byte_steps(problem, plan.ranks) < reserved_byte_steps(problem, best->plan.ranks);
    };
    if (makespan >= shorter_than && !is_leaner()) continue;
    shorter_than = makespan;
    best = FixedTiming{policy, std::move(plan), makespan};
  }
  return best;
}

}  // namespace weft
