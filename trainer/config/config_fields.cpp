#include "trainer/config/config_fields.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft::config_fields {

ConfigKey make_key(const std::string& path, std::string type, std::string help) {
  ConfigKey key;
  const std::size_t dot = path.rfind('.');
  key.section = path.substr(0, dot);
  key.name = path.substr(dot + 1);
  key.type = std::move(type);
  key.help = std::move(help);
  return key;
}

Fault wrong_type(const std::string& expected, const ConfigValue& value) {
  return {value.place, fmt::format("expected {}, got {}", expected, describe(value))};
}

Faults out_of_range(const ConfigValue& value, std::int64_t integer, const IntegerRange& range) {
  if (integer < range.low) return {{value.place, fmt::format("{} is out of range: at least {}", integer, range.low)}};
  if (integer <= range.high) return {};
  const std::string reason = *range.beyond ? fmt::format("; {}", range.beyond) : "";
  return {{value.place, fmt::format("{} is out of range: at most {}{}", integer, range.high, reason)}};
}

std::optional<double> as_number(const ConfigValue& value) {
  if (const double* number = std::get_if<double>(&value.data)) return *number;
  if (const auto* integer = std::get_if<std::int64_t>(&value.data)) return static_cast<double>(*integer);
  return std::nullopt;
}

Fault wrong_word(const ConfigValue& value, const std::string& word, const std::vector<std::string>& available,
                 const std::vector<std::string>& absent) {
  std::string use;
  for (std::size_t i = 0; i < available.size(); ++i) {
    if (i > 0) use += i + 1 == available.size() ? " or " : ", ";
    use += toml_text(available[i]);
  }
  if (std::find(absent.begin(), absent.end(), word) != absent.end()) {
    return {value.place, fmt::format("{} is not available in this version; use {}", toml_text(word), use)};
  }
  const auto nearest = nearest_word(word, available);
  const std::string meant = nearest ? fmt::format(" (did you mean {}?)", toml_text(*nearest)) : "";
  return {value.place, fmt::format("expected {}, got {}{}", use, toml_text(word), meant)};
}

}  // namespace weft::config_fields
