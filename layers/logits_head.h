// The head for text generation: writes logits of the last tokens of each sequence, over the whole vocabulary, to
// GenerationState::logits (generation_state.h). Its parameters are those of make_head (segments.h); it has no backward.
#pragma once

#include <span>

#include "layers/generation_state.h"
#include "layers/segment.h"

namespace weft {

// GenerationState::logits is [sequences * wanted * vocabulary, 1] float32 on every rank of the tensor group: the ranks'
// parts of the vocabulary one after another, each [sequences * wanted, columns of that rank].
std::unique_ptr<Segment> make_logits_head(const SegmentSetup& setup, const GenerationShape& shape);

// Copies such logits into one [rows, vocabulary] matrix.
std::vector<float> whole_logits(std::span<const float> by_part, std::int64_t rows, std::int64_t vocabulary, int parts);

}  // namespace weft
