// Conditions under which a run reads the keys of optional features, and the keys that a run reads.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft::config_fields {

using KeyConditions = std::vector<KeyCondition>;

// Adds conditions to keys.
void add_conditions(ConfigKey& key, const KeyConditions& conditions);
std::vector<ConfigKey> only_where(const KeyConditions& conditions, std::vector<ConfigKey> keys);

KeyCondition has_blocks(BlockKind kind);
KeyCondition has_blocks(Mixer mixer);
// For a key of [shard.<family>] or [precision.<family>]: the family has units, and they have gradients if the key is
// about gradients.
KeyConditions of_family(Family family, std::string_view key);
// The run trains parameters of this group.
KeyConditions trains_group(UpdateGroup group);
// The group's rule is one of these.
KeyCondition steps_by(UpdateGroup group, std::vector<UpdateRule> rules);
KeyCondition keeps_states(UpdateGroup group);
// The run trains parameters that adamw steps.
KeyCondition steps_some_by_adamw();
KeyCondition computes_in_float16();

}  // namespace weft::config_fields

namespace weft {

// A run reads a key if the key's conditions hold (ConfigKey::read_where). Keys of families or groups inherit from a
// general key. A run reads that one if it reads an inheriting key without a value of its own. Files may hold keys that
// a run does not read, but a key on the command line is expected to change something.
//
// The first condition of the key that the run does not meet, such as "decay is \"wsd\"".
std::optional<std::string> missing_for(const ConfigKey& key, const Config& config);

// Keys on the command line that the run does not read. A general key is not among them if the same command line gives a
// family's value: that replacement is visible.
Faults unread_overrides(const Config& config, const std::vector<ConfigKey>& schema,
                        const std::map<std::string, ConfigEntry>& entries);

}  // namespace weft
