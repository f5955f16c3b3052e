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
ReplaceText read_replacement(JsonFields& fields);
// Throws Error (request) as check_grown_text for a result of more than `most` bytes.
std::string replaced_text(std::string_view text, const ReplaceText& replacement, std::size_t most,
                          PatternScratch& scratch);

// Steps that lengthen a text multiply, so that a small file could make terabytes of a word. No tokenizer that exists
// comes near this many bytes from a text of `bytes`.
inline std::size_t most_grown_bytes(std::size_t bytes) {
  constexpr std::size_t any_text = 4096, each_byte = 64;
  return any_text + each_byte * bytes;
}
// Throws Error (request) for a text that steps have lengthened to `bytes`, if these are more than `most`.
void check_grown_text(std::size_t bytes, std::size_t most);
// The pattern of a field of the form {"String": ...} or {"Regex": ...}.
Pattern read_pattern(JsonFields& fields);

// Immutable. Several threads may call it, each with its own scratch.
class TextNormalizer {
 public:
  // Null means none. Throws Error (request), naming the type, for any other kind of normalizer.
  TextNormalizer(const TokenizerJson* json, const std::string& place);

  bool empty() const { return steps_.empty(); }
  // Nothing if the text stays as it is. Requires well-formed text, and gives well-formed text. Throws Error (request)
  // as check_grown_text.
  std::optional<std::string> normalized(std::string_view text, PatternScratch& scratch) const;
  const TokenizerJson& meaning() const { return meaning_; }

 private:
  std::vector<NormalizerStep> steps_;
  TokenizerJson meaning_;
};

}  // namespace weft
