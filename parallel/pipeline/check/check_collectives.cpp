#include <fmt/format.h>

#include <algorithm>

#include "parallel/pipeline/check/check_parts.h"
#include "parallel/pipeline/text/text.h"

namespace weft {
namespace {

// Positions of the collectives of a row.
std::vector<std::size_t> collectives_of(const std::vector<Action>& actions) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Op op = actions[i].op;
    if (is_gather(op) || is_reduction(op) || op == Op::tie_gradient) positions.push_back(i);
  }
  return positions;
}

bool same_collective(const Action& one, const Action& other) {
  return one.op == other.op && one.stage == other.stage && one.unit == other.unit;
}

void compare(const CheckContext& context, int row, int first_row, std::vector<Finding>& findings) {
  const auto& actions = context.list(row);
  const auto& first_actions = context.list(first_row);
  const auto mine = collectives_of(actions), first = collectives_of(first_actions);
  const auto cell = [&](const std::vector<Action>& list, const std::vector<std::size_t>& positions, std::size_t i) {
    return i < positions.size() ? format_action(context.program, list[positions[i]]) : std::string("nothing");
  };
  for (std::size_t i = 0; i < std::max(mine.size(), first.size()); ++i) {
    if (i < mine.size() && i < first.size() && same_collective(actions[mine[i]], first_actions[first[i]])) continue;
    findings.push_back({Violation::collective_order, row, i < mine.size() ? mine[i] : actions.size(),
                        fmt::format("collective {} of the group is {} here and {} on rank {}", i + 1,
                                    cell(actions, mine, i), cell(first_actions, first, i), first_row)});
    return;  // the rest differs as well
  }
}

}  // namespace

void check_collectives(const CheckContext& context, const std::vector<std::vector<int>>& replica_rows,
                       std::vector<Finding>& findings) {
  for (const auto& rows : replica_rows) {
    for (std::size_t i = 1; i < rows.size(); ++i) compare(context, rows[i], rows.front(), findings);
  }
}

void check_update(const CheckContext& context, std::vector<Finding>& findings) {
  for (Op op : {Op::gradient_norm, Op::optimizer_step}) {
    const auto has = [&](int row) {
      const auto& actions = context.list(row);
      return std::any_of(actions.begin(), actions.end(), [&](const Action& action) { return action.op == op; });
    };
    std::optional<int> with;
    std::vector<int> without;
    for (int row = 0; row < static_cast<int>(context.rows()); ++row) {
      if (!has(row)) {
        without.push_back(row);
      } else if (!with) {
        with = row;
      }
    }
    for (int row : without) {
      if (!with) break;  // no rank has an update: the list of a part of a step
      findings.push_back({Violation::missing_update, row, context.list(row).size(),
                          fmt::format("the list has no {}, in which all ranks take part; rank {} would wait for ever",
                                      name_of(op), *with)});
    }
  }
}

}  // namespace weft
