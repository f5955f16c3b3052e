// Reads a run's TOML. Everything wrong is reported at once, each fault with file, line, column, the line itself and a
// caret; unknown keys with the nearest known one; sizes that do not fit with the arithmetic. A key that Weft knows but
// this build cannot honour is refused by name.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/config_value.h"

namespace weft {

// `--section.key=value`, the value in TOML syntax; a bare word that is not TOML counts as a string.
using Overrides = std::vector<std::string>;

struct ResolvedConfig {
  Config config;
  // The resolved configuration as TOML, one line a key. Keys that are not written and have their value from a general
  // key are comments: read back it is the same configuration, in which a general key given anew reaches them still.
  std::string toml;
  // The same with the origin of each value behind it: "default", "file.toml:12", "command line", or the general key.
  std::string annotated;
  // Values that somebody wrote, by path, with their places.
  std::map<std::string, ConfigValue> said;
  // Overrides that no value of the run reads (config_use.h), a fault each.
  std::vector<std::string> unread;
  // What a user should know before it runs, a sentence each.
  std::vector<std::string> warnings;
};

// Throws Error (request) with all faults, formatted for the terminal.
ResolvedConfig read_config(const std::filesystem::path& file, const Overrides& overrides = {});
// What is known before keys for which `undecided` holds are chosen: the others, each by itself, and the rules that look
// at none of them; those that do are left to whoever chooses (config_rules.h). Throws as read_config.
Config read_undecided(const std::filesystem::path& file, const Overrides& overrides,
                      const std::function<bool(const std::string& path)>& undecided);
// As read_config from text, for tests; `name` stands for the file in messages.
ResolvedConfig read_config_text(const std::string& text, const std::string& name, const Overrides& overrides = {});

}  // namespace weft
