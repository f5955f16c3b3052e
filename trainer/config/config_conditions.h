// Conditions under which a run reads the keys of optional features.
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
// For a key of [shard.<family>] or [precision.<family>]: the family has units, and they have gradients if the key is
// about gradients.
KeyConditions of_family(Family family, std::string_view key);
// The run trains parameters of this group.
KeyConditions trains_group(UpdateGroup group);
// The group's rule is one of these.
KeyCondition steps_by(UpdateGroup group, std::vector<UpdateRule> rules);
KeyCondition keeps_states(UpdateGroup group);
KeyCondition computes_in_float16();

}  // namespace weft::config_fields
