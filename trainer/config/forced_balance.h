// Experts that are dealt in turn, whatever their scores (model.moe.force_balance): times of such a step tell something,
// weights and losses nothing. Everything that a run leaves or prints says so.
#pragma once

#include <string_view>

#include "layers/model_config.h"

namespace weft {

inline bool forces_balance(const ModelConfig& model) {
  return model.has(BlockKind::moe) && model.moe.force_balance;
}

inline constexpr std::string_view forced_balance_text =
    "model.moe.force_balance is true: experts are dealt in turn. Speed can be measured so; what is learned is of no "
    "use";

}  // namespace weft
