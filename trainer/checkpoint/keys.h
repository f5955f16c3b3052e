// The configuration of the run that wrote a checkpoint, as keys and values. The keys of the model must be equal so that
// the weights have the same meaning. Those of the data must, so that reading continues at the same sample.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "trainer/config/config.h"
#include "trainer/data/data.h"

namespace weft {

using KeyValues = std::map<std::string, std::string>;  // values in TOML

// Whether this is a key of [model] or its sections that model_keys() leaves out, whatever the model.
bool may_differ(std::string_view path);
// The keys of [model] and its sections that the model reads. Left out are those that affect only training (auxiliary
// losses, initial values), and the capacity of experts. Weights that learned with a capacity can be used without.
KeyValues model_keys(const Config& config);
// Everything that determines the tokens of a sample with a given number. It has keys, and the contents of each file in
// data.train, as data.train[0], data.train[1] and so on. Reads the files (TokenDataset::contents).
KeyValues data_keys(const Config& config, const TokenDataset& data);

// A line for each key that differs: `model.hidden_size is 64 in the checkpoint and 128 here`. Empty if all are equal.
// Keys that are younger than the checkpoint have their defaults there.
std::string differing_model(KeyValues saved, const KeyValues& own);
// A line for each key of the data that differs. Files are compared by content; their names are compared only if the
// checkpoint has no contents.
std::string differing_data(KeyValues saved, KeyValues own);

// The same for the parts that data.split makes of the files alone: data.split and the contents. Reads the files.
std::string differing_parts(KeyValues saved, const Config& config);

}  // namespace weft
