#include "parallel/pipeline/timing/problem.h"

#include <algorithm>
#include <string_view>

#include "parallel/runtime/error.h"

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

void check_timing_problem(const TimingProblem& problem) {
  const int ranks = static_cast<int>(problem.ranks.size());
  for (int r = 0; r < ranks; ++r) {
    const TimingRank& rank = problem.ranks[r];
    const auto check = [r](bool condition, std::string_view fault) {
      if (!condition) fail("timing: rank {}: {}", r, fault);
    };
    const auto known = [&rank](int unit) { return unit >= 0 && unit < static_cast<int>(rank.units.size()); };
    const auto inside = [](int first, int count, const std::vector<int>& list) {
      return first >= 0 && count >= 0 && first + count <= static_cast<int>(list.size());
    };
    check(std::ranges::all_of(rank.read_units, known), "a unit is read that there is not");
    check(std::ranges::all_of(rank.added_units, known), "a unit is added to that there is not");
    for (const TimingOp& op : rank.ops) {
      check(inside(op.first_read, op.reads, rank.read_units), "an op reads units outside its rank's list");
      check(inside(op.first_add, op.adds, rank.added_units), "an op adds to units outside its rank's list");
      check(op.seconds >= 0 && op.transfer_seconds >= 0 && op.seconds_before >= 0 && op.activation_bytes >= 0,
            "an op has a negative size");
      if (op.producer_rank < 0) continue;
      check(op.producer_rank < ranks && op.producer_op >= 0 &&
                op.producer_op < static_cast<int>(problem.ranks[op.producer_rank].ops.size()),
            "an op waits for one that there is not");
    }
    for (const TimingUnit& unit : rank.units) {
      check(
          unit.parameter_bytes >= 0 && unit.gradient_bytes >= 0 && unit.gather_seconds >= 0 && unit.reduce_seconds >= 0,
          "a unit has a negative size");
    }
  }
}

}  // namespace weft
