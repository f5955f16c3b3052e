// A document as token ids, with what its loss counts.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/data/document_parser.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {

struct EncodedDocument {
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counts;  // for each: 1 if its loss counts
};

// Parts that are joined have the ids of the whole text; there a token of two parts counts if one of them is learned.
// Throws as Tokenizer::append.
EncodedDocument encoded(const Tokenizer& tokenizer, const Document& document, SpecialTokens special);

}  // namespace weft
