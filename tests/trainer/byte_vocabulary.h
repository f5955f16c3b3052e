// Data of bytes for models of `size` tokens.
#pragma once

#include "trainer/data/text_vocabulary.h"

namespace weft {

inline TextVocabulary byte_vocabulary(std::int64_t size) {
  return {open_tokenizer("byte"), "byte", size};
}

}  // namespace weft
