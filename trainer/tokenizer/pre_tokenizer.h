// The pre-tokenizers of tokenizer.json, which cut a text into the words that BPE merges inside. They are ByteLevel,
// Split, Digits, Whitespace, WhitespaceSplit, Punctuation, Metaspace, and sequences of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/pattern.h"

namespace weft {

// The fate of the ranges that a pattern matches. They are pieces of their own, nothing, a part of the piece before or
// behind, or one piece with their neighbours that match too.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
constexpr auto enum_names(SplitBehavior) {
  return name_list("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous");
}

struct SplitStep {
  Pattern pattern;
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;
};
struct ByteLevelStep {
  bool add_prefix_space = true;
  std::optional<Pattern> pattern;  // GPT-2's, if use_regex
};
enum class PrependScheme { first, never, always };
constexpr auto enum_names(PrependScheme) {
  return name_list("first", "never", "always");
}
// A step of decoders too.
struct MetaspaceStep {
  std::string replacement;  // one character
  PrependScheme scheme = PrependScheme::always;
  std::optional<Pattern> split;  // before each replacement
};
using PreTokenizerStep = std::variant<SplitStep, ByteLevelStep, MetaspaceStep>;

// Immutable. Several threads may call it, each with its own scratch.
class PreTokenizer {
 public:
  using WordSink = std::function<void(std::string_view)>;

  PreTokenizer() = default;
  // Null means none: the whole text is one word. Throws Error (request), naming the type, for any other pre-tokenizer.
  PreTokenizer(const TokenizerJson* json, const std::string& place);
  // Words are the matches of `pattern` and the text between them, as bytes.
  static PreTokenizer bytes_split_by(Pattern pattern);

  // Whether words are bytes, of which BPE sees the characters of the byte alphabet: the last step is ByteLevel.
  bool words_are_bytes() const { return words_are_bytes_; }
  // Whether a step asks if a piece is at the beginning of the text.
  bool asks_for_beginning() const;
  // Hands on the words of a piece of text in their order, none of them empty. `begins_text`: the piece begins at byte
  // 0. A word is valid during the call only. Requires well-formed text. Throws Error (request) as check_grown_text.
  void each_word(std::string_view piece, bool begins_text, PatternScratch& scratch, const WordSink& sink) const;
  const TokenizerJson& meaning() const { return meaning_; }

 private:
  void check_order(const std::string& place) const;

  std::vector<PreTokenizerStep> steps_;
  bool words_are_bytes_ = false;
  TokenizerJson meaning_ = TokenizerJson::array();
};

MetaspaceStep read_metaspace(JsonFields& fields);

}  // namespace weft
