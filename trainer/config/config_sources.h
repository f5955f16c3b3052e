// The written entries of a configuration, from TOML. Values get no meaning here.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config_value.h"

namespace weft {

struct ConfigSources {
  std::shared_ptr<const SourceText> file;      // the requested file
  std::map<std::string, ConfigEntry> entries;  // by path
  std::vector<std::filesystem::path> files;    // the requested file and those that it includes, as read
  Faults faults;
  bool complete = true;  // false: a file could not be read, so keys may only seem to be missing
};

// Gathers the entries of the file, of the files it includes and of the command line into one list with one entry for
// each path. A file wins over its includes, the command line over all files. `text` is the content of `file`. Included
// files are relative to the folder of `file`.
ConfigSources gather_sources(const std::filesystem::path& file, const std::string& text,
                             const std::vector<std::string>& overrides);

// Throws Error (request) if overrides typed together give a key twice, and names both: one of them would have no
// effect.
void require_keys_once(const std::vector<std::string>& overrides);

// Throws Error (request) when there is no such file.
std::string read_text(const std::filesystem::path& file);
// A text as a source, called `name` in messages.
std::shared_ptr<const SourceText> as_source(const std::string& text, const std::string& name, int order = 0);

// config_toml.cpp alone includes the TOML library, which is slow to compile.

struct TomlDocument {
  std::vector<ConfigEntry> entries;   // sections before their keys, otherwise in no particular order
  std::optional<Fault> syntax_error;  // reading stops at the first; `entries` is empty then
};

TomlDocument parse_toml(const std::string& text, const std::shared_ptr<const SourceText>& source);

// The entries that `path = text` stands for, all at one place; a text that is not a TOML value counts as a string.
std::vector<ConfigEntry> parse_toml_value(const std::string& path, const std::string& text, const Place& place);

}  // namespace weft
