// What `weft walk` prints: a table a strategy, all of them beside each other, and what to see; or the same as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "tools/walk/walk_words.h"

namespace weft {

// One line an action, with remarks.
std::string walk_text(const WalkedStrategy& walked);
// A row a strategy, and the lessons.
std::string summary_text(std::span<const WalkedStrategy> strategies);

nlohmann::ordered_json walk_json(const WalkedStrategy& walked);

}  // namespace weft
