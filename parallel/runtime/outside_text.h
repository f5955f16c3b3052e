// Checks of a text from outside before a reader takes it, its parts, patterns of names, and words for a shell.
#pragma once

#include <fnmatch.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

// Whether `byte` is a byte of UTF-8 after the first byte of its character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

struct ByteSequence {
  std::size_t bytes;  // of a character, or of a malformed part
  bool well_formed;
};

// The character of UTF-8 that begins at `at`, before the end of `text`. Table 3-7 of Unicode: the second byte has a
// narrower range after four of the first bytes.
inline ByteSequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return {1, true};
  if (first < 0xc2 || first > 0xf4) return {1, false};
  const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (at + 1 >= text.size() || byte(at + 1) < low || byte(at + 1) > high) return {1, false};
  for (std::size_t i = 2; i < length; ++i) {
    if (at + i >= text.size() || !continues_character(text[at + i])) return {i, false};
  }
  return {length, true};
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
inline bool matches_any(const std::vector<std::string>& patterns, const std::string& text) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) { return matches_pattern(pattern, text); });
}

// The words as a shell reads them back, quoted where needed.
inline std::string shell_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    const bool plain = !word.empty() && word.find_first_of(" \t\n|()*[]\"'`\\$&;<>?#~!{}") == std::string::npos;
    if (&word != &words.front()) text += ' ';
    if (!plain) text += '\'';
    for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
    if (!plain) text += '\'';
  }
  return text;
}

// The nesting depth of lists and objects in a JSON text is checked before parsing. A text of opening brackets alone
// makes a document that takes far more memory than the text. The library copies, compares and writes documents by
// recursion.

// Limit for files of other programs; none of them is nested so deeply.
inline constexpr int deepest_json = 64;

// The place of the first list or object within `most` others, in bytes; nothing if there is none.
inline std::optional<std::size_t> nested_deeper_than(std::string_view text, int most) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\') ++i;
    if (quoted) continue;
    if (text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ']' || text[i] == '}') --depth;
    if (depth > most) return i;
  }
  return std::nullopt;
}

}  // namespace weft
