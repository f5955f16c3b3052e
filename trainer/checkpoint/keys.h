// What a checkpoint says about the run that wrote it, as keys of the configuration and their values: what must be equal
// for weights to mean the same, and for data to go on where it was.
#pragma once

#include <map>
#include <string>

#include "trainer/config/config.h"
#include "trainer/data/data.h"

namespace weft {

using KeyValues = std::map<std::string, std::string>;  // values in TOML

// All of [model] but what only losses and initial values see.
KeyValues model_keys(const Config& config);
// What decides which tokens a sample of a given number holds: keys, and what is in each file that data.train names, as
// data.train[0], data.train[1], ... Reads the files (TokenDataset::contents).
KeyValues data_keys(const Config& config, const TokenDataset& data);

// A line for each key of the data that differs. Files are known by what is in them: their names count only where the
// checkpoint says no more of them.
std::string differing_data(KeyValues saved, KeyValues own);
// A line for each key that differs: `model.hidden_size is 64 in the checkpoint and 128 here`. Empty: none does.
std::string differing_keys(const KeyValues& saved, const KeyValues& own);

}  // namespace weft
