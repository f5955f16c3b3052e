// Parses TOML text into entries. Only one source file includes the TOML library, which is slow to compile.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config_value.h"

namespace weft {

struct TomlDocument {
  std::vector<ConfigEntry> entries;   // sections before their keys, otherwise in no particular order
  std::optional<Fault> syntax_error;  // reading stops at the first; `entries` is empty then
};

TomlDocument parse_toml(const std::string& text, const std::shared_ptr<const SourceText>& source);

// The entries that `path = text` stands for, all at one place; a text that is not a TOML value counts as a string.
std::vector<ConfigEntry> parse_toml_value(const std::string& path, const std::string& text, const Place& place);

}  // namespace weft
