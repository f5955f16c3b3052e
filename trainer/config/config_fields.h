// Kinds of keys for building the schema. `access` maps a Config, constant or not, to the field, so that one entry of
// the table both reads and writes.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/config/config_schema.h"
#include "trainer/config/config_suggestions.h"

namespace weft::config_fields {

struct IntegerRange {
  std::int64_t low = 0, high = 0;
  const char* beyond = "";  // reason for the limit `high`, if not obvious
};
// Bounds of sizes: the product of any two sizes, and of any size with two degrees, fits into 64 bits.
inline constexpr IntegerRange size_range{1, std::numeric_limits<std::int32_t>::max()};
inline constexpr IntegerRange count_range{0, std::numeric_limits<std::int32_t>::max()};
inline constexpr IntegerRange degree_range{1, 32768};

struct NumberRange {
  double low = 0, high = 0;
  bool low_excluded = false, high_excluded = false;
  const char* text = "";  // "at least 0"

  bool contains(double value) const {
    return (low_excluded ? value > low : value >= low) && (high_excluded ? value < high : value <= high);
  }
};
inline constexpr double largest_number = std::numeric_limits<double>::max();
inline constexpr NumberRange non_negative{0, largest_number, false, false, "at least 0 and finite"};
inline constexpr NumberRange positive{0, largest_number, true, false, "greater than 0 and finite"};
inline constexpr NumberRange below_one{0, 1, false, true, "in [0, 1)"};
inline constexpr NumberRange up_to_one{0, 1, false, false, "in [0, 1]"};

template <typename T>
struct Choice {
  const char* name;
  T value;
};

ConfigKey make_key(const std::string& path, std::string type, std::string help);
Fault wrong_type(const std::string& expected, const ConfigValue& value);
// Compares `value` with a range; no faults if it lies inside.
Faults out_of_range(const ConfigValue& value, std::int64_t integer, const IntegerRange& range);
// The value as a number; integers are accepted.
std::optional<double> as_number(const ConfigValue& value);
// Reads bytes written as "12 GiB" or 900; the word `absent` means none.
Faults read_bytes(const ConfigValue& value, const std::string& absent, std::optional<std::int64_t>& bytes);
// The fault of a word that is not accepted: known but not available, or unknown.
Fault wrong_word(const ConfigValue& value, const std::string& word, const std::vector<std::string>& available,
                 const std::vector<std::string>& absent);

template <typename Access>
ConfigKey integer_key(const std::string& path, std::string help, IntegerRange range, Access access) {
  ConfigKey key = make_key(path, "an integer", std::move(help));
  key.read = [=](Config& config, const ConfigValue& value) -> Faults {
    const auto* integer = std::get_if<std::int64_t>(&value.data);
    if (!integer) return {wrong_type("an integer", value)};
    Faults faults = out_of_range(value, *integer, range);
    using Field = std::remove_reference_t<decltype(access(config))>;
    if (faults.empty()) access(config) = static_cast<Field>(*integer);
    return faults;
  };
  key.write = [=](const Config& config) { return toml_text(static_cast<std::int64_t>(access(config))); };
  return key;
}

template <typename Access>
ConfigKey number_key(const std::string& path, std::string help, NumberRange range, Access access) {
  ConfigKey key = make_key(path, "a number", std::move(help));
  key.read = [=](Config& config, const ConfigValue& value) -> Faults {
    const std::optional<double> number = as_number(value);
    if (!number) return {wrong_type("a number", value)};
    if (!range.contains(*number)) {
      return {{value.place, fmt::format("{} is out of range: {}", toml_text(*number), range.text)}};
    }
    access(config) = *number;
    return {};
  };
  key.write = [=](const Config& config) { return toml_text(access(config)); };
  return key;
}

// An amount of memory, or the word `absent`.
template <typename Access>
ConfigKey bytes_key(const std::string& path, std::string help, const std::string& absent, Access access) {
  ConfigKey key = make_key(path, "a string or an integer", std::move(help));
  key.read = [=](Config& config, const ConfigValue& value) { return read_bytes(value, absent, access(config)); };
  key.write = [=](const Config& config) {
    const std::optional<std::int64_t>& bytes = access(config);
    return bytes ? toml_text(*bytes) : toml_text(absent);
  };
  return key;
}

template <typename Access>
ConfigKey boolean_key(const std::string& path, std::string help, Access access) {
  ConfigKey key = make_key(path, "a boolean", std::move(help));
  key.read = [=](Config& config, const ConfigValue& value) -> Faults {
    const bool* boolean = std::get_if<bool>(&value.data);
    if (!boolean) return {wrong_type("a boolean", value)};
    access(config) = *boolean;
    return {};
  };
  key.write = [=](const Config& config) { return toml_text(access(config)); };
  return key;
}

// `check` returns what is wrong with the text, or nothing.
template <typename Access, typename Check>
ConfigKey string_key(const std::string& path, std::string help, Access access, Check check) {
  ConfigKey key = make_key(path, "a string", std::move(help));
  key.read = [=](Config& config, const ConfigValue& value) -> Faults {
    const auto* text = std::get_if<std::string>(&value.data);
    if (!text) return {wrong_type("a string", value)};
    const std::string complaint = check(*text);
    if (!complaint.empty()) return {{value.place, complaint}};
    access(config) = *text;
    return {};
  };
  key.write = [=](const Config& config) { return toml_text(access(config)); };
  return key;
}

// One of several words. `absent`: words known elsewhere that this version does not offer.
template <typename T, typename Access>
ConfigKey choice_key(const std::string& path, std::string help, std::vector<Choice<T>> choices,
                     std::vector<std::string> absent, Access access) {
  ConfigKey key = make_key(path, "a string", std::move(help));
  key.read = [=](Config& config, const ConfigValue& value) -> Faults {
    const auto* word = std::get_if<std::string>(&value.data);
    if (!word) return {wrong_type("a string", value)};
    std::vector<std::string> available;
    for (const auto& choice : choices) {
      available.push_back(choice.name);
      if (*word != choice.name) continue;
      access(config) = choice.value;
      return {};
    }
    return {wrong_word(value, *word, available, absent)};
  };
  key.write = [=](const Config& config) {
    for (const auto& choice : choices) {
      if (access(config) == choice.value) return toml_text(std::string(choice.name));
    }
    fail("{} holds a value without a name", path);
  };
  return key;
}

// A key with one accepted value so far. `instead` tells the user what to do about any other value.
template <typename T>
ConfigKey fixed_key(const std::string& path, std::string type, std::string help, T only, std::string instead) {
  ConfigKey key = make_key(path, std::move(type), std::move(help));
  key.read = [only, instead, expected = key.type](Config&, const ConfigValue& value) -> Faults {
    const T* written = std::get_if<T>(&value.data);
    if (!written) return {wrong_type(expected, value)};
    if (*written == only) return {};
    return {{value.place, fmt::format("{} is not available in this version: {}", toml_text(*written), instead)}};
  };
  key.write = [=](const Config&) { return toml_text(only); };
  return key;
}

}  // namespace weft::config_fields
