#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "parallel/pipeline/timing/decode.h"

namespace weft {
namespace {

// A gap between two uses, over the ops first .. last, that may be bridged.
struct Gap {
  int first = 0, last = 0;
  std::int64_t bytes = 0;
  double saves = 0;  // weighted seconds of the channel
  Stay* stay = nullptr;

  std::int64_t bytes_now() const { return *stay == Stay::kept ? bytes : 0; }
};

// Drops gaps until the rest fits `capacity` at every op.
void sweep(std::vector<Gap>& gaps, std::span<const std::int64_t> capacity) {
  std::vector<int> begins(capacity.size() + 1);  // gaps by their first op
  for (const Gap& gap : gaps) ++begins[gap.first + 1];
  for (std::size_t q = 1; q < begins.size(); ++q) begins[q] += begins[q - 1];
  std::vector<int> order(gaps.size()), place(begins.begin(), begins.end());
  for (std::size_t i = 0; i < gaps.size(); ++i) order[place[gaps[i].first]++] = static_cast<int>(i);

  std::vector<std::int64_t> expiring(capacity.size());
  std::vector<int> active;
  std::int64_t load = 0;
  for (int q = 0; q < static_cast<int>(capacity.size()); ++q) {
    if (q > 0) load -= expiring[q - 1];
    for (int i = begins[q]; i < begins[q + 1]; ++i) {
      const Gap& gap = gaps[order[i]];
      active.push_back(order[i]);
      load += gap.bytes_now();
      expiring[gap.last] += gap.bytes_now();
    }
    while (load > std::max<std::int64_t>(0, capacity[q])) {
      std::size_t least = 0, kept = 0;
      double least_worth = 0;
      for (const int index : active) {
        const Gap& gap = gaps[index];
        if (gap.last < q || gap.bytes_now() == 0) continue;
        const double worth = gap.saves / (static_cast<double>(gap.bytes) * (gap.last - q + 1));
        if (kept == 0 || worth < least_worth) least = kept, least_worth = worth;
        active[kept++] = index;
      }
      active.resize(kept);
      if (kept == 0) break;
      Gap& gap = gaps[active[least]];
      load -= gap.bytes;
      expiring[gap.last] -= gap.bytes;
      *gap.stay = Stay::dropped;
    }
  }
}

double weight_of(std::span<const float> weights, std::size_t i) {
  return weights.empty() ? 1 : static_cast<double>(weights[i]);
}

class Selection {
 public:
  Selection(const TimingRank& rank, const TimingTable& table, std::span<const double> ends, const TimingView& view)
      : rank_(rank), table_(table), ends_(ends), view_(view), capacity_(rank.ops.size()) {
    choice_.reads.assign(table.reads.size(), Stay::kept);
    choice_.adds.assign(table.adds.size(), Stay::kept);
    for (std::size_t q = 0; q < rank.ops.size(); ++q) capacity_[q] = rank.budget - table.core[q];
  }

  TimingChoice run(bool pin_reductions) {
    const std::vector<std::int64_t> whole = capacity_;
    std::int64_t largest = 0;
    for (const TimingUnit& unit : rank_.units) largest = std::max({largest, unit.parameter_bytes, unit.gradient_bytes});
    const std::int64_t headroom = std::llround(view_.headroom * static_cast<double>(largest));
    for (std::int64_t& bytes : capacity_) bytes -= headroom;
    read_gaps();
    if (!pin_reductions) add_gaps();
    sweep(gaps_, capacity_);
    // The first sweep charged a transfer window to every gap. A gap that does not fit beside windows must not stay.
    std::erase_if(full_, [](const Gap& gap) { return *gap.stay != Stay::kept; });
    sweep(full_, whole);
    return std::move(choice_);
  }

 private:
  double begin_of(int op) const { return ends_[op] - rank_.ops[op].seconds; }
  void charge(int first, int last, std::int64_t bytes) {
    for (int q = first; q <= last; ++q) capacity_[q] -= bytes;
  }

  void read_gaps() {
    for (std::size_t i = 0; i < table_.reads.size(); ++i) {
      const TimingUse& use = table_.reads[i];
      const TimingUnit& unit = rank_.units[use.unit];
      const int previous = use.previous < 0 ? -1 : table_.reads[use.previous].op;
      int window = use.op;  // first op at which the gathered parameters are there
      while (window > previous + 1 && ends_[window - 1] > begin_of(use.op) - view_.lead * unit.gather_seconds) {
        --window;
      }
      charge(window, use.op - 1, unit.parameter_bytes);
      if (use.previous < 0 || previous + 1 == use.op) continue;
      const double weight = weight_of(view_.read_weights, use.previous);
      Gap gap{previous + 1, use.op - 1, unit.parameter_bytes, weight * unit.gather_seconds,
              &choice_.reads[use.previous]};
      if (weight == 0) {
        *gap.stay = Stay::apart;
        continue;
      }
      full_.push_back(gap);
      gap.last = window - 1;
      if (gap.first <= gap.last) gaps_.push_back(gap);
    }
  }

  void add_gaps() {
    const int ops = static_cast<int>(rank_.ops.size());
    for (std::size_t i = 0; i < table_.adds.size(); ++i) {
      const TimingUse& use = table_.adds[i];
      const TimingUnit& unit = rank_.units[use.unit];
      const int next = use.next < 0 ? ops : table_.adds[use.next].op;
      int window = use.op + 1;  // first op before which the reduction has ended
      while (window < next && begin_of(window) < ends_[use.op] + view_.lead * unit.reduce_seconds) ++window;
      charge(use.op + 1, window - 1, unit.gradient_bytes);
      if (use.next < 0 || use.op + 1 == next) continue;
      Gap gap{use.op + 1, next - 1, unit.gradient_bytes,
              view_.reduction_weight * weight_of(view_.add_weights, i) * unit.reduce_seconds, &choice_.adds[i]};
      if (weight_of(view_.add_weights, i) == 0) {
        *gap.stay = Stay::apart;
        continue;
      }
      full_.push_back(gap);
      gap.first = window;
      if (gap.first <= gap.last) gaps_.push_back(gap);
    }
  }

  const TimingRank& rank_;
  const TimingTable& table_;
  std::span<const double> ends_;
  const TimingView& view_;
  TimingChoice choice_;
  std::vector<std::int64_t> capacity_;
  std::vector<Gap> gaps_, full_;  // without the transfer windows, and over their whole length
};

}  // namespace

TimingChoice select_stays(const TimingRank& rank, const TimingTable& table, std::span<const double> ends,
                          const TimingView& view, bool pin_reductions) {
  return Selection(rank, table, ends, view).run(pin_reductions);
}

}  // namespace weft
