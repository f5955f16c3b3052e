// What a checkpoint says about the run that wrote it, as keys of the configuration and their values: what must be equal
// for weights to mean the same, and for data to go on where it was.
#pragma once

#include <map>
#include <string>

#include "trainer/config/config.h"

namespace weft {

using KeyValues = std::map<std::string, std::string>;  // values in TOML

// All of [model] but what only losses and initial values see.
KeyValues model_keys(const Config& config);
// What decides which tokens a sample of a given number holds.
KeyValues data_keys(const Config& config);

// A line for each key that differs: `model.hidden_size is 64 in the checkpoint and 128 here`. Empty: none does.
std::string differing_keys(const KeyValues& saved, const KeyValues& own);

}  // namespace weft
