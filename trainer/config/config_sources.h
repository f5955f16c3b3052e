// Gathers the written entries of the file, of the files it includes and of the command line into one list with one
// entry for each path. A file wins over its includes, the command line over all files. Values get no meaning here.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/config/config_value.h"

namespace weft {

struct ConfigSources {
  std::shared_ptr<const SourceText> file;      // the requested file
  std::map<std::string, ConfigEntry> entries;  // by path
  Faults faults;
  bool complete = true;  // false: a file could not be read, so keys may only seem to be missing
};

// `text` is the content of `file`. Included files are relative to the folder of `file`.
ConfigSources gather_sources(const std::filesystem::path& file, const std::string& text,
                             const std::vector<std::string>& overrides);

// Throws Error (request) if overrides typed together give a key twice, and names both: one of them would have no
// effect.
void require_keys_once(const std::vector<std::string>& overrides);

// Throws Error (request) when there is no such file.
std::string read_text(const std::filesystem::path& file);

}  // namespace weft
