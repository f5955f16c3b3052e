// What of the model stands on a stage. Which stage has which blocks is the layout's to say (trainer/layout).
#pragma once

#include "layers/model_config.h"

namespace weft {

// One stage's run of the model.
struct StageBlocks {
  int first = 0, count = 0;  // blocks [first, first + count)
  bool embedding = false, head = false;

  bool empty() const { return count == 0 && !embedding && !head; }
  bool operator==(const StageBlocks&) const = default;
};

// The whole model on one stage.
inline StageBlocks all_blocks(const ModelConfig& model) {
  return {.count = static_cast<int>(model.blocks.size()), .embedding = true, .head = true};
}

}  // namespace weft
