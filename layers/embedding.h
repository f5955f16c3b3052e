// The embedding with vocabulary parallelism: each tensor rank holds a balanced, possibly uneven run of vocabulary rows.
#pragma once

#include "layers/segment.h"

namespace weft {

// The rows of the embedding's weight on this rank. With ModelConfig::tie_word_embeddings they are also the head's
// projection.
ParameterSpec vocabulary_table(const SegmentSetup& setup);

std::unique_ptr<Segment> make_embedding(const SegmentSetup& setup);

}  // namespace weft
