// Which keys a run reads. A run reads a key whose conditions hold (ConfigKey::read_where). It reads a general key, from
// which those of families or groups inherit, if it reads one of them that has no value of its own. Files may hold keys
// that a run does not read; whoever gives one on the command line expects it to change something.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft {

// What the run lacks for the key to be read: "decay is \"wsd\"".
std::optional<std::string> missing_for(const ConfigKey& key, const Config& config);

// Keys on the command line that the run does not read. A family's value that the same command line gives does not make
// the general key useless: there the general key is replaced in plain sight.
Faults unread_overrides(const Config& config, const std::vector<ConfigKey>& schema,
                        const std::map<std::string, ConfigEntry>& entries);

}  // namespace weft
