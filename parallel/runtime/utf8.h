#pragma once

namespace weft {

// A byte of UTF-8 behind the first of its character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

}  // namespace weft
