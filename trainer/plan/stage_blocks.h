// The part of the model on a stage. The layout decides which stage has which blocks (trainer/layout).
#pragma once

#include "layers/model_config.h"

namespace weft {

// The contiguous part of the model on one stage.
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
