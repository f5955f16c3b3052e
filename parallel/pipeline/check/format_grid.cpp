#include <fmt/format.h>

#include <algorithm>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/text/text.h"

namespace weft {
namespace {

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

}  // namespace weft
