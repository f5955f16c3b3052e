// Checks of a text from outside before a reader takes it, its parts, and patterns of names.
#pragma once

#include <fnmatch.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Whether `byte` is a byte of UTF-8 after the first byte of its character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

// The parts of a text between separators, as views of it: one more than it has separators.
inline std::vector<std::string_view> parts_between(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// In a pattern `*` stands for any run of characters, also an empty one, and `?` for one character.
inline bool matches_pattern(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), /*flags=*/0) == 0;
}

// The nesting depth of lists and objects in a JSON text is checked before parsing. A text of opening brackets alone
// makes a document that takes far more memory than the text. The library copies, compares and writes documents by
// recursion.

// Limit for files of other programs; none of them is nested so deeply.
inline constexpr int deepest_json = 64;

inline bool nested_deeper_than(std::string_view text, int most) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\') ++i;
    if (quoted) continue;
    if (text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ']' || text[i] == '}') --depth;
    if (depth > most) return true;
  }
  return false;
}

}  // namespace weft
