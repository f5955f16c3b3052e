// Checks of a text from outside before a reader takes it.
#pragma once

#include <cstddef>
#include <string_view>

namespace weft {

// Whether `byte` is a byte of UTF-8 after the first byte of its character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
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
