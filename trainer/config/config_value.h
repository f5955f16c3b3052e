// A value as written, with its place. The readers of files and overrides hand such values to the schema, which gives
// them a meaning.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace weft {

// A file, or all overrides of the command line with one line each.
struct SourceText {
  std::string name;
  std::vector<std::string> lines;
  int order = 0;  // position of the source in reports
  bool is_command_line = false;
};

// Lines and columns count from 1, columns in characters. Line 0 stands for the source as a whole.
struct Place {
  std::shared_ptr<const SourceText> source;
  int line = 0;
  int column = 0;
  int width = 1;
};

struct ConfigField;
// A section or a table. The keys of a table in an array are its fields; those of others are entries of their own.
struct TableMark {
  std::shared_ptr<const std::vector<ConfigField>> fields;  // null for those
};
struct DateMark {};  // dates and times, which no key takes

struct ConfigValue {
  std::variant<bool, std::int64_t, double, std::string, std::vector<ConfigValue>, TableMark, DateMark> data;
  Place place;
};

struct ConfigField {
  std::string name;
  ConfigValue value;
};

// One key or section; `path` is dotted: "model.moe.num_experts".
struct ConfigEntry {
  std::string path;
  Place key;
  ConfigValue value;

  bool is_table() const { return std::holds_alternative<TableMark>(value.data); }
};

// A fault and its place.
struct Fault {
  Place place;
  std::string text;
};
using Faults = std::vector<Fault>;

// The elements of an array; for any other value the value itself, as a list of one.
std::vector<ConfigValue> elements_of(const ConfigValue& value);

// For messages: `the string "8"`, `an array`.
std::string describe(const ConfigValue& value);

// Values as TOML. Numbers keep every bit.
std::string toml_text(bool value);
std::string toml_text(std::int64_t value);
std::string toml_text(double value);
std::string toml_text(const std::string& value);
std::string toml_text(const std::vector<std::string>& values);

}  // namespace weft
