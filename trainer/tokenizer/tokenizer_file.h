// The kinds of tokenizer files, given as texts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/tokenizer/tokenizer.h"

namespace weft {

// A tokenizer.json with the model BPE. `file` stands in messages. `end_of_text`: the spelling of that token, if known.
// Throws as open_tokenizer.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(const std::string& text, const std::string& file,
                                                      std::optional<std::string> end_of_text = std::nullopt);

// The text of a tokenizer.json with a byte-level BPE (bpe_training.cpp). `tokens`: by id, those of bytes spelled in the
// byte alphabet; an empty one is none. `special`: the ids of those that are found in a text itself. `merges`: the ids
// of two neighbours, the first merges first. `ignore_merges`: a word that is a token itself stays whole.
std::string byte_level_file(const std::string& pattern, std::span<const std::string> tokens,
                            std::span<const std::int32_t> special,
                            std::span<const std::pair<std::int32_t, std::int32_t>> merges, bool ignore_merges);

// What a rank file of tiktoken does not hold.
struct SpecialId {
  std::string text;
  std::int32_t id;
};
struct TiktokenRules {
  std::string expression;  // that cuts texts into words
  std::vector<SpecialId> special;
};
// The rules of one of known_tiktoken_patterns(), with its special tokens if the file has as many ranks as the published
// one. Or those of a JSON text (open_tokenizer). Throw Error (request).
TiktokenRules rules_of_pattern(std::string_view text, const std::string& file, const std::string& pattern);
TiktokenRules rules_of_sidecar(const std::string& file, const std::string& sidecar);
bool is_tiktoken_pattern(std::string_view name);
// "gpt2, cl100k_base, ..."
std::string known_tiktoken_patterns();

// A rank file: lines of a token in base64, a space, and its rank.
std::shared_ptr<const Tokenizer> parse_tiktoken(std::string_view text, const std::string& file,
                                                const TiktokenRules& rules);
// The same tokenizer as a tokenizer.json, with the merges that transformers makes of ranks: each pair of tokens that
// give a token, by its rank. Throws Error (request) as parse_tiktoken, and for a special token that is spelled as
// another, or an id that two tokens have.
std::string tiktoken_as_json(std::string_view text, const std::string& file, const TiktokenRules& rules);

// A tokenizer.model of SentencePiece. Encodes with the normalizer of the model; a space that the model puts in front of
// a text stays in decode(). Throws as open_tokenizer, and where Weft is built without the library.
std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string& model, const std::string& file);

}  // namespace weft
