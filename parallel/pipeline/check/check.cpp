#include "parallel/pipeline/check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check_parts.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Positions of the collectives of a row.
std::vector<std::size_t> collectives_of(const std::vector<Action>& actions) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Op op = actions[i].op;
    if (is_gather(op) || is_reduction(op) || op == Op::tie_gradient || is_row_exchange(op)) positions.push_back(i);
  }
  return positions;
}

bool same_collective(const Action& one, const Action& other) {
  return one.op == other.op && one.stage == other.stage && one.unit == other.unit && one.segment == other.segment &&
         one.part == other.part;
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

// Rows that share collectives: one order for all.
void check_collectives(const CheckContext& context, const std::vector<std::vector<int>>& replica_rows,
                       std::vector<Finding>& findings) {
  for (const auto& rows : replica_rows) {
    for (std::size_t i = 1; i < rows.size(); ++i) compare(context, rows[i], rows.front(), findings);
  }
}

// GRAD_NORM and STEP involve the whole world: on all ranks or on none.
void check_update(const CheckContext& context, std::vector<Finding>& findings) {
  for (Op op : {Op::gradient_norm, Op::optimizer_step}) {
    std::vector<int> with, without;
    for (int row = 0; row < static_cast<int>(context.rows()); ++row) {
      (std::ranges::find(context.list(row), op, &Action::op) != context.list(row).end() ? with : without)
          .push_back(row);
    }
    if (with.empty()) continue;  // the list of a part of a step
    for (int row : without) {
      findings.push_back({Violation::missing_update, row, context.list(row).size(),
                          fmt::format("the list has no {}, in which all ranks take part; rank {} would wait for ever",
                                      name_of(op), with.front())});
    }
  }
}

std::vector<int> replica_classes(const Program& program, const CheckOptions& options) {
  std::vector<int> classes(program.ranks.size());
  std::iota(classes.begin(), classes.end(), 0);
  for (const auto& rows : options.replica_rows) {
    for (int row : rows) classes.at(row) = rows.front();
  }
  return classes;
}

void check_pairs(const CheckContext& context, int row, std::vector<Finding>& findings) {
  for (std::size_t index : find_overlaps(context.list(row)).broken) {
    findings.push_back({Violation::broken_pair, row, index,
                        "marks of overlap do not fit here: a pair is a forward and a B or I of another microbatch side "
                        "by side, with all their segments"});
  }
}

// The findings of one rank's list alone, in the order of the list.
void check_rank(const CheckContext& context, int row, std::vector<Finding>& findings) {
  std::vector<Finding> here;
  check_compute(context, row, here);
  check_units(context, row, here);
  check_offload(context, row, here);
  check_pairs(context, row, here);
  std::ranges::stable_sort(here, {}, &Finding::index);
  std::move(here.begin(), here.end(), std::back_inserter(findings));
}

void check_budget(const CheckContext& context, int row, std::int64_t budget, std::vector<Finding>& findings) {
  const TransientPeak peak = transient_peak(context.program, row);
  if (peak.bytes <= budget) return;
  findings.push_back(
      {Violation::over_budget, row, peak.index,
       fmt::format("{} bytes of gathered parameters + {} of gradients + {} of reductions + {} of activations = {}, "
                   "but the budget is {}",
                   peak.buckets[Bucket::unsharded_parameters], peak.buckets[Bucket::unsharded_gradients],
                   peak.buckets[Bucket::communication], peak.buckets[Bucket::activations], peak.bytes, budget)});
}

// The cells begin .. end - 1 of a row. The position behind the last action is a cell of its own if it is marked.
std::vector<std::string> cells(const Program& program, std::size_t row, std::size_t begin, std::size_t end,
                               std::optional<std::size_t> marked) {
  const auto& actions = program.ranks[row];
  std::vector<std::string> result;
  for (std::size_t i = begin; i < end; ++i) {
    std::string text = i < actions.size() ? format_action(program, actions[i]) : "";
    if (marked == i) text = fmt::format(">>{}<<", i < actions.size() ? text : "end");
    result.push_back(std::move(text));
  }
  return result;
}

}  // namespace

std::vector<Finding> find_violations(const Program& program, const CheckOptions& options) {
  const PieceTable pieces(program);
  const CheckContext context{program, pieces, replica_classes(program, options)};
  const int rows = static_cast<int>(context.rows());
  std::vector<Finding> findings;
  for (int row = 0; row < rows; ++row) check_rank(context, row, findings);
  check_exchange(context, findings);
  check_collectives(context, options.replica_rows, findings);
  check_update(context, findings);
  for (int row = 0; row < rows && options.memory_budget; ++row) {
    check_budget(context, row, *options.memory_budget, findings);
  }
  return findings;
}

std::string format_grid(const Program& program, int rank, std::size_t index, std::size_t cells_around) {
  const std::size_t begin = index - std::min(index, cells_around), end = index + cells_around + 1;
  std::vector<std::vector<std::string>> grid;
  std::vector<std::size_t> widths(end - begin, 0);
  for (std::size_t row = 0; row < program.ranks.size(); ++row) {
    const bool here = static_cast<int>(row) == rank;
    grid.push_back(cells(program, row, begin, end, here ? std::optional(index) : std::nullopt));
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], grid.back()[i].size());
  }
  std::string text = fmt::format("actions {} and around\n", index);
  for (std::size_t row = 0; row < grid.size(); ++row) {
    std::string line = fmt::format("rank {:>2} |{}", row, begin > 0 ? " ..." : "");
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (widths[i] > 0) line += fmt::format(" {:<{}}", grid[row][i], widths[i]);
    }
    if (end < program.ranks[row].size()) line += " ...";
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

void check(const Program& program, const CheckOptions& options) {
  const std::vector<Finding> findings = find_violations(program, options);
  if (findings.empty()) return;
  const Finding& first = findings.front();
  const auto& actions = program.ranks[first.rank];
  const std::string cell =
      first.index < actions.size() ? format_action(program, actions[first.index]) : std::string("the end");
  fail("the program is not sound: rank {}, action {}, {}: {} ({}){}\n{}", first.rank, first.index, cell, first.message,
       name_of(first.violation),
       findings.size() > 1 ? fmt::format("; {} findings in all, this is the first", findings.size()) : "",
       format_grid(program, first.rank, first.index));
}

}  // namespace weft
