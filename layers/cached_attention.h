// The attention part of a block during text generation: new tokens of each sequence attend to the cached keys and
// values of all earlier tokens (generation_state.h). Its parameters are those of make_attention (segments.h); it has no
// backward.
#pragma once

#include "layers/generation_state.h"
#include "layers/segment.h"

namespace weft {

std::unique_ptr<Segment> make_cached_attention(const SegmentSetup& setup, const GenerationShape& shape, int block);

// Size of one block's entry of GenerationState::caches on this rank.
struct CacheSize {
  DType dtype = DType::float32;
  std::int64_t rows = 0, columns = 0;
  std::int64_t bytes() const { return rows * columns * size_of(dtype); }
};
CacheSize cache_size(const SegmentSetup& setup, std::int64_t sequences, std::int64_t capacity);

}  // namespace weft
