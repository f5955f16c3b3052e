#include "tools/report/bench_table.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace weft {

std::string decimals(double number, int digits) {
  return fmt::format("{:.{}f}", number, digits);
}

std::string aligned_text(const BenchTable& table) {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < table.header.size(); ++column) {
    std::size_t width = table.header[column].size();
    for (const auto& row : table.rows) width = std::max(width, row[column].size());
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text = fmt::format("{:<{}}", cells.front(), widths.front());
    for (std::size_t c = 1; c < cells.size(); ++c) text += fmt::format("  {:>{}}", cells[c], widths[c]);
    return text + "\n";
  };
  std::string text = line(table.header);
  for (const auto& row : table.rows) text += line(row);
  return text;
}

std::string markdown_text(const BenchTable& table) {
  std::string text = fmt::format("| {} |\n|---|", fmt::join(table.header, " | "));
  for (std::size_t c = 1; c < table.header.size(); ++c) text += "---:|";
  text += "\n";
  for (const auto& row : table.rows) text += fmt::format("| {} |\n", fmt::join(row, " | "));
  return text;
}

}  // namespace weft
