// What generation carries from pass to pass on one rank. A pass computes the next tokens of each of several sequences,
// which all stand at the same position; what came before them is in the caches.
#pragma once

#include <cstdint>
#include <map>

#include "parallel/runtime/ledger.h"

namespace weft {

// A pass, the same on all ranks: `tokens` new ones of each of `sequences` sequences, sequence after sequence, padded
// behind them to the microbatch of the segments, which is a multiple of the tensor group.
struct GenerationShape {
  std::int64_t sequences = 1, tokens = 1;
  std::int64_t capacity = 0;  // positions of a sequence that the caches have
  std::int64_t wanted = 1;    // last tokens of each sequence of which the head makes logits

  std::int64_t rows() const { return sequences * tokens; }
  bool operator==(const GenerationShape&) const = default;
};

struct GenerationState {
  // Keys and values of this rank's attention segments, by block, for attention_cached (kernels/attention.h):
  // [sequences * capacity, 2 * key-value heads of this rank * head_dim] in the compute dtype.
  std::map<int, Tensor> caches = {};
  // Of the first new token of the pass in progress, in every sequence: so many positions are cached.
  std::int64_t position = 0;
  // What the head made of the pass (logits_head.h); nothing on ranks without it.
  Tensor logits = {};
};

}  // namespace weft
