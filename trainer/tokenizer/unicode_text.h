// Text in UTF-8: code points, malformed bytes, white space, and the normal forms of Unicode (by utf8proc). Every
// function is pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/runtime/enum_names.h"

namespace weft {

struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 1;
};

// The code point that begins at byte `at`. Requires well-formed text and at < text.size().
CodePoint code_point_at(std::string_view text, std::size_t at);
// The code point that ends before byte `end`. Requires well-formed text and end > 0.
CodePoint code_point_before(std::string_view text, std::size_t end);
void append_code_point(std::string& text, char32_t value);

// `text` with `by` in place of each `part`, which is not empty.
std::string with_replaced(std::string_view text, std::string_view part, std::string_view by);

// The property White_Space of Unicode.
bool is_white_space(char32_t value);

// `text` without the code points at its beginning, or at its end, for which `is_dropped` is true. Requires well-formed
// text.
template <typename IsDropped>
std::string_view without_leading(std::string_view text, const IsDropped& is_dropped) {
  while (!text.empty()) {
    const CodePoint point = code_point_at(text, 0);
    if (!is_dropped(point.value)) break;
    text.remove_prefix(point.bytes);
  }
  return text;
}
template <typename IsDropped>
std::string_view without_trailing(std::string_view text, const IsDropped& is_dropped) {
  while (!text.empty()) {
    const CodePoint point = code_point_before(text, text.size());
    if (!is_dropped(point.value)) break;
    text.remove_suffix(point.bytes);
  }
  return text;
}

// The first byte of `text` that begins no character; nothing if the text is well-formed.
std::optional<std::size_t> malformed_at(std::string_view text);
// `text` with U+FFFD in place of each maximal part of a malformed sequence (Unicode, section 3.9), as Python decodes
// with errors="replace". Nothing if the text is well-formed.
std::optional<std::string> replace_malformed(std::string_view text);

enum class NormalForm { nfc, nfd, nfkc, nfkd };
constexpr auto enum_names(NormalForm) {
  return name_list("NFC", "NFD", "NFKC", "NFKD");
}

// Requires well-formed text. Takes time proportional to n log n, also for long runs of combining marks.
std::string to_normal_form(std::string_view text, NormalForm form);

// Each code point in lower case by itself, without regard to its neighbours. Requires well-formed text.
std::string to_lower_case(std::string_view text);

}  // namespace weft
