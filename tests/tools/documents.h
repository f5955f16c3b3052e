// The documents of the source tree, as text.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace weft {

inline const std::filesystem::path documents_root = WEFT_SOURCE_DIR;

inline std::string text_of_document(const std::filesystem::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// The pages below a folder.
inline std::vector<std::filesystem::path> all_documents(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> documents;
  for (const char* folder : {"", "docs"}) {
    for (const auto& entry : std::filesystem::directory_iterator(root / folder)) {
      if (entry.path().extension() == ".md") documents.push_back(entry.path());
    }
  }
  return documents;
}

// Each page that links to a file, with that file.
inline std::vector<std::pair<std::filesystem::path, std::filesystem::path>> links_of_documents(
    const std::filesystem::path& root) {
  const std::regex link(R"(\]\(([^)#:\s]+)(#[^)]*)?\))");
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> links;
  for (const auto& path : all_documents(root)) {
    std::istringstream lines(text_of_document(path));
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("    ")) continue;  // of a program
      for (auto found = std::sregex_iterator(line.begin(), line.end(), link); found != std::sregex_iterator();
           ++found) {
        links.emplace_back(path, path.parent_path() / (*found)[1].str());
      }
    }
  }
  return links;
}

}  // namespace weft
