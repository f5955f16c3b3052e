// The decoders of tokenizer.json: ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip, and sequences of them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "trainer/tokenizer/json_fields.h"
#include "trainer/tokenizer/normalizer.h"
#include "trainer/tokenizer/pre_tokenizer.h"

namespace weft {

struct DecodeByteLevel {};
struct DecodeByteFallback {};
struct FuseTokens {};
struct StripTokens {
  std::string content;  // one character
  std::int64_t start = 0, stop = 0;
};
using DecoderStep =
    std::variant<DecodeByteLevel, DecodeByteFallback, FuseTokens, MetaspaceStep, ReplaceText, StripTokens>;

// Immutable. Several threads may call it.
class TokenDecoder {
 public:
  // Null means none: tokens are joined by spaces, as in `tokenizers`. Throws Error (request), naming the type, for any
  // other decoder.
  TokenDecoder(const TokenizerJson* json, const std::string& place);

  // The bytes of a text of tokens. They need not be UTF-8, where `tokenizers` would put U+FFFD. Throws Error (request)
  // as check_grown_text.
  std::string decode(std::vector<std::string> tokens) const;
  const TokenizerJson& meaning() const { return meaning_; }

 private:
  std::vector<DecoderStep> steps_;
  std::string separator_;
  TokenizerJson meaning_;
};

}  // namespace weft
