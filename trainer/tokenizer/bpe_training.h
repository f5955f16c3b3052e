// Learns a byte-level byte-pair encoding from texts. The result is that of BpeTrainer of the library `tokenizers` with
// the same pattern, size and special tokens, and the alphabet of ByteLevel. There is no minimal frequency.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "trainer/tokenizer/bpe_model.h"
#include "trainer/tokenizer/pattern.h"

namespace weft {

// Counts the words of texts. One thread at a time. Takes memory for each distinct word, not for the texts.
class BpeTraining {
 public:
  // `pattern`: a regular expression in the syntax of tokenizer.json (pattern.h). Throws Error (request) for one
  // that is not supported.
  explicit BpeTraining(std::string pattern);

  // The requests that train() refuses before it looks at texts. Throws Error (request).
  static void check(std::int64_t vocab_size, std::span<const std::string> special_tokens);

  // Texts are separate: no word reaches from one into the next. Malformed UTF-8 counts as U+FFFD.
  void add(std::string_view text);

  // A tokenizer.json. Ids are those of the special tokens in their order, then 256 bytes, then merged tokens until
  // there are `vocab_size`. There are fewer if the texts have no further pairs. Equal texts give equal files, in any
  // order. Of pairs that are equally frequent the one with the lower ids is merged first. A special token with a usual
  // name (usual_ends) ends a text. Throws Error (request) for a vocabulary without room for special tokens, bytes and
  // one merge. So it does for special tokens that are empty, equal, or a byte, and for texts without a pair.
  std::string train(std::int64_t vocab_size, std::span<const std::string> special_tokens) const;

 private:
  std::string pattern_;
  Pattern compiled_;
  PatternScratch scratch_;
  std::unordered_map<std::string, std::int64_t, TokenTextHash, std::equal_to<>> counts_;  // by word
};

}  // namespace weft
