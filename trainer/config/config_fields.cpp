#include "trainer/config/config_fields.h"

#include <algorithm>

#include "parallel/runtime/quantities.h"

namespace weft::config_fields {
namespace {

// A smaller number without a unit was probably meant in another unit than bytes.
constexpr std::int64_t least_without_unit = std::int64_t{1} << 20;

}  // namespace

ConfigKey make_key(const std::string& path, std::string type, std::string help) {
  const std::size_t dot = path.rfind('.');
  return {
      .section = path.substr(0, dot), .name = path.substr(dot + 1), .type = std::move(type), .help = std::move(help)};
}

Fault wrong_type(const std::string& expected, const ConfigValue& value) {
  return {value.place, fmt::format("expected {}, got {}", expected, describe(value))};
}

void collect(Faults& faults, const ConfigValue& value, const std::function<void()>& read) {
  if (const auto complaint = refusal_of(read)) faults.push_back({value.place, *complaint});
}

std::int64_t read_number(const ConfigValue& value, const std::string& expected, const IntegerRange& range) {
  const auto integer = expect<std::int64_t>(value, expected);
  if (integer < range.low) fail_request("{} is out of range: at least {}", integer, range.low);
  if (integer > range.high) fail_request("{} is out of range: at most {}", integer, range.high);
  return integer;
}

double read_number(const ConfigValue& value, const std::string& expected, const NumberRange& range) {
  const auto* integer = std::get_if<std::int64_t>(&value.data);
  const double number = integer ? static_cast<double>(*integer) : expect<double>(value, expected);
  if (!range.contains(number)) fail_request("{} is out of range: {}", toml_text(number), range.text);
  return number;
}

Faults read_texts(const ConfigValue& value, const std::function<void(const std::string& text)>& check,
                  std::vector<std::string>& texts) {
  const bool one = std::holds_alternative<std::string>(value.data);
  if (!one && !std::holds_alternative<std::vector<ConfigValue>>(value.data)) {
    return {wrong_type("an array of strings", value)};
  }
  Faults faults;
  for (const ConfigValue& element : elements_of(value)) {
    collect(faults, element, [&] {
      const auto text = expect<std::string>(element, "a string");
      check(text);
      texts.push_back(text);
    });
  }
  return faults;
}

std::string wrong_word(const std::string& word, const std::vector<std::string>& available,
                       const std::vector<std::string>& absent) {
  std::string use;
  for (std::size_t i = 0; i < available.size(); ++i) {
    if (i > 0) use += i + 1 == available.size() ? " or " : ", ";
    use += toml_text(available[i]);
  }
  if (std::find(absent.begin(), absent.end(), word) != absent.end()) {
    return fmt::format("{} is not available in this version; use {}", toml_text(word), use);
  }
  const auto nearest = nearest_word(word, available);
  const std::string meant = nearest ? fmt::format(" (did you mean {}?)", toml_text(*nearest)) : "";
  return fmt::format("expected {}, got {}{}", use, toml_text(word), meant);
}

std::string bytes_text(std::int64_t bytes) {
  return bytes < least_without_unit ? toml_text(fmt::format("{} B", bytes)) : toml_text(bytes);
}

std::optional<std::int64_t> read_bytes(const ConfigValue& value, const std::string& absent) {
  const auto* text = std::get_if<std::string>(&value.data);
  const auto* integer = std::get_if<std::int64_t>(&value.data);
  if (!text && !integer) fail_request("{}", wrong_type("a string or an integer", value).text);
  if (text && *text == absent) return std::nullopt;
  const std::string written = text ? toml_text(*text) : toml_text(*integer);
  const auto amount = parse_bytes(text ? *text : written);
  if (!amount) {
    fail_request("{} is no amount of memory: write bytes, or a number with KiB, MiB, GiB, TiB, kB, MB, GB or TB",
                 written);
  }
  const bool has_unit = text && std::ranges::any_of(*text, [](char c) { return c == 'B'; });
  if (!has_unit && *amount < least_without_unit) {
    fail_request(
        "{0} without a unit is {1} bytes, which is too little to be meant: write \"{1} GiB\", or \"{1} B\" for bytes",
        written, *amount);
  }
  return amount;
}

}  // namespace weft::config_fields
