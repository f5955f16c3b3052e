// The head where text is generated: logits of the last tokens of each sequence, over the whole vocabulary, into
// GenerationState::logits (generation_state.h). The same parameters as head.h, and no backward.
#pragma once

#include <span>

#include "layers/generation_state.h"
#include "layers/segment.h"

namespace weft {

// The state's logits are [sequences * wanted * vocabulary, 1] float32 on every rank of the tensor group: the ranks'
// parts of the vocabulary one after another, each [sequences * wanted, its columns].
std::unique_ptr<Segment> make_logits_head(const SegmentSetup& setup, const GenerationShape& shape);

// The same as [rows, vocabulary].
std::vector<float> whole_logits(std::span<const float> by_part, std::int64_t rows, std::int64_t vocabulary, int parts);

}  // namespace weft
