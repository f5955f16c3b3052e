// The kinds of tokenizer files, given as texts.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "trainer/tokenizer/tokenizer.h"

namespace weft {

// A tokenizer.json with the model BPE. `file` stands in messages. `end_of_text`: the spelling of that token, if known.
// Throws as open_tokenizer.
std::shared_ptr<const Tokenizer> parse_tokenizer_json(const std::string& text, const std::string& file,
                                                      std::optional<std::string> end_of_text = std::nullopt);

// A rank file of tiktoken: lines of a token in base64, a space, and its rank. `pattern` is one of
// known_tiktoken_patterns(). Special tokens are added if the file has as many ranks as the published one.
std::shared_ptr<const Tokenizer> parse_tiktoken(std::string_view text, const std::string& file,
                                                const std::string& pattern);
// The same with pattern and special tokens from a JSON text (open_tokenizer).
std::shared_ptr<const Tokenizer> parse_tiktoken_with(std::string_view text, const std::string& file,
                                                     const std::string& sidecar);
// A tokenizer.model of SentencePiece. Encodes with the normalizer of the model; a space that the model puts in front of a
// text stays in decode(). Throws as open_tokenizer, and where Weft is built without the library.
std::shared_ptr<const Tokenizer> parse_sentencepiece(const std::string& model, const std::string& file);
bool is_tiktoken_pattern(std::string_view name);
// "gpt2, cl100k_base, ..."
std::string known_tiktoken_patterns();

}  // namespace weft
