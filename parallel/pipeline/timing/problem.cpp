#include "parallel/pipeline/timing/problem.h"

#include <algorithm>

namespace weft {
namespace {

void link(std::vector<TimingUse>& uses, std::vector<int>& last, int unit, int op) {
  const int index = static_cast<int>(uses.size());
  int& previous = last[unit];
  if (previous >= 0) uses[previous].next = index;
  uses.push_back({.unit = unit, .op = op, .previous = previous, .next = -1});
  previous = index;
}

}  // namespace

TimingTable timing_table(const TimingRank& rank, bool pin_reductions) {
  TimingTable table;
  const std::size_t ops = rank.ops.size();
  table.reads.reserve(rank.read_units.size());
  table.adds.reserve(rank.added_units.size());
  table.core.reserve(ops + 1);
  std::vector<int> last_read(rank.units.size(), -1), last_add(rank.units.size(), -1);
  for (std::size_t q = 0; q < ops; ++q) {
    const TimingOp& op = rank.ops[q];
    std::int64_t bytes = op.activation_bytes;
    for (const int unit : rank.reads_of(op)) {
      bytes += rank.units[unit].parameter_bytes;
      link(table.reads, last_read, unit, static_cast<int>(q));
    }
    for (const int unit : rank.adds_of(op)) {
      const std::int64_t gradient = rank.units[unit].gradient_bytes;
      if (gradient == 0) continue;
      bytes += gradient;
      link(table.adds, last_add, unit, static_cast<int>(q));
    }
    table.core.push_back(bytes);
  }
  if (!pin_reductions) return table;
  for (const TimingUse& add : table.adds) {
    if (add.next < 0) continue;
    const int next = table.adds[add.next].op;
    for (int q = add.op + 1; q < next; ++q) {
      table.core[q] += rank.units[add.unit].gradient_bytes;
    }
  }
  return table;
}

std::int64_t smallest_budget(const TimingRank& rank, bool pin_reductions) {
  const TimingTable table = timing_table(rank, pin_reductions);
  return table.core.empty() ? 0 : *std::ranges::max_element(table.core);
}

}  // namespace weft
