// The output of `weft walk`: a table per strategy and a comparison of strategies; or the same as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "trainer/planning/walk.h"

namespace weft {

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
