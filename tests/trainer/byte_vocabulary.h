// Data of bytes for models of `size` tokens.
#pragma once

#include "trainer/data/data.h"
#include "trainer/data/text_vocabulary.h"

namespace weft {

inline TextVocabulary byte_vocabulary(std::int64_t size) {
  return {open_tokenizer("byte"), "byte", size};
}

// Files as one pool, in Weft's own order.
inline DataRequest files_of(std::vector<DataSource> files, std::int64_t sequence_length, std::uint64_t seed) {
  return {.sources = std::move(files), .sequence_length = sequence_length, .seed = seed};
}

}  // namespace weft
