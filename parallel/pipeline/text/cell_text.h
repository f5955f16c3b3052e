// The grammar of one cell of a program's text, without tables: numbers and names as written.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// One action as a cell spells it: kind, stage, microbatch and whether it is overlapped.
struct CellAction {
  Action action = {};
  std::optional<std::string_view> name = {};  // in parentheses
  std::string_view text = {};                 // of this action; a part of the cell where the cell is a pair
};

// One action, or the two of an overlapped pair; `cell` has no blanks around it. Each kind has the numbers it takes and
// no others. Throws Error (request) naming the cell and what is wrong with it.
std::vector<CellAction> read_cell(std::string_view cell);

[[noreturn]] void fail_cell(std::string_view cell, const std::string& what);

// Without blanks, tabs and carriage returns around it.
std::string_view trimmed(std::string_view text);

}  // namespace weft
