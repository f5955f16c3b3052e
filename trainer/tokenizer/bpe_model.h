// The model BPE of tokenizer.json: a vocabulary and merges, applied to one word at a time.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trainer/tokenizer/merge_table.h"
#include "trainer/tokenizer/word_cache.h"

namespace weft {

struct TokenTextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, TokenTextHash, std::equal_to<>>;
// Appends ids and tokens in the order of ids to the text of which Tokenizer::content_hash is made.
void append_vocabulary(const TokenIds& vocabulary, std::string& meaning);

struct BpeRules {
  bool words_are_bytes = false;  // a byte is looked up as its character of the byte alphabet
  bool ignore_merges = false;    // a word that is a token itself stays whole
  bool byte_fallback = false;    // a character without token becomes the tokens <0x00> .. <0xFF> of its bytes
  bool fuse_unk = false;         // unknown neighbours become one unk_token
  std::optional<std::string> unk_token;
};

// Memory for encoding words. One thread at a time, one model.
struct WordScratch {
  WordCache cache;
  MergeScratch merge;
  std::vector<std::int32_t> ids;
};

// Immutable. Several threads may call it, each with its own scratch.
class BpeModel {
 public:
  BpeModel(TokenIds vocabulary, MergeTable merges, BpeRules rules);

  // Appends the ids of a word, which is not empty. Throws Error (request) for a character without token.
  void encode(std::string_view word, WordScratch& scratch, std::vector<std::int32_t>& ids) const;

  const TokenIds& vocabulary() const { return vocabulary_; }
  std::size_t merges() const { return merges_.size(); }

 private:
  void begin_word(std::string_view word, std::vector<std::int32_t>& ids) const;
  std::optional<std::int32_t> find(std::string_view token) const;

  TokenIds vocabulary_;
  MergeTable merges_;
  BpeRules rules_;
  std::optional<std::int32_t> unk_;
  std::array<std::int32_t, 256> byte_ids_{};      // of the byte alphabet; -1 without token
  std::array<std::int32_t, 256> fallback_ids_{};  // of <0x00> .. <0xFF>; -1 without token
};

}  // namespace weft
