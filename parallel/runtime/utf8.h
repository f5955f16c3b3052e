#pragma once

namespace weft {

// Whether `byte` is a byte of UTF-8 after the first byte of its character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

}  // namespace weft
