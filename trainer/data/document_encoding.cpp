#include "trainer/data/document_encoding.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace weft {
namespace {

// The ids of the whole text. A token of two parts counts if one of them is learned.
EncodedDocument encoded_as_one(const Tokenizer& tokenizer, const Document& document, SpecialTokens special) {
  std::string text;
  for (const TextPart& part : document.parts) text += part.text;
  EncodedDocument result{tokenizer.encode(text, special), {}};
  result.counts.resize(result.ids.size());
  const std::span<const std::int32_t> all = result.ids;
  std::size_t first = 0, end = 0;    // of the part: its first token, its last byte
  std::size_t bytes = 0, known = 0;  // of a beginning of the text that ends with a token: its bytes and tokens
  for (const TextPart& part : document.parts) {
    end += part.text.size();
    // A beginning of the text has the tokens of the text, but for some at its end. What follows the known beginning is
    // encoded by itself, which takes less time, and holds where all its tokens are those of the text.
    std::vector<std::int32_t> own;
    std::size_t same = 0;
    for (bool alone = true; alone || (same < own.size() && bytes > 0); alone = false) {
      if (!alone) bytes = known = 0;
      own = tokenizer.encode(std::string_view(text).substr(bytes, end - bytes), special);
      same = static_cast<std::size_t>(std::ranges::mismatch(own, all.subspan(known)).in1 - own.begin());
    }
    // The others write the bytes up to the end of the part as tokens of the text do, the last of which may go on.
    const std::size_t left = tokenizer.decode(std::span(own).subspan(same)).size();
    std::size_t last = known + same, reached = 0;
    for (const auto others = all.subspan(last); reached < left && last < all.size(); ++last) {
      reached = tokenizer.decode(others.first(last + 1 - (known + same))).size();
    }
    if (part.learned)
      std::fill(result.counts.begin() + std::ptrdiff_t(first), result.counts.begin() + std::ptrdiff_t(last), 1);
    first = reached > left ? last - 1 : last;
    if (reached == left) {
      bytes = end;
      known = last;
    }
  }
  return result;
}

}  // namespace

EncodedDocument encoded(const Tokenizer& tokenizer, const Document& document, SpecialTokens special) {
  if (document.joined) return encoded_as_one(tokenizer, document, special);
  EncodedDocument result;
  for (const TextPart& part : document.parts) {
    tokenizer.append(part.text, special, result.ids);
    result.counts.resize(result.ids.size(), part.learned ? 1 : 0);
  }
  return result;
}

}  // namespace weft
