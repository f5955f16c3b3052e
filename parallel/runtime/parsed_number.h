// Numbers in texts that people write.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace weft {

// The number that the whole text spells, as std::from_chars reads it: without space or "+". Nothing for other texts.
// `base`: of whole numbers only.
template <typename Number, std::same_as<int>... Base>
std::optional<Number> parsed_number(std::string_view text, Base... base) {
  Number number{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc() && stop == end ? std::optional(number) : std::nullopt;
}

}  // namespace weft
