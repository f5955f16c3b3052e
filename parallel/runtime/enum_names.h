// The names of an enumeration's values, stated once for printing, reading and counting. An enumeration whose values
// are 0, 1, ... takes part by a function beside it that lists their names in order:
//
//   enum class Phase : std::uint8_t { products, attention };
//   constexpr auto enum_names(Phase) { return name_list("products", "attention"); }
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace weft {

template <typename... Text>
constexpr std::array<std::string_view, sizeof...(Text)> name_list(const Text&... texts) {
  return {texts...};
}

template <typename Enum>
concept NamedEnum = requires(Enum value) {
  enum_names(value).size();
};

template <NamedEnum Enum>
inline constexpr auto names_of_all = enum_names(Enum{});

// "?" for a number without a name.
template <NamedEnum Enum>
constexpr std::string_view name_of(Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < names_of_all<Enum>.size() ? names_of_all<Enum>[index] : "?";
}

template <NamedEnum Enum>
inline constexpr auto all_values = [] {
  std::array<Enum, names_of_all<Enum>.size()> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<Enum>(i);
  return values;
}();

// The value with this name, if there is one.
template <NamedEnum Enum>
constexpr std::optional<Enum> value_named(std::string_view name) {
  for (const Enum value : all_values<Enum>) {
    if (name_of(value) == name) return value;
  }
  return std::nullopt;
}

}  // namespace weft
