// Rank files of tiktoken: their tokens, and the rules that they do not hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/bpe_model.h"

namespace weft {

struct SpecialId {
  std::string text;
  std::int32_t id;
};

struct TiktokenRules {
  std::string expression;  // that cuts texts into words
  std::vector<SpecialId> special;
};

// Tokens as bytes, with their ranks. Throws Error (request), `"file": why`.
TokenIds read_ranks(std::string_view text, const std::string& file);
// The rules of one of known_tiktoken_patterns() (parse_tiktoken), or those of a JSON text (parse_tiktoken_with). Throw
// Error (request).
TiktokenRules rules_of_pattern(std::string_view text, const std::string& file, const std::string& pattern);
TiktokenRules rules_of_sidecar(const std::string& file, const std::string& sidecar);

// The same tokenizer as a tokenizer.json, with the merges that transformers makes of ranks: each pair of tokens that
// give a token, by its rank. Throws Error (request) as read_ranks, and for a special token that is spelled as another,
// or an id that two tokens have.
std::string tiktoken_as_json(std::string_view text, const std::string& file, const TiktokenRules& rules);

}  // namespace weft
