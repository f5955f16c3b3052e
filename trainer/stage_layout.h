// Which blocks stand on which pipeline stage. The embedding belongs to the first stage, the head to the last.
#pragma once

#include <vector>

#include "trainer/config.h"

namespace weft {

// One stage's run of the model.
struct StageBlocks {
  int first = 0, count = 0;  // blocks [first, first + count)
  bool embedding = false, head = false;
  bool operator==(const StageBlocks&) const = default;
};

// Matrix-product operations of a block for one token in forward, attention scores at half the sequence (causal).
double block_flops(const ModelConfig& model, BlockKind kind, std::int64_t sequence_length);
double head_flops(const ModelConfig& model);

// Contiguous split that makes the most loaded stage as light as possible; at least one block a stage. Among equals the
// later stages get more, since the first ones hold more microbatches in flight.
std::vector<StageBlocks> automatic_layout(const ModelConfig& model, std::int64_t sequence_length, int stages);

}  // namespace weft
