// An opened file of tokens with random access, whatever its format (token_source.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/data/token_source.h"

namespace weft {

// Movable. Several threads may use it at the same time. Bytes are copied out of the file (InputFile), never mapped. If
// the file changes meanwhile, functions return what they find or throw; they do not crash.
//
// Errors are Error (request), `"name": why`. Opening checks what takes a time independent of the size; each answer is
// checked against its range; check() checks the rest (megatron_index.h, datatrove_index.h).
class TokenFile {
 public:
  // `name` as open_tokens takes it. Token ids lie below `vocab_size`, without it below 2^31. Reads no token.
  explicit TokenFile(std::string name, std::optional<std::int64_t> vocab_size = std::nullopt);

  // As given to the constructor.
  const std::string& name() const { return name_; }
  TokenFormat format() const { return source_.format; }
  // The storage of a token in the file.
  TokenType type() const { return source_.type; }

  // At least 1.
  std::int64_t tokens() const { return source_.tokens; }
  // 1 if the format has no boundaries. A document may be empty.
  std::int64_t documents() const { return source_.index->documents(); }
  // The position of the first token of a document, 0 .. documents(); the last is tokens().
  std::int64_t document_begin(std::int64_t document) const { return source_.index->document_begin(document); }
  // The document that holds a token, 0 .. tokens() - 1.
  std::int64_t document_of(std::int64_t token) const { return source_.index->document_of(token); }

  // Megatron's sequences; in other formats the documents.
  std::int64_t sequences() const { return source_.index->sequences(); }
  std::int64_t sequence_begin(std::int64_t sequence) const { return source_.index->sequence_begin(sequence); }
  // Tokens of every sequence: one pass over the index. Throws for sequences of 2^31 tokens or more.
  std::vector<std::int32_t> sequence_lengths() const { return source_.index->sequence_lengths(); }

  // Tokens of every document, as sequence_lengths().
  std::vector<std::int64_t> document_lengths() const { return source_.index->document_lengths(); }

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
  // Reads the whole index, and throws for the first fault.
  void check_index() const { source_.index->check(); }
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
