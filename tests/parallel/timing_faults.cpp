#include "tests/parallel/timing_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

namespace weft {
namespace {

// Every read (or add) of a unit must lie in one of its intervals; intervals are in order and do not overlap.
class Coverage {
 public:
  Coverage(int units, int ops) : covered_(static_cast<std::size_t>(units) * ops), ops_(ops) {}
  // False if the interval overlaps another one of the unit.
  bool add(int unit, int first, int last) {
    bool alone = true;
    for (int q = first; q <= last; ++q) alone = !std::exchange(cell(unit, q), 1) && alone;
    return alone;
  }
  bool has(int unit, int op) { return cell(unit, op) != 0; }

 private:
  char& cell(int unit, int op) { return covered_[static_cast<std::size_t>(unit) * ops_ + op]; }
  std::vector<char> covered_;
  int ops_ = 0;
};

bool contains(std::span<const int> units, int unit) {
  return std::ranges::find(units, unit) != units.end();
}

struct RankFaults {
  const TimingRank& rank;
  const TimingRankPlan& plan;
  int number = 0;
  bool pin_reductions = false;
  std::vector<std::string>& faults;

  int ops() const { return static_cast<int>(rank.ops.size()); }
  int units() const { return static_cast<int>(rank.units.size()); }
  template <typename... Parts>
  void fault(fmt::format_string<Parts...> text, Parts&&... parts) {
    faults.push_back(fmt::format("rank {}: {}", number, fmt::format(text, std::forward<Parts>(parts)...)));
  }

  // Whether positions are in range; the other checks index by them.
  bool positions() {
    const std::size_t before = faults.size();
    for (const TimedGather& gather : plan.gathers) {
      if (gather.unit < 0 || gather.unit >= units() || gather.after < -1 || gather.after >= gather.need ||
          gather.need > gather.until || gather.until >= ops()) {
        fault("the gather of unit {} after op {}, needed by {}, kept until {} has positions out of order", gather.unit,
              gather.after, gather.need, gather.until);
      }
    }
    for (const TimedReduction& reduction : plan.reductions) {
      if (reduction.unit < 0 || reduction.unit >= units() || reduction.first < 0 || reduction.first > reduction.after ||
          reduction.after >= reduction.wait || reduction.wait > ops()) {
        fault("the reduction of unit {} from op {} after {}, waited for by {} has positions out of order",
              reduction.unit, reduction.first, reduction.after, reduction.wait);
      }
    }
    return faults.size() == before;
  }

  void gathers() {
    Coverage resident(units(), ops());
    std::vector<int> until(rank.units.size(), -1);
    for (const TimedGather& gather : plan.gathers) {
      int& previous = until[gather.unit];
      if (gather.after < previous || !resident.add(gather.unit, gather.need, gather.until)) {
        fault("unit {} is gathered after op {} while it is there", gather.unit, gather.after);
      }
      previous = gather.until;
      for (const int q : {gather.need, gather.until}) {
        if (!contains(rank.reads_of(rank.ops[q]), gather.unit)) {
          fault("op {} begins or ends an interval of unit {} but does not read it", q, gather.unit);
        }
      }
    }
    for (int q = 0; q < ops(); ++q) {
      for (const int unit : rank.reads_of(rank.ops[q])) {
        if (!resident.has(unit, q)) fault("op {} reads unit {} while it is sharded", q, unit);
      }
    }
  }

  void reductions() {
    Coverage accumulating(units(), ops());
    std::vector<int> count(rank.units.size());
    for (const TimedReduction& reduction : plan.reductions) {
      const int before = count[reduction.unit]++;
      if (!accumulating.add(reduction.unit, reduction.first, reduction.after)) {
        fault("two gradients of unit {} are filled at once", reduction.unit);
      }
      if (pin_reductions && before == 1) fault("unit {} is reduced more than once", reduction.unit);
      for (const int q : {reduction.first, reduction.after}) {
        if (!contains(rank.adds_of(rank.ops[q]), reduction.unit)) {
          fault("op {} begins or ends a gradient of unit {} but does not add to it", q, reduction.unit);
        }
      }
    }
    for (int q = 0; q < ops(); ++q) {
      for (const int unit : rank.adds_of(rank.ops[q])) {
        if (rank.units[unit].gradient_bytes > 0 && !accumulating.has(unit, q)) {
          fault("op {} adds to a gradient of unit {} that is not there", q, unit);
        }
      }
    }
  }

  void channel() {
    std::vector<char> gathered(plan.gathers.size()), reduced(plan.reductions.size());
    std::vector<int> reduction_place(plan.reductions.size());
    int latest = -1;  // latest trigger so far
    for (std::size_t place = 0; place < plan.channel.size(); ++place) {
      const auto [reduction, index] = plan.channel[place];
      auto& seen = reduction ? reduced : gathered;
      if (index < 0 || index >= static_cast<int>(seen.size()) || std::exchange(seen[index], 1)) {
        return fault("place {} of the channel is not a collective, or one that was before", place);
      }
      if (reduction) reduction_place[index] = static_cast<int>(place);
      const int need = reduction ? plan.reductions[index].wait : plan.gathers[index].need;
      latest = std::max(latest, reduction ? plan.reductions[index].after : plan.gathers[index].after);
      if (latest >= need) {
        fault("place {} of the channel is needed by op {} but waits for the end of op {}", place, need, latest);
      }
    }
    if (plan.channel.size() != gathered.size() + reduced.size()) return fault("the channel leaves out a collective");
    room(reduction_place);
  }

  // A gather must come after all reductions in the channel that are waited for at or before op `after` + 1: it may take
  // their room.
  void room(const std::vector<int>& reduction_place) {
    std::vector<int> last_place(rank.ops.size() + 1, -1);
    for (std::size_t i = 0; i < plan.reductions.size(); ++i) {
      int& place = last_place[plan.reductions[i].wait];
      place = std::max(place, reduction_place[i]);
    }
    for (std::size_t q = 1; q < last_place.size(); ++q) last_place[q] = std::max(last_place[q], last_place[q - 1]);
    for (std::size_t place = 0; place < plan.channel.size(); ++place) {
      if (plan.channel[place].reduction) continue;
      const TimedGather& gather = plan.gathers[plan.channel[place].index];
      if (last_place[gather.after + 1] > static_cast<int>(place)) {
        fault("the gather of unit {} after op {} overtakes a reduction whose room it may take", gather.unit,
              gather.after);
      }
    }
  }

  void bytes() {
    const std::vector<std::int64_t> reserved = reserved_bytes(rank, plan);
    const auto peak = std::ranges::max_element(reserved);
    if (peak != reserved.end() && *peak > rank.budget) {
      fault("op {} has {} bytes reserved, the budget is {}", peak - reserved.begin(), *peak, rank.budget);
    }
  }
};

}  // namespace

std::vector<std::string> find_plan_faults(const TimingProblem& problem, const TimingPlan& plan, bool pin_reductions) {
  std::vector<std::string> faults;
  if (plan.ranks.size() != problem.ranks.size()) {
    return {fmt::format("a plan of {} ranks for {}", plan.ranks.size(), problem.ranks.size())};
  }
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    RankFaults rank{problem.ranks[r], plan.ranks[r], static_cast<int>(r), pin_reductions, faults};
    if (!rank.positions()) continue;
    rank.gathers();
    rank.reductions();
    rank.channel();
    rank.bytes();
  }
  return faults;
}

}  // namespace weft
