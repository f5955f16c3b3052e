// The output of `weft walk`: a table per strategy, a comparison of strategies, and lessons; or the same as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "tools/walk/walk_words.h"

namespace weft {

// One line per action, with remarks.
std::string walk_text(const WalkedStrategy& walked);
// One row per strategy, and the lessons.
std::string summary_text(std::span<const WalkedStrategy> strategies);

nlohmann::ordered_json walk_json(const WalkedStrategy& walked);

}  // namespace weft
