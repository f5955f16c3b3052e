#include "trainer/config/config_value.h"

#include <fmt/ranges.h>

#include <string_view>

namespace weft {

std::string toml_text(bool value) {
  return value ? "true" : "false";
}

std::string toml_text(std::int64_t value) {
  return fmt::format("{}", value);
}

std::string toml_text(double value) {
  std::string text = fmt::format("{}", value);
  // TOML tells a float from an integer by its spelling.
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string toml_text(const std::string& value) {
  constexpr std::string_view escaped = "\"\\\n\t\r", letters = "\"\\ntr";
  std::string text = "\"";
  for (const char symbol : value) {
    const auto code = static_cast<unsigned char>(symbol);
    if (const std::size_t at = escaped.find(symbol); at != std::string_view::npos) {
      text += fmt::format("\\{}", letters[at]);
    } else if (code < 0x20 || code == 0x7f) {
      text += fmt::format("\\u{:04X}", code);
    } else {
      text += symbol;
    }
  }
  return text + '"';
}

std::string toml_text(const std::vector<std::string>& values) {
  std::vector<std::string> texts;
  for (const std::string& value : values) texts.push_back(toml_text(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::vector<ConfigValue> elements_of(const ConfigValue& value) {
  const auto* elements = std::get_if<std::vector<ConfigValue>>(&value.data);
  return elements ? *elements : std::vector<ConfigValue>{value};
}

std::string describe(const ConfigValue& value) {
  struct Describe {
    std::string operator()(bool data) const { return "the boolean " + toml_text(data); }
    std::string operator()(std::int64_t data) const { return "the integer " + toml_text(data); }
    std::string operator()(double data) const { return "the number " + toml_text(data); }
    std::string operator()(const std::string& data) const { return "the string " + toml_text(data); }
    std::string operator()(const std::vector<ConfigValue>&) const { return "an array"; }
    std::string operator()(const TableMark&) const { return "a table"; }
    std::string operator()(DateMark) const { return "a date or time"; }
  };
  return std::visit(Describe{}, value.data);
}

}  // namespace weft
