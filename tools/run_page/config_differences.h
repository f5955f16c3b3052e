// Keys with different values in several runs.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace weft {

struct ConfigDifference {
  std::string key;                  // "training.global_batch_size"
  std::string help;                 // what the key sets, one line
  std::vector<std::string> values;  // by run, as TOML; "not read" for a run without use for the key
};

// In the order of the keys. A run's name and directories always differ and are left out; so is a key that follows
// another one in every run, which stands in the list itself.
std::vector<ConfigDifference> config_differences(std::span<const Config> runs);

}  // namespace weft
