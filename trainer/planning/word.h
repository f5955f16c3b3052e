#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace weft {

// A key set on the command line: "--parallelism.pipeline=4".
template <typename Value>
std::string word(std::string_view key, const Value& value) {
  return fmt::format("--{}={}", key, value);
}

}  // namespace weft
