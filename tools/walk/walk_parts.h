// The subjects of `weft walk`: a built-in toy model or a configuration, under each of the usual strategies. Its output.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "trainer/planning/walk.h"
#include "trainer/resolve/config_reader.h"

namespace weft {

// Sizes of a transformer small enough for a reader to follow its bytes one by one.
struct WalkToy {
  int ranks = 4, blocks = 4, microbatches = 2;
  int hidden = 16;   // a multiple of 8, the width of a head
  bool moe = false;  // every second block has experts
};
// The toy's configuration as TOML. Throws Error (request) for sizes that make no model.
std::string toy_config(const WalkToy& toy);

// A strategy as overrides of a configuration. They win over every strategy set in its [shard] sections.
struct WalkStrategy {
  std::string name;
  Overrides overrides;
};

// Takes every name of --strategy: "full_shard", ..., "hybrid", "island 2", and "island" for the smallest island. Throws
// Error (request) listing the names for an unknown name, and for a hybrid or island that the ranks of `config` do not
// allow.
WalkStrategy walk_strategy(const std::string& name, const Config& config);
// The strategies of "all".
std::vector<std::string> all_walk_strategies();

// The output of `weft walk`: a table per strategy and a comparison of strategies; or the same as JSON.
struct WalkedStrategy {
  std::string name;
  WalkedStep step;
};

// One line per action.
std::string walk_text(const WalkedStrategy& walked);
// One row per strategy.
std::string summary_text(std::span<const WalkedStrategy> strategies);

nlohmann::ordered_json walk_json(const WalkedStrategy& walked);

}  // namespace weft
