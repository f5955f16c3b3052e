// Tokens that are found in the text itself, before normalizer and pre-tokenizer cut it: special tokens, and others that
// were added to a vocabulary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/normalizer.h"
#include "trainer/tokenizer/pattern.h"

namespace weft {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;             // not beside a character of a word
  bool lstrip = false, rstrip = false;  // takes the white space on its left or right
  bool normalized = false;              // is searched in the normalized text, in normalized form
};

// Reads "added_tokens" of tokenizer.json. Throws Error (request) for faulty entries.
std::vector<AddedToken> read_added_tokens(const TokenizerJson& json, const std::string& place);

// Searches for the longest of several texts.
class TextTrie {
 public:
  // Requires a text that is not empty. Returns false for a text that is present already.
  bool add(std::string_view text, std::int32_t value);
  // The value of the longest text that begins at byte `at`, and its bytes.
  std::optional<std::pair<std::int32_t, std::size_t>> longest_at(std::string_view text, std::size_t at) const;
  bool may_begin_with(char byte) const { return first_[static_cast<unsigned char>(byte)]; }

 private:
  struct Node {
    std::vector<std::pair<char, std::int32_t>> next;
    std::int32_t value = -1;
  };
  std::vector<Node> nodes_ = {Node{}};
  std::array<bool, 256> first_{};
};

// Immutable. Several threads may call it, each with its own scratch.
class AddedTokens {
 public:
  // A part of a text: a token, or plain text that begins at byte `begin` of its piece.
  struct Part {
    std::int32_t id = -1;  // -1: plain text
    std::string_view text;
    std::size_t begin = 0;
  };
  using PartSink = std::function<void(const Part&)>;

  // Throws Error (request) that begins with `place` if two tokens look alike in the text.
  AddedTokens(std::vector<AddedToken> tokens, const TextNormalizer& normalizer, const std::string& place);

  const std::vector<AddedToken>& all() const { return tokens_; }
  // The form in which tokens[i] stands in the (normalized) text.
  const std::string& searched_form(std::size_t i) const { return forms_[i]; }

  // Cuts `text` at the tokens with this `normalized`. With `special_is_plain` special tokens are plain text.
  void cut(std::string_view text, bool normalized, bool special_is_plain, PatternScratch& scratch,
           const PartSink& sink) const;

 private:
  bool beside_word(std::string_view text, std::size_t begin, std::size_t end, PatternScratch& scratch) const;

  std::vector<AddedToken> tokens_;
  std::vector<std::string> forms_;
  std::array<TextTrie, 2> tries_;  // by `normalized`; values are indices of tokens_
  std::array<bool, 2> any_{};
  std::optional<Pattern> word_;  // one character of a word
};

}  // namespace weft
