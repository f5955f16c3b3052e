// What a run must have to read keys of features that it may do without.
#pragma once

#include <string_view>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft::config_fields {

using KeyConditions = std::vector<KeyCondition>;

// Adds conditions to keys.
ConfigKey only_where(const KeyConditions& conditions, ConfigKey key);
std::vector<ConfigKey> only_where(const KeyConditions& conditions, std::vector<ConfigKey> keys);

KeyCondition has_blocks(BlockKind kind);
// Of a key of [shard.<family>] or [precision.<family>]: there are units of the family, with gradients where the key
// speaks of them.
KeyConditions of_family(Family family, std::string_view key);
// Parameters are trained that are stepped in this group.
KeyConditions trains_group(UpdateGroup group);
// The group's rule is one of these.
KeyCondition steps_by(UpdateGroup group, std::vector<UpdateRule> rules);
KeyCondition keeps_states(UpdateGroup group);
KeyCondition computes_in_float16();

}  // namespace weft::config_fields
