// The documents of the source tree, as text.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace weft {

inline const std::filesystem::path documents_root = WEFT_SOURCE_DIR;

inline std::string text_of_document(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

}  // namespace weft
