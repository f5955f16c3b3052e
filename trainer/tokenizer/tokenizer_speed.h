// The speed of a tokenizer on one thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "trainer/tokenizer/tokenizer.h"

namespace weft {

struct TokenizerSpeed {
  std::int64_t bytes = 0, tokens = 0;             // of one pass
  double encode_seconds = 0, decode_seconds = 0;  // of the fastest pass

  double encoded_megabytes_per_second() const { return static_cast<double>(bytes) / encode_seconds / 1e6; }
  double decoded_megabytes_per_second() const { return static_cast<double>(bytes) / decode_seconds / 1e6; }
  double bytes_per_token() const { return static_cast<double>(bytes) / static_cast<double>(tokens); }
};

// Encodes and decodes `text`, which is not empty, in documents of `document_bytes`, `passes` times. The first pass
// fills the cache of words.
TokenizerSpeed measure_tokenizer(const Tokenizer& tokenizer, std::string_view text, std::int64_t document_bytes,
                                 int passes);

}  // namespace weft
