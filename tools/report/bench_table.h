// A table of text cells: aligned columns for a terminal, or Markdown for the documents.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace weft {

struct BenchTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows = {};  // each as long as the header

  // Adds a row of cells, each as fmt writes it.
  template <typename... Cells>
  void add(const Cells&... cells) {
    rows.push_back({fmt::format("{}", cells)...});
  }
};
// "1.50": a number with this many digits after the point.
std::string decimals(double number, int digits);

// Columns are as wide as their widest cell. All columns except the first are flush right.
std::string aligned_text(const BenchTable& table);
std::string markdown_text(const BenchTable& table);

}  // namespace weft
