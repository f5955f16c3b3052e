#include "trainer/tokenizer/byte_alphabet.h"

#include <cstdint>

#include "parallel/runtime/quantities.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {
namespace {

constexpr std::array<std::int16_t, byte_alphabet_end> make_bytes_of_alphabet() {
  std::array<std::int16_t, byte_alphabet_end> bytes{};
  for (std::int16_t& byte : bytes) byte = -1;
  for (std::int16_t byte = 0; byte < 256; ++byte) bytes[byte_alphabet[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}
constexpr std::array<std::int16_t, byte_alphabet_end> bytes_of_alphabet = make_bytes_of_alphabet();

}  // namespace

std::string to_byte_characters(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_code_point(text, byte_alphabet[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> from_byte_characters(std::string_view text) {
  std::string bytes;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value >= byte_alphabet_end || bytes_of_alphabet[point.value] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(bytes_of_alphabet[point.value]));
    at += point.bytes;
  }
  return bytes;
}

std::optional<char> fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  const auto byte = parsed_number<std::uint8_t>(token.substr(3, 2), 16);
  return byte ? std::optional(static_cast<char>(*byte)) : std::nullopt;
}

}  // namespace weft
