// What `weft walk` walks: a toy model of its own, or a configuration, under each of the strategies that people compare.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/resolve/config_reader.h"

namespace weft {

// Of a transformer small enough that its bytes can be followed one by one.
struct WalkToy {
  int ranks = 4, blocks = 4, microbatches = 2;
  int hidden = 16;   // a multiple of 8, the width of a head
  bool moe = false;  // every second block has experts

  bool operator==(const WalkToy&) const = default;
};
// As TOML. Throws Error (request) for sizes that make no model.
std::string toy_config(const WalkToy& toy);

// A strategy as overrides of a configuration, which win over all that its [shard] sections say of strategies.
struct WalkStrategy {
  std::string name;
  Overrides overrides;
};

// Every name that --strategy takes: "full_shard", ..., "hybrid", "island 2" and "island" for the smallest that there
// is. Throws Error (request) listing the names for another one, and for a hybrid or an island of ranks that `config`
// does not have.
WalkStrategy walk_strategy(const std::string& name, const Config& config);
// What "all" stands for.
std::vector<std::string> all_walk_strategies();

}  // namespace weft
