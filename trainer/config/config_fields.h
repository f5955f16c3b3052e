// Kinds of keys for building the schema. A key's field serves reading and writing. The field of an integer or a number
// may be optional: the word "auto" empties it.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "parallel/runtime/error.h"
#include "trainer/config/config_messages.h"
#include "trainer/config/config_schema.h"

namespace weft::config_fields {

struct IntegerRange {
  std::int64_t low = 0, high = 0;
};
// Bounds of sizes: the product of any two sizes, and of any size with two degrees, fits into 64 bits.
inline constexpr IntegerRange size_range{1, std::numeric_limits<std::int32_t>::max()};
inline constexpr IntegerRange count_range{0, std::numeric_limits<std::int32_t>::max()};
inline constexpr IntegerRange degree_range{1, 32768};

struct NumberRange {
  double low = 0, high = 0;
  bool low_excluded = false, high_excluded = false;
  const char* text = "";  // "at least 0"
  bool or_zero = false;   // contains 0, too

  bool contains(double value) const {
    if (or_zero && value == 0.0) return true;
    return (low_excluded ? value > low : value >= low) && (high_excluded ? value < high : value <= high);
  }
};
inline constexpr double largest_number = std::numeric_limits<double>::max();
inline constexpr NumberRange non_negative{0, largest_number, false, false, "at least 0 and finite"};
// A smaller number is 0 in the float32 of kernels.
inline constexpr double smallest_float = std::numeric_limits<float>::min();
inline constexpr NumberRange positive{smallest_float, std::numeric_limits<float>::max(), false, false,
                                      "from 1.2e-38 to 3.4e38, as float32"};
inline constexpr NumberRange positive_or_zero{
    smallest_float, largest_number, false, false, "0, or finite and at least 1.2e-38, as float32", /*or_zero=*/true};
inline constexpr NumberRange below_one{0, 1, false, true, "in [0, 1)"};
inline constexpr NumberRange up_to_one{0, 1, false, false, "in [0, 1]"};

// The field of a key by its path. `access` maps a Config, constant or not, to it. A run reads the key where conditions
// hold.
template <typename Access>
struct KeyField {
  std::string path;
  Access access;
  std::vector<KeyCondition> read_where = {};
};
// The fields of a section, which is a member or a function: fields_of("run", &Config::run)("seed", &RunConfig::seed).
template <typename Section>
auto fields_of(const std::string& name, Section section) {
  return [=](const std::string& key, auto member, const std::vector<KeyCondition>& read_where = {}) {
    const auto access = [ section, member ](auto& config) -> auto& {
      return std::invoke(section, config).*member;
    };
    return KeyField{name + "." + key, access, read_where};
  };
}
template <typename Access>
using FieldOf = std::remove_cvref_t<std::invoke_result_t<Access, Config&>>;
template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

inline constexpr const char* automatic = "auto";

ConfigKey make_key(const std::string& path, std::string type, std::string help);
Fault wrong_type(const std::string& expected, const ConfigValue& value);
// Adds the refusal of `read`, if it refuses, as a fault of the value.
void collect(Faults& faults, const ConfigValue& value, const std::function<void()>& read);

// The next four throw Error (request) for a value that is not accepted. `expected` is the type for messages.
//
// The value as a T.
template <typename T>
const T& expect(const ConfigValue& value, const std::string& expected) {
  const T* data = std::get_if<T>(&value.data);
  if (data == nullptr) fail_request("{}", wrong_type(expected, value).text);
  return *data;
}
// An integer or a number of the range; integers are numbers.
std::int64_t read_number(const ConfigValue& value, const std::string& expected, const IntegerRange& range);
double read_number(const ConfigValue& value, const std::string& expected, const NumberRange& range);
// Bytes written as "12 GiB" or 1048576; the word `absent` means none. Less than 1 MiB needs a unit: "900 B".
std::optional<std::int64_t> read_bytes(const ConfigValue& value, const std::string& absent);

// TOML that read_bytes reads back.
std::string bytes_text(std::int64_t bytes);
// Reads an array of strings, or a string as an array of one. `check` throws Error for an element that is not accepted.
Faults read_texts(const ConfigValue& value, const std::function<void(const std::string& text)>& check,
                  std::vector<std::string>& texts);
// Says of a word that it is not accepted: known but not available, or unknown.
std::string wrong_word(const std::string& word, const std::vector<std::string>& available,
                       const std::vector<std::string>& absent);

// `read` makes the value of the field of a written one, or throws Error; `write` makes TOML of it.
template <typename Access, typename Read, typename Write>
ConfigKey value_key(const KeyField<Access>& field, std::string type, std::string help, Read read, Write write) {
  ConfigKey key = make_key(field.path, std::move(type), std::move(help));
  key.read_where = field.read_where;
  key.read = [=, access = field.access](Config& config, const ConfigValue& value) {
    Faults faults;
    collect(faults, value, [&] { std::invoke(access, config) = read(value); });
    return faults;
  };
  key.write = [=, access = field.access](const Config& config) { return write(std::invoke(access, config)); };
  return key;
}

// An integer or a number of the range, or "auto" if the field is optional.
template <typename Number, typename Range, typename Access>
ConfigKey ranged_key(const KeyField<Access>& field, const char* type, std::string help, Range range) {
  using Field = FieldOf<Access>;
  constexpr bool may_be_auto = is_optional<Field>;
  const std::string expected = may_be_auto ? fmt::format("{} or \"{}\"", type, automatic) : type;
  const auto read = [=](const ConfigValue& value) {
    const auto* word = std::get_if<std::string>(&value.data);
    if (may_be_auto && word && *word == automatic) return Field();
    return static_cast<Field>(read_number(value, expected, range));
  };
  const auto write = [](const Field& now) {
    if constexpr (may_be_auto) {
      return now ? toml_text(static_cast<Number>(*now)) : toml_text(std::string(automatic));
    } else {
      return toml_text(static_cast<Number>(now));
    }
  };
  return value_key(field, expected, std::move(help), read, write);
}
template <typename Access>
ConfigKey integer_key(const KeyField<Access>& field, std::string help, IntegerRange range) {
  return ranged_key<std::int64_t>(field, "an integer", std::move(help), range);
}
template <typename Access>
ConfigKey number_key(const KeyField<Access>& field, std::string help, NumberRange range) {
  return ranged_key<double>(field, "a number", std::move(help), range);
}

// An amount of memory, or the word `absent`.
template <typename Access>
ConfigKey bytes_key(const KeyField<Access>& field, std::string help, const std::string& absent) {
  const auto read = [=](const ConfigValue& value) { return read_bytes(value, absent); };
  const auto write = [=](const std::optional<std::int64_t>& bytes) {
    return bytes ? bytes_text(*bytes) : toml_text(absent);
  };
  return value_key(field, "a string or an integer", std::move(help), read, write);
}

template <typename Access>
ConfigKey boolean_key(const KeyField<Access>& field, std::string help) {
  const auto read = [](const ConfigValue& value) { return expect<bool>(value, "a boolean"); };
  const auto write = [](bool now) { return toml_text(now); };
  return value_key(field, "a boolean", std::move(help), read, write);
}

inline void any_text(const std::string&) {}
// A check that complains so of an empty text.
inline auto not_empty(const char* complaint) {
  return [=](const std::string& text) {
    if (text.empty()) fail_request("{}", complaint);
  };
}

// A text that `parse` makes a value of, or throws Error; `text_of` makes the text again.
template <typename Access, typename Parse, typename TextOf>
ConfigKey text_key(const KeyField<Access>& field, std::string help, Parse parse, TextOf text_of) {
  const auto read = [=](const ConfigValue& value) { return parse(expect<std::string>(value, "a string")); };
  const auto write = [=](const auto& now) { return toml_text(text_of(now)); };
  return value_key(field, "a string", std::move(help), read, write);
}
// Of a value with to_string().
template <typename Access, typename Parse>
ConfigKey parsed_key(const KeyField<Access>& field, std::string help, Parse parse) {
  return text_key(field, std::move(help), parse, [](const auto& value) { return to_string(value); });
}
// The text as it is; `check` throws Error if it is not accepted.
template <typename Access, typename Check>
ConfigKey string_key(const KeyField<Access>& field, std::string help, Check check) {
  const auto checked = [=](const std::string& text) {
    check(text);
    return text;
  };
  return text_key(field, std::move(help), checked, std::identity());
}
// One of `values`, by name_of(). `absent`: words known elsewhere that this version does not offer.
template <typename Access>
ConfigKey choice_key(const KeyField<Access>& field, std::string help, std::vector<FieldOf<Access>> values,
                     std::vector<std::string> absent = {}) {
  const auto parse = [=](const std::string& word) {
    std::vector<std::string> names;
    for (const auto& value : values) {
      if (name_of(value) == word) return value;
      names.emplace_back(name_of(value));
    }
    fail_request("{}", wrong_word(word, names, absent));
  };
  const auto text_of = [](const auto& value) { return std::string(name_of(value)); };
  return text_key(field, std::move(help), parse, text_of);
}
// Any value of an enumeration.
template <typename Access>
ConfigKey choice_key(const KeyField<Access>& field, std::string help) {
  constexpr auto& all = all_values<FieldOf<Access>>;
  return choice_key(field, std::move(help), {all.begin(), all.end()});
}

// A list of texts; `check` looks at each of them, as that of string_key() does.
template <typename Access, typename Check>
ConfigKey texts_key(const KeyField<Access>& field, std::string help, Check check) {
  ConfigKey key = make_key(field.path, "an array of strings", std::move(help));
  key.read_where = field.read_where;
  key.read = [=, access = field.access](Config& config, const ConfigValue& value) -> Faults {
    std::vector<std::string> texts;
    Faults faults = read_texts(value, check, texts);
    if (faults.empty()) std::invoke(access, config) = std::move(texts);
    return faults;
  };
  key.write = [access = field.access](const Config& config) { return toml_text(std::invoke(access, config)); };
  return key;
}

// Keys of the schema that do more than read one value into one field (config_special_keys.cpp).

ConfigKey layers_key();      // also fills in the blocks
ConfigKey data_shard_key();  // explains why -1 does not work
ConfigKey schedule_key();    // also takes a .csv file
// Keys of stage layouts (config_pipeline_keys.cpp).
ConfigKey layout_key();                                // a text, or a list with one entry a stage
ConfigKey stage_blocks_key(const std::string& which);  // "first" or "last": a number or "auto"
// Keys of a family's policy, or of the default policy.
std::vector<ConfigKey> shard_keys(std::optional<Family> family);
std::vector<ConfigKey> precision_keys(std::optional<Family> family);
ConfigKey frozen_key();   // a list
ConfigKey sources_key();  // files with weights
// Keys of a group of parameters, or of the default optimizer (config_optimizer_keys.cpp).
std::vector<ConfigKey> optimizer_keys(std::optional<UpdateGroup> group);
std::vector<ConfigKey> checkpoint_keys();
std::vector<ConfigKey> hardware_keys();
// Of a model with experts (config_moe_keys.cpp); the second are of the load of experts.
std::vector<ConfigKey> moe_keys();
std::vector<ConfigKey> balance_keys();

}  // namespace weft::config_fields
