// Which keys a run reads. A run reads a key if the key's conditions hold (ConfigKey::read_where). A run reads a general
// key, from which keys of families or groups inherit, if it reads an inheriting key without a value of its own. Files
// may hold keys that a run does not read, but a key on the command line is expected to change something.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft {

// The first condition of the key that the run does not meet, such as "decay is \"wsd\"".
std::optional<std::string> missing_for(const ConfigKey& key, const Config& config);

// Keys on the command line that the run does not read. A general key is not among them if the same command line gives a
// family's value: that replacement is visible.
Faults unread_overrides(const Config& config, const std::vector<ConfigKey>& schema,
                        const std::map<std::string, ConfigEntry>& entries);

}  // namespace weft
