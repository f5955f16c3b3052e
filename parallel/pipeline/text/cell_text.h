// The grammar of one cell of a program's text, without tables: numbers and names as written.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// One action as spelled in a cell: kind, stage, microbatch and the overlap mark.
struct CellAction {
  Action action = {};
  std::optional<std::string_view> name = {};  // the name in parentheses
  std::string_view text = {};                 // text of this action; a part of the cell if the cell is a pair
};

// One action, or the two of an overlapped pair; `cell` has no blanks around it. A kind takes exactly the numbers that
// it needs. Throws Error (request) naming the cell and its fault.
std::vector<CellAction> read_cell(std::string_view cell);

[[noreturn]] void fail_cell(std::string_view cell, const std::string& what);

// Without blanks, tabs and carriage returns around it.
std::string_view trimmed(std::string_view text);

}  // namespace weft
