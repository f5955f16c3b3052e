#include "parallel/pipeline/text/text.h"

#include <algorithm>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/text/cell_text.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

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

// Without the mark of an overlapped action.
std::string format_plain(const Program& program, const Action& action) {
  std::string text;
  if (action.stage) text += std::to_string(*action.stage);
  text += name_of(action.op);
  if (action.microbatch) text += std::to_string(*action.microbatch);
  // An index outside its table is shown as such, because the checker prints faulty actions.
  const auto append_name = [&text](const auto& entries, int index) {
    const bool known = index >= 0 && index < static_cast<int>(entries.size());
    text += known ? fmt::format("({})", entries[index].name) : fmt::format("(#{})", index);
  };
  if (action.segment) append_name(program.segments, *action.segment);
  if (action.unit) append_name(program.units, *action.unit);
  return text;
}

}  // namespace

std::string format_action(const Program& program, const Action& action) {
  const std::string text = format_plain(program, action);
  return action.overlapped ? fmt::format("({})OVERLAP_F_B", text) : text;
}

std::string format_actions(const Program& program, const std::vector<Action>& actions, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!text.empty()) text += separator;
    if (!pair_begins_at(actions, i)) {
      text += format_action(program, actions[i]);
      continue;
    }
    text += fmt::format("({};{})OVERLAP_F_B", format_plain(program, actions[i]), format_plain(program, actions[i + 1]));
    ++i;
  }
  return text;
}

std::string to_csv(const Program& program, Detail detail) {
  std::string text;
  for (const auto& actions : program.ranks) {
    text += format_actions(program, at_detail(actions, detail), ",");
    text += '\n';
  }
  return text;
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
