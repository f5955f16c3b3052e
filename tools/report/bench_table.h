// A table of text cells for the benches: aligned columns for a terminal, or Markdown for the documents.
#pragma once

#include <string>
#include <vector>

namespace weft {

struct BenchTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

// Columns are as wide as their widest cell. All columns except the first are flush right.
std::string aligned_text(const BenchTable& table);
std::string markdown_text(const BenchTable& table);

}  // namespace weft
