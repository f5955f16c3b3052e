// State that generation carries from pass to pass on one rank. A pass computes the next tokens of several sequences,
// all at the same position. The caches hold keys and values of the earlier tokens.
#pragma once

#include <cstdint>
#include <map>

#include "parallel/runtime/ledger.h"

namespace weft {

// Shape of a pass, the same on all ranks: `tokens` new tokens of each of `sequences` sequences, sequence after
// sequence. Padding follows, up to the segments' microbatch, which is a multiple of the tensor group's size.
struct GenerationShape {
  std::int64_t sequences = 1, tokens = 1;
  std::int64_t capacity = 0;  // positions per sequence in the caches
  std::int64_t wanted = 1;    // last tokens of each sequence for which the head computes logits

  std::int64_t rows() const { return sequences * tokens; }
  bool operator==(const GenerationShape&) const = default;
};

struct GenerationState {
  // Keys and values of this rank's attention segments, by block, for attention_cached (kernels/attention.h):
  // [sequences * capacity, HeadShape::key_value_columns()] in the compute dtype.
  std::map<int, Tensor> caches = {};
  // Position of the first new token of this pass, the same in every sequence; the number of cached positions.
  std::int64_t position = 0;
  // Logits of this pass (logits_head.h); empty on ranks without the head.
  Tensor logits = {};
};

}  // namespace weft
