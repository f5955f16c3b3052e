// Final norm, vocabulary-parallel output projection and cross-entropy. Logits are never gathered: the shards of the
// vocabulary exchange three numbers a token (maximum, sum of exponentials, logit of the target). A tied head declares
// the embedding's weight in place of its own.
#pragma once

#include "layers/segment.h"

namespace weft {

// The norm's weight, then the projection: one row for each vocabulary entry of this rank.
std::vector<ParameterSpec> head_parameters(const SegmentSetup& setup);

// Number of tokens whose logits exist at the same time: as many as SegmentSetup::most_logit_bytes allows for this
// rank's part of the vocabulary, rounded down to whole tiles of a product if at least one tile fits.
std::int64_t logits_chunk_tokens(const SegmentSetup& setup);

std::unique_ptr<Segment> make_head(const SegmentSetup& setup);

}  // namespace weft
