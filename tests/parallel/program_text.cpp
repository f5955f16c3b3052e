#include "tests/parallel/program_text.h"

#include <algorithm>

#include "parallel/pipeline/orders/order_cells.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The meaning of a cell in the tables of a program: existing stages, segments and units; peers and bytes.
class Resolver {
 public:
  Resolver(const ProgramTables& tables, const CellAction& cell)
      : tables_(tables), text_(cell.text), action_(cell.action) {
    if (action_.stage) require_stage(*action_.stage);
    if (cell.name) set_name(*cell.name);
    set_payload();
  }

  const Action& action() const { return action_; }

 private:
  [[noreturn]] void wrong(const std::string& what) const { fail_cell(text_, what); }

  void require_stage(int stage) const {
    if (stage >= static_cast<int>(tables_.stages.size())) {
      wrong(fmt::format("stage {} does not exist; there are {} stages, counted from 0", stage, tables_.stages.size()));
    }
  }

  template <typename Entry>
  int index_of(const std::vector<Entry>& entries, std::string_view name, const char* what) const {
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
    if (entry == entries.end()) wrong(fmt::format("there is no {} named \"{}\"", what, name));
    if (entry->stage != *action_.stage) {
      wrong(fmt::format("{} {} belongs to stage {}, not {}", what, name, entry->stage, *action_.stage));
    }
    return static_cast<int>(entry - entries.begin());
  }

  void set_name(std::string_view name) {
    if (is_compute(action_.op) || is_row_exchange(action_.op)) {
      action_.segment = index_of(tables_.segments, name, "segment");
    } else {
      action_.unit = index_of(tables_.units, name, "unit");
    }
  }

  // Peers and bytes are not in the text; they come from the tables.
  void set_payload() {
    if (is_send(action_.op) || is_receive(action_.op)) {
      const int other = other_stage(action_.op, *action_.stage);
      if (other < 0 || other >= static_cast<int>(tables_.stages.size())) {
        wrong(fmt::format("stage {} has no neighbour on that side", *action_.stage));
      }
      action_ = exchange_action(tables_, action_.op, *action_.stage, *action_.microbatch);
      if (*action_.peer == tables_.stages[*action_.stage].rank) {
        wrong(fmt::format("stages {} and {} run on one rank, which needs no exchange", *action_.stage, other));
      }
    }
    if (!takes_unit(action_.op) || is_reshard(action_.op)) return;
    for (std::size_t i = 0; i < tables_.units.size(); ++i) {
      const ProgramUnit& unit = tables_.units[i];
      const bool meant = action_.unit ? *action_.unit == static_cast<int>(i) : unit.stage == *action_.stage;
      if (!meant) continue;
      if (is_reduction(action_.op) && !unit.frozen) action_.bytes += unit.reduce_bytes;
      if (is_gather(action_.op) && !unit.replicated) action_.bytes += unit.gather_bytes;
      if (action_.op == Op::tie_gradient) action_.bytes += unit.tie_bytes;
    }
  }

  const ProgramTables& tables_;
  std::string_view text_;
  Action action_;
};

std::vector<Action> parse_placed_cell(const ProgramTables& tables, std::string_view line, std::string_view cell,
                                      std::size_t line_number) {
  const std::string_view content = trimmed(cell);
  try {
    return parse_cell(tables, content);
  } catch (const Error& error) {
    const std::string_view marked = content.empty() ? cell : content;
    fail_request("line {}, column {}: {}", line_number, marked.data() - line.data() + 1, error.what());
  }
}

std::vector<Action> parse_line(const ProgramTables& tables, std::string_view line, std::size_t line_number) {
  std::vector<Action> actions;
  if (trimmed(line).empty()) return actions;
  for (std::size_t begin = 0; begin <= line.size();) {
    const std::size_t end = std::min(line.find(',', begin), line.size());
    const auto cell = parse_placed_cell(tables, line, line.substr(begin, end - begin), line_number);
    actions.insert(actions.end(), cell.begin(), cell.end());
    begin = end + 1;
  }
  return actions;
}

std::size_t rank_count(const ProgramTables& tables) {
  int ranks = 0;
  for (const ProgramStage& stage : tables.stages) ranks = std::max(ranks, stage.rank + 1);
  return static_cast<std::size_t>(ranks);
}

}  // namespace

std::vector<Action> parse_cell(const ProgramTables& tables, std::string_view cell) {
  std::vector<Action> actions;
  for (const CellAction& action : read_cell(cell)) actions.push_back(Resolver(tables, action).action());
  return actions;
}

Action parse_action(const ProgramTables& tables, std::string_view cell) {
  const std::vector<Action> actions = parse_cell(tables, cell);
  if (actions.size() > 1) fail_cell(cell, "it is two actions, where one is wanted");
  return actions.front();
}

Program from_csv(const ProgramTables& tables, std::string_view text) {
  Program program{tables, 0, {}};
  const std::size_t ranks = rank_count(tables);
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line_number > ranks) {
      if (trimmed(line).empty()) continue;
      fail_request("line {}, column 1: one line per rank, but the stages stand on {} ranks", line_number, ranks);
    }
    program.ranks.push_back(parse_line(tables, line, line_number));
    for (const Action& action : program.ranks.back()) {
      if (action.microbatch) program.microbatches = std::max(program.microbatches, *action.microbatch + 1);
    }
  }
  if (program.ranks.size() < ranks) {
    fail_request("line {}, column 1: one line per rank, but the stages stand on {} ranks and the text ends here",
                 program.ranks.size() + 1, ranks);
  }
  return program;
}

}  // namespace weft
