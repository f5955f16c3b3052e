#include "parallel/pipeline/passes/order_csv.h"

#include <algorithm>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/orders/order_cells.h"
#include "parallel/pipeline/passes/passes.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

UserOrder order_of(const OrderCells& cells) {
  UserOrder order;
  for (std::size_t rank = 0; rank < cells.size(); ++rank) {
    std::vector<Action>& actions = order.ranks.emplace_back();
    for (const OrderCell& cell : cells[rank].cells) {
      const auto stage = static_cast<std::size_t>(*cell.action.stage);
      if (order.stage_ranks.size() <= stage) order.stage_ranks.resize(stage + 1);
      order.stage_ranks[stage] = static_cast<int>(rank);
      order.microbatches = std::max(order.microbatches, *cell.action.microbatch + 1);
      actions.push_back(cell.action);
    }
  }
  return order;
}

// The final check is find_violations on the program with its messages. A finding is reported at the cell of the
// computation at its position, or of the next computation.
void check_program(const UserOrder& order, const OrderCells& cells, OrderFaults& faults) {
  const Program program = add_exchange({schedule_only_tables(order), order.microbatches, order.ranks});
  for (const Finding& finding : find_violations(program)) {
    const auto rank = static_cast<std::size_t>(finding.rank);
    const auto begin = program.ranks[rank].begin();
    const auto computed =
        static_cast<std::size_t>(std::count_if(begin, begin + static_cast<std::ptrdiff_t>(finding.index),
                                               [](const Action& action) { return is_compute(action.op); }));
    const auto& own = cells[rank].cells;
    faults.add(own[std::min(computed, own.size() - 1)].place, finding.message);
  }
}

}  // namespace

UserOrder order_from_csv(std::string_view text) {
  OrderFaults faults;
  const OrderCells cells = read_order_cells(text, faults);
  check_complete(cells, faults);
  faults.throw_if_any();
  UserOrder order = order_of(cells);
  check_waits(cells, order.stage_ranks, order.microbatches, faults);
  faults.throw_if_any();
  check_program(order, cells, faults);
  faults.throw_if_any();
  return order;
}

ProgramTables schedule_only_tables(const UserOrder& order) {
  ProgramTables tables;
  for (int rank : order.stage_ranks) tables.stages.push_back({.rank = rank});
  return tables;
}

void require_same_counts(const UserOrder& order, const AskedCounts& asked) {
  std::string differences;
  const auto differ = [&](std::string_view what, int asked_for, const std::string& found) {
    differences += fmt::format("{}{} {} asked for, but {}", differences.empty() ? "" : "; ", asked_for, what, found);
  };
  const int ranks = static_cast<int>(order.ranks.size());
  if (asked.ranks && *asked.ranks != ranks) differ("ranks", *asked.ranks, fmt::format("the file has {} lines", ranks));
  if (asked.microbatches && *asked.microbatches != order.microbatches) {
    differ("microbatches", *asked.microbatches, fmt::format("the file runs {}", order.microbatches));
  }
  if (asked.chunks) {
    std::vector<int> chunks(order.ranks.size(), 0);
    for (int rank : order.stage_ranks) ++chunks[rank];
    const auto other = std::ranges::find_if(chunks, [&](int count) { return count != *asked.chunks; });
    if (other != chunks.end()) {
      differ("stages per rank", *asked.chunks, fmt::format("rank {} runs {}", other - chunks.begin(), *other));
    }
  }
  if (!differences.empty()) fail_request("the schedule's file sets the counts itself: {}", differences);
}

}  // namespace weft
