// The attention part of a block where text is generated: the new tokens of each sequence against the keys and values of
// all that came before (generation_state.h). The same parameters as attention.h, and no backward.
#pragma once

#include "layers/generation_state.h"
#include "layers/segment.h"

namespace weft {

std::unique_ptr<Segment> make_cached_attention(const SegmentSetup& setup, const GenerationShape& shape, int block);

// Of a block's cache for so many sequences on this rank: GenerationState::caches.
struct CacheSize {
  DType dtype = DType::float32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t bytes() const { return rows * columns * size_of(dtype); }
};
CacheSize cache_size(const SegmentSetup& setup, std::int64_t sequences, std::int64_t capacity);

}  // namespace weft
