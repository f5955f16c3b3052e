// The normalizers of tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, Replace, Prepend, Strip, and sequences of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/pattern.h"
#include "trainer/tokenizer/unicode_text.h"

namespace weft {

struct LowerCaseText {};
struct PrependText {
  std::string text;
};
struct StripText {
  bool left = false, right = false;
};
struct ReplaceText {
  Pattern pattern;
  std::string content;
};
using NormalizerStep = std::variant<NormalForm, LowerCaseText, PrependText, StripText, ReplaceText>;

// Reads an object with "pattern" ({"String": ...} or {"Regex": ...}) and "content". Also a decoder has this form.
ReplaceText read_replacement(JsonFields& fields, TokenizerJson& meaning);
std::string replaced_text(std::string_view text, const ReplaceText& replacement, PatternScratch& scratch);
// The pattern of a field of the form {"String": ...} or {"Regex": ...}, and its meaning.
Pattern read_pattern(JsonFields& fields, TokenizerJson& meaning);

// Immutable. Several threads may call it, each with its own scratch.
class TextNormalizer {
 public:
  TextNormalizer() = default;
  // Null means none. Throws Error (request), naming the type, for any other kind of normalizer.
  TextNormalizer(const TokenizerJson* json, const std::string& place);

  bool empty() const { return steps_.empty(); }
  // Nothing if the text stays as it is. Requires well-formed text, and gives well-formed text.
  std::optional<std::string> normalized(std::string_view text, PatternScratch& scratch) const;
  const TokenizerJson& meaning() const { return meaning_; }

 private:
  void read(const TokenizerJson& json, const std::string& place);

  std::vector<NormalizerStep> steps_;
  TokenizerJson meaning_ = TokenizerJson::array();
};

}  // namespace weft
