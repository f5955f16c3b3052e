// A program as CSV, one line per rank, and back. The product prints lists and reads orders alone; here all of a program
// makes the round trip.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/text/text.h"

namespace weft {

// Throws Error (request) naming the cell and its fault. Names in parentheses are looked up in `tables`.
Action parse_action(const ProgramTables& tables, std::string_view cell);
// The same for a cell that may hold an overlapped pair.
std::vector<Action> parse_cell(const ProgramTables& tables, std::string_view cell);
// Reads stage-level or unit-level CSV, one line per rank. Throws Error (request) with line and column of a faulty cell.
Program from_csv(const ProgramTables& tables, std::string_view text);

inline std::string to_csv(const Program& program, Detail detail) {
  std::string text;
  for (const auto& actions : program.ranks) {
    text += format_actions(program, at_detail(actions, detail), ",");
    text += '\n';
  }
  return text;
}

}  // namespace weft
