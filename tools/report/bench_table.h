// A table of text cells, as the benches print it: aligned columns for a terminal, or Markdown for the documents.
#pragma once

#include <string>
#include <vector>

namespace weft {

struct BenchTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  // each as long as the header
};

// Columns as wide as their widest cell, all but the first flush right.
std::string aligned_text(const BenchTable& table);
std::string markdown_text(const BenchTable& table);

}  // namespace weft
