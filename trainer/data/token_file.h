// Files of tokens: what a name stands for, and a file opened as such, with random access whatever its format.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/runtime/enum_names.h"
#include "trainer/data/byte_source.h"
#include "trainer/data/token_index.h"

namespace weft {

enum class TokenFormat : std::uint8_t { text, megatron, llm_c, raw, datatrove };
constexpr auto enum_names(TokenFormat) {
  return name_list("text", "Megatron", "llm.c", "raw", "datatrove");
}

// Tokens as they lie in a file: index->tokens() numbers of `type` from byte `begin` of `bytes` on.
struct TokenSource {
  TokenFormat format = TokenFormat::text;
  ByteSource bytes;
  std::int64_t begin = 0;
  TokenType type = TokenType::uint8;
  std::shared_ptr<const TokenIndex> index;
  std::optional<ByteSource> losses = {};  // a byte a token; 0: nothing learns to predict it
};

// The header of llm.c's token files, 256 numbers of int32: magic, version, tokens (dev/data/data_common.py). Nothing if
// the first number is no magic of llm.c. Throws Error (request) for versions other than those of the magic, and for
// files of evaluations. So it does for a number of tokens that does not agree with the size. Reads no index: the result
// has one document.
std::optional<TokenSource> parse_llm_c(const ByteSource& bytes);

// Movable. Several threads may use it at the same time. Bytes are copied out of the file (InputFile), never mapped. If
// the file changes meanwhile, functions return what they find or throw; they do not crash.
//
// Errors are Error (request), `"name": why`. Opening checks what takes a time independent of the size; each answer is
// checked against its range; check() checks the rest (megatron_index.h, token_index.h).
class TokenFile {
 public:
  // Opens what `name` stands for, with token ids below `vocab_size`, without it below 2^31:
  //
  //   "path#uint16"      numbers without a header, one document; "path.ds#uint16" is "path.ds", whose type must agree
  //   "prefix", "prefix.idx", "prefix.bin"   a dataset of Megatron, if the files prefix.idx and prefix.bin exist
  //   a file with the header of llm.c        its tokens, one document
  //   "path.ds"          tokens of datatrove, with "path.ds.index" beside them
  //   any other file     text, a byte a token, one document; refused as by open_text (text_file.h)
  //
  // "prefix.loss" and "path.ds.loss" beside them are their losses, as datatrove writes these. A dataset without losses
  // that its facts name (token_facts.h), or of other counts than theirs, is refused.
  // Checks the sizes that the header and the index promise (megatron_index.h, token_index.h). Reads no token except
  // the first bytes, and takes a time that does not depend on the sizes. Throws Error (request), `"name": why`.
  explicit TokenFile(std::string name, std::optional<std::int64_t> vocab_size = std::nullopt);

  // As given to the constructor.
  const std::string& name() const { return name_; }
  TokenFormat format() const { return source_.format; }
  // The storage of a token in the file.
  TokenType type() const { return source_.type; }

  // At least 1.
  std::int64_t tokens() const { return source_.index->tokens(); }
  // 1 if the format has no boundaries. A document may be empty.
  std::int64_t documents() const { return source_.index->documents(); }
  // The position of the first token of a document, 0 .. documents(); the last is tokens().
  std::int64_t document_begin(std::int64_t document) const { return source_.index->document_begin(document); }
  // The document that holds a token, 0 .. tokens() - 1.
  std::int64_t document_of(std::int64_t token) const { return source_.index->document_of(token); }

  // Megatron's sequences; in other formats the documents.
  std::int64_t sequences() const { return source_.index->sequences(); }
  std::int64_t sequence_begin(std::int64_t sequence) const { return source_.index->sequence_begin(sequence); }

  // Reads `to` from token `first` on. Requires that these lie inside the file. Throws for the first id that is negative
  // or outside the vocabulary, with its position.
  void read(std::int64_t first, std::span<std::int32_t> to) const;

  // Whether the file says of each token if its loss counts.
  bool has_losses() const { return source_.losses.has_value(); }
  // Of the tokens from `first` on; 0 where the loss does not count. Requires has_losses(), and that these lie inside.
  void read_losses(std::int64_t first, std::span<std::uint8_t> to) const { source_.losses->read(first, to); }

  // The contents, independent of the name. Of text "1115394 bytes, xxh64 41a2...", of other formats "Megatron, 500
  // uint16 tokens, 1000 bytes, xxh64 41a2..., index 6034 bytes, xxh64 ...". The checksums cover samples
  // (sampled_content).
  std::string content() const;

  // Outlives the file.
  std::shared_ptr<const TokenIndex> index() const { return source_.index; }
  // Reads the tokens of 64 MiB of the file, all of a smaller one, and throws for the first id outside the vocabulary. A
  // larger file is read in 64 pieces that lie evenly from its first token to its last.
  void check_sample() const;
  // Reads the whole index and all tokens, and throws for the first fault. Returns the largest id.
  std::int32_t check() const;

 private:
  std::string name_;
  std::int64_t id_end_;  // ids lie below
  bool has_vocabulary_;
  TokenSource source_;
};

}  // namespace weft
