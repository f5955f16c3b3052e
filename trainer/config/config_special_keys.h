// Keys of the schema that do more than read one value into one field.
#pragma once

#include <optional>
#include <vector>

#include "trainer/config/config_schema.h"

namespace weft::config_fields {

ConfigKey layers_key();      // also fills in the blocks
ConfigKey data_shard_key();  // explains why -1 does not work
ConfigKey schedule_key();    // also takes a .csv file
// Keys of stage layouts (config_pipeline_keys.cpp).
ConfigKey layout_key();                                // a text, or a list with one entry a stage
ConfigKey stage_blocks_key(const std::string& which);  // "first" or "last": a number or "auto"
// Keys of a family's policy, or of the default policy.
std::vector<ConfigKey> shard_keys(std::optional<Family> family);
std::vector<ConfigKey> precision_keys(std::optional<Family> family);
ConfigKey frozen_key();   // a list
ConfigKey sources_key();  // files with weights
// Keys of a group of parameters, or of the default optimizer (config_optimizer_keys.cpp).
std::vector<ConfigKey> optimizer_keys(std::optional<UpdateGroup> group);
std::vector<ConfigKey> checkpoint_keys();
std::vector<ConfigKey> hardware_keys();

}  // namespace weft::config_fields
