// The kind of tokens that a name stands for, and the file opened as such.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "parallel/runtime/enum_names.h"
#include "trainer/data/byte_source.h"
#include "trainer/data/token_index.h"
#include "trainer/data/token_type.h"

namespace weft {

enum class TokenFormat : std::uint8_t { text, megatron, llm_c, raw, datatrove };
constexpr auto enum_names(TokenFormat) {
  return name_list("text", "Megatron", "llm.c", "raw", "datatrove");
}

// Tokens as they lie in a file: `tokens` numbers of `type` from byte `begin` of `bytes` on.
struct TokenSource {
  TokenFormat format = TokenFormat::text;
  ByteSource bytes;
  std::int64_t begin = 0;
  TokenType type = TokenType::uint8;
  std::int64_t tokens = 0;
  std::shared_ptr<const TokenIndex> index;
  std::optional<ByteSource> losses = {};  // a byte a token; 0: nothing learns to predict it
};

// A name and the type behind its last "#": "shard.bin#uint16". A file whose own name has a "#" is found too, unless a
// type follows that.
struct TypedName {
  std::string path;
  std::optional<TokenType> type;
};
// Throws Error (request) if neither a type follows the "#" nor a file has the whole name.
TypedName parse_typed_name(const std::string& name);

// Opens what `name` stands for:
//
//   "path#uint16"      numbers without a header, one document; "path.ds#uint16" is "path.ds", whose type must agree
//   "prefix", "prefix.idx", "prefix.bin"   a dataset of Megatron, if the files prefix.idx and prefix.bin exist
//   a file with the header of llm.c        its tokens, one document
//   "path.ds"          tokens of datatrove, with "path.ds.index" beside them
//
// "prefix.loss" and "path.ds.loss" beside them are their losses, as datatrove writes these. A dataset without losses
// that its facts name (token_facts.h), or of other counts than theirs, is refused.
//
//   any other file     text, a byte a token, one document; refused as by open_text (text_file.h)
//
// Checks the sizes that the header and the index promise (megatron_index.h, datatrove_index.h). Reads no token except
// the first bytes, and takes a time that does not depend on the sizes. Throws Error (request), `"name": why`.
TokenSource open_tokens(const std::string& name);

// The header of llm.c's token files, 256 numbers of int32: magic, version, tokens (dev/data/data_common.py). Nothing if
// the first number is no magic of llm.c. Throws Error (request) for versions other than those of the magic, and for
// files of evaluations. So it does for a number of tokens that does not agree with the size. Reads no index: the result
// has one document.
std::optional<TokenSource> parse_llm_c(const ByteSource& bytes);

}  // namespace weft
