// The alphabet of byte-level tokenizers: a printable character for each byte, as GPT-2 chose them. Bytes that Latin-1
// prints stand for themselves; the other 68 have the characters from U+0100 on, in their order.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace weft {

inline constexpr std::size_t byte_alphabet_end = 0x144;  // 0x100 + 68

constexpr std::array<char16_t, 256> make_byte_alphabet() {
  std::array<char16_t, 256> characters{};
  char16_t next = 0x100;
  for (char16_t byte = 0; byte < 256; ++byte) {
    const bool printed = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    characters[byte] = printed ? byte : next++;
  }
  return characters;
}
inline constexpr std::array<char16_t, 256> byte_alphabet = make_byte_alphabet();

// `bytes` with each byte as its character, in UTF-8.
std::string to_byte_characters(std::string_view bytes);
// The bytes that `text` stands for. Nothing if a character is outside the alphabet. Requires well-formed text.
std::optional<std::string> from_byte_characters(std::string_view text);

// The byte 0x41 of the token "<0x41>", as byte_fallback spells it. Nothing for other tokens.
std::optional<char> fallback_byte(std::string_view token);

}  // namespace weft
