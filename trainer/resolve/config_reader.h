// Reads a run's TOML. All faults are reported at once, each with file, line, column, the line itself and a caret.
// Unknown keys come with the nearest known key, and sizes that do not fit with the arithmetic. A key that Weft knows
// but this build cannot honour is refused by name.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/config_schema.h"
#include "trainer/config/config_value.h"

namespace weft {

// `--section.key=value`, the value in TOML syntax; a bare word that is not TOML counts as a string.
using Overrides = std::vector<std::string>;

struct ResolvedConfig {
  Config config;
  // The resolved configuration as TOML, one line a key. A key that is not written and inherits from a general key is a
  // comment. The text reads back as the same configuration, and a general key given anew still reaches inheriting keys.
  std::string toml;
  // The same with the origin of each value behind it: "default", "file.toml:12", "command line", or the general key.
  std::string annotated;
  // The written values by path, with their places.
  std::map<std::string, ConfigValue> said;
  // Overrides that the run does not read (config_conditions.h), a fault each.
  std::vector<std::string> unread;
  // Warnings before the run, a sentence each.
  std::vector<std::string> warnings;
  // Of read_values() alone: keys with a fault, and those probably meant by unknown ones.
  std::set<std::string> doubtful;
};

// Throws Error (request) with all faults, formatted for the terminal.
ResolvedConfig read_config(const std::filesystem::path& file, const Overrides& overrides = {});
// As read_config, and refuses overrides that the run does not read, as the command line does. `schema`: all keys, with
// the conditions under which the command reads them.
ResolvedConfig read_typed_config(const std::filesystem::path& file, const Overrides& overrides,
                                 std::vector<ConfigKey> schema = config_schema());
// The configuration as known before keys for which `undecided` holds are chosen. Each key is checked by itself. Only
// rules that look at no undecided key are applied; the caller that chooses must check the others (config_rules.h).
// Throws as read_config.
Config read_undecided(const std::filesystem::path& file, const Overrides& overrides,
                      const std::function<bool(const std::string& path)>& undecided);
// Of a configuration that is refused: the values of keys that have no fault of their own, and defaults of the others.
// Nothing but `config`, `said` and `doubtful` is set. Throws Error (request) if there is no such file.
ResolvedConfig read_values(const std::filesystem::path& file, const Overrides& overrides);
// The faults that keys have by themselves where other overrides could not be read: without rules and missing keys. One
// text, empty if there are none.
std::string key_faults(const std::filesystem::path& file, const Overrides& overrides);
// As read_config from text, for tests; `name` stands for the file in messages.
ResolvedConfig read_config_text(const std::string& text, const std::string& name, const Overrides& overrides = {});

}  // namespace weft
