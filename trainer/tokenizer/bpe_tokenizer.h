// A tokenizer made of the parts of tokenizer.json: added tokens, normalizer, pre-tokenizer, model BPE, decoder.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/tokenizer/added_tokens.h"
#include "trainer/tokenizer/bpe_model.h"
#include "trainer/tokenizer/decoder.h"
#include "trainer/tokenizer/normalizer.h"
#include "trainer/tokenizer/pre_tokenizer.h"
#include "trainer/tokenizer/tokenizer.h"

namespace weft {

// No vocabulary comes near it. A table of tokens by id has this size at most.
inline constexpr std::int32_t most_token_ids = 1 << 24;

struct TokenizerParts {
  std::string kind;  // the beginning of the description
  std::string file;
  TextNormalizer normalizer;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  TokenDecoder decoder;
  TextFrame frame;
  std::string content_hash;
  std::optional<std::string> end_of_text;  // the spelling of a token, if a file names it
  // Whether tokens that were added are decoded to their own bytes; otherwise the decoder takes them as any other.
  bool added_are_plain = false;
};

// Names of the token that ends a text, where a file does not tell it; the first that is there counts. They are those of
// GPT-2 and Qwen, Llama 3, Llama 2, Gemma, DeepSeek, and others that follow them.
inline constexpr std::array<std::string_view, 7> usual_ends = {
    "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "<|end_of_document|>", "[EOS]"};

class BpeTokenizer final : public Tokenizer {
 public:
  // Throws Error (request), `"file": why`, for ids that two tokens share or that are too large.
  explicit BpeTokenizer(TokenizerParts parts);

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(place_of_id_.size()); }
  void append(std::string_view text, SpecialTokens special, std::vector<std::int32_t>& ids) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string description() const override;
  std::string content_hash() const override { return parts_.content_hash; }
  std::optional<std::int32_t> end_of_text() const override { return end_of_text_; }
  std::optional<std::int32_t> token_id(std::string_view token) const override;
  TextFrame frame() const override { return parts_.frame; }

 private:
  struct Workspace {
    PatternScratch pattern;
    WordScratch word;
  };
  // A workspace for one call, given back at its end.
  using Loan = std::unique_ptr<Workspace, std::function<void(Workspace*)>>;
  Loan borrowed() const;
  bool has_token(std::int32_t id) const {
    return id >= 0 && id < vocab_size() && place_of_id_[static_cast<std::size_t>(id)] >= 0;
  }
  void set_token(std::int32_t id, const std::string& spelling, const std::string& decoded);
  std::optional<std::int32_t> find_end_of_text() const;

  TokenizerParts parts_;
  TokenIds added_ids_;
  std::vector<std::string> tokens_;        // as the decoder takes them
  std::vector<std::int32_t> place_of_id_;  // in tokens_; -1: no token. A file with one large id takes 4 bytes an id.
  std::optional<std::int32_t> end_of_text_;
  // Memory of calls that have ended, for the next ones.
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Workspace>> idle_;
};

}  // namespace weft
