#include "trainer/tokenizer/unicode_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"

namespace weft {
namespace {

constexpr std::string_view replacement_character = "\xef\xbf\xbd";
constexpr char32_t dotted_capital_i = 0x130, combining_dot_above = 0x307;

// The end of the run of ASCII characters that begins at `at`.
std::size_t end_of_ascii(std::string_view text, std::size_t at) {
  constexpr std::uint64_t high_bits = 0x8080808080808080;
  for (std::uint64_t word; at + sizeof word <= text.size(); at += sizeof word) {
    std::memcpy(&word, text.data() + at, sizeof word);
    if ((word & high_bits) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

int combining_class(utf8proc_int32_t value) {
  return utf8proc_get_property(value)->combining_class;
}

// Canonical ordering. utf8proc orders by exchanging neighbours, which takes quadratic time on long runs of marks.
void order_marks(std::vector<utf8proc_int32_t>& values) {
  for (auto begin = values.begin(); begin != values.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, values.end(), [](auto value) { return combining_class(value) == 0; });
    std::stable_sort(begin, end, [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

void append_normal_form(std::string& to, std::string_view text, NormalForm form) {
  const bool compose = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const auto options =
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> values;
  std::array<utf8proc_int32_t, 32> parts{};  // U+FDFA has the longest decomposition: 18
  int boundary = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value), parts.data(), parts.size(),
                                               options, &boundary);
    require(count >= 0 && static_cast<std::size_t>(count) <= parts.size(), "a decomposition fits its buffer");
    values.insert(values.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(values);
  auto length = static_cast<utf8proc_ssize_t>(values.size());
  if (compose) {
    length = utf8proc_normalize_utf32(values.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    require(length >= 0, "decomposed text composes");
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) append_code_point(to, static_cast<char32_t>(values[i]));
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto bits = [&](std::size_t i, unsigned mask) { return static_cast<char32_t>(text[at + i]) & mask; };
  const auto first = static_cast<unsigned char>(text[at]);
  if (first < 0x80) return {first, 1};
  if (first < 0xe0) return {bits(0, 0x1f) << 6 | bits(1, 0x3f), 2};
  if (first < 0xf0) return {bits(0, 0x0f) << 12 | bits(1, 0x3f) << 6 | bits(2, 0x3f), 3};
  return {bits(0, 0x07) << 18 | bits(1, 0x3f) << 12 | bits(2, 0x3f) << 6 | bits(3, 0x3f), 4};
}

CodePoint code_point_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && continues_character(text[begin])) --begin;
  return code_point_at(text, begin);
}

void append_code_point(std::string& text, char32_t value) {
  std::array<utf8proc_uint8_t, 4> bytes{};
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(value), bytes.data());
  text.append(bytes.begin(), bytes.begin() + count);
}

std::string with_replaced(std::string_view text, std::string_view part, std::string_view by) {
  std::string result;
  for (std::size_t found; (found = text.find(part)) != std::string_view::npos;) {
    result.append(text.substr(0, found)).append(by);
    text.remove_prefix(found + part.size());
  }
  result += text;
  return result;
}

bool is_white_space(char32_t value) {
  return (value >= 0x09 && value <= 0x0d) || value == 0x20 || value == 0x85 || value == 0xa0 || value == 0x1680 ||
         (value >= 0x2000 && value <= 0x200a) || value == 0x2028 || value == 0x2029 || value == 0x202f ||
         value == 0x205f || value == 0x3000;
}

std::optional<std::size_t> malformed_at(std::string_view text) {
  for (std::size_t at = end_of_ascii(text, 0); at < text.size(); at = end_of_ascii(text, at)) {
    const ByteSequence sequence = sequence_at(text, at);
    if (!sequence.well_formed) return at;
    at += sequence.bytes;
  }
  return std::nullopt;
}

std::optional<std::string> replace_malformed(std::string_view text) {
  std::optional<std::string> replaced;
  while (const auto at = malformed_at(text)) {
    if (!replaced) replaced.emplace();
    replaced->append(text.substr(0, *at)).append(replacement_character);
    text.remove_prefix(*at + sequence_at(text, *at).bytes);
  }
  if (replaced) replaced->append(text);
  return replaced;
}

std::string to_normal_form(std::string_view text, NormalForm form) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    // ASCII characters are in every normal form. The last before other characters may be the base of a mark.
    const std::size_t ascii = end_of_ascii(text, at);
    const std::size_t plain = ascii < text.size() && ascii > at ? ascii - 1 : ascii;
    result.append(text.substr(at, plain - at));
    std::size_t end = ascii;
    while (end < text.size() && static_cast<unsigned char>(text[end]) >= 0x80) ++end;
    append_normal_form(result, text.substr(plain, end - plain), form);
    at = end;
  }
  return result;
}

std::string to_lower_case(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    append_code_point(result, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(point.value))));
    // The only code point with two in lower case (SpecialCasing.txt, without conditions).
    if (point.value == dotted_capital_i) append_code_point(result, combining_dot_above);
  }
  return result;
}

}  // namespace weft
