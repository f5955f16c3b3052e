// The known facts of the ids in a dataset: the tokenizer that made them. `weft data tokenize` writes it beside the
// dataset, as "prefix.json".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/data/text_vocabulary.h"

namespace weft {

struct TokenFacts {
  std::string tokenizer;       // as it was named
  std::string tokenizer_hash;  // Tokenizer::content_hash
  std::int64_t vocab_size = 0;
  std::int64_t documents = 0, tokens = 0;
  std::optional<std::int32_t> document_end;  // the id at the end of each document, if one was added
  bool losses = false;  // the loss of some tokens does not count: "prefix.loss" belongs to the dataset

  bool operator==(const TokenFacts&) const = default;
};

std::string format_token_facts(const TokenFacts& facts);
// Throws Error (request), `"file": why`.
TokenFacts parse_token_facts(const std::string& text, const std::string& file);
// Those beside the dataset "prefix", "prefix.bin" or "prefix.idx"; none if there is no such file.
std::optional<TokenFacts> find_token_facts(const std::string& name);

}  // namespace weft
