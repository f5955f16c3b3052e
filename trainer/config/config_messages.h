// Faults as printed on a terminal:
//   train.toml:7:14: error: parallelism.data_shard: expected an integer, got the string "8"
//     7 | data_shard = "8"
//       |              ^~~
// Overrides have no line to show: "command line: --training.steps=abc: error: ...".
#pragma once

#include <string>

#include "trainer/config/config_value.h"

namespace weft {

std::string format_fault(const Fault& fault);

// "train.toml:12", or "command line".
std::string format_origin(const Place& place);

// Puts faults in the order of their sources and lines.
void sort_by_place(Faults& faults);

// All faults in the order given, one below the other.
std::string format_faults(const Faults& faults);

// Whether `byte` is a byte of UTF-8 after the first byte of its character. A caret stands below a character.
inline bool continues_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
}

}  // namespace weft
