// Gathers what was written, from the file, the files it includes and the command line, into one list with one entry for
// each path. A file wins over what it includes, the command line wins over files. No meaning is attached here.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/config/config_value.h"

namespace weft {

struct ConfigSources {
  std::shared_ptr<const SourceText> file;      // the one that was asked for
  std::map<std::string, ConfigEntry> entries;  // by path
  Faults faults;
  bool complete = true;  // false: a file could not be read, so that keys may be missing for no fault of their own
};

// `text` stands in for the content of `file`, whose folder included files are relative to.
ConfigSources gather_sources(const std::filesystem::path& file, const std::string& text,
                             const std::vector<std::string>& overrides);

// Throws Error (request) where overrides that were typed together give a key twice, and names both: one of them would do
// nothing.
void require_keys_once(const std::vector<std::string>& overrides);

// Throws Error (request) when there is no such file.
std::string read_text(const std::filesystem::path& file);

}  // namespace weft
