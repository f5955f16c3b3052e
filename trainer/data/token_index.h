// The places of documents and sequences in a file of tokens. A sequence is the piece that Megatron's orders shuffle; a
// document is one or more sequences. Formats without sequences have one for each document.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trainer/data/byte_source.h"
#include "trainer/data/stored_numbers.h"

namespace weft {

// Positions count tokens of the file from 0. Safe to use from several threads at once. An index may be damaged or
// change while it is read. Every answer lies in its range; otherwise functions throw Error (request) naming the file,
// the place and the number found there.
class TokenIndex {
 public:
  // `name` is that of the file with the boundaries, for messages.
  explicit TokenIndex(std::string name) : name_(std::move(name)) {}
  virtual ~TokenIndex() = default;

  const std::string& name() const { return name_; }

  // Counts. Documents and sequences may be empty.
  virtual std::int64_t tokens() const = 0;
  virtual std::int64_t documents() const = 0;
  virtual std::int64_t sequences() const { return documents(); }
  // The position of the first token, 0 .. tokens(). One more than the last document or sequence has tokens().
  virtual std::int64_t document_begin(std::int64_t document) const = 0;
  virtual std::int64_t sequence_begin(std::int64_t sequence) const { return document_begin(sequence); }
  // The position of the first token of a sequence, and of the one behind its last.
  virtual std::array<std::int64_t, 2> sequence_ends(std::int64_t sequence) const {
    return {sequence_begin(sequence), sequence_begin(sequence + 1)};
  }
  // The document that holds token `token`, 0 .. tokens() - 1: a binary search.
  std::int64_t document_of(std::int64_t token) const;
  // The number of tokens of every sequence: one pass over the file, which also checks that they add up to tokens().
  // Throws Error (request) for a sequence of 2^31 tokens or more, which Megatron's orders do not know.
  virtual std::vector<std::int32_t> sequence_lengths() const = 0;
  // The same of every document, of any number of tokens.
  virtual std::vector<std::int64_t> document_lengths() const;
  // Checks all that the format promises: a pass over the whole index.
  virtual void check() const {}
  // The index in a description of the contents: ", index 34 bytes, xxh64 ...", or nothing where no file has it.
  std::string content() const;
  // Equal for indices of equal boundaries alone. That of a large file changes with any change of it (dated_content).
  std::string identity() const;

 protected:
  // The file of the index; null if there is none.
  virtual const ByteSource* source() const { return nullptr; }

 private:
  std::string name_;
};

// A file without boundaries: one document of one sequence.
class OneDocument final : public TokenIndex {
 public:
  OneDocument(std::string name, std::int64_t tokens);

  std::int64_t tokens() const override { return tokens_; }
  std::int64_t documents() const override { return 1; }
  std::int64_t document_begin(std::int64_t document) const override;
  std::vector<std::int32_t> sequence_lengths() const override;

 private:
  std::int64_t tokens_;
};

// The index of datatrove's tokens (nanotron's "Nanoset"): "name.ds.index" beside "name.ds" holds a little-endian u64
// for each document, the position behind its last token. The tokens are uint16 or uint32. The last position and the
// size of "name.ds" tell which, so no other file is needed (datatrove, pipeline/tokens/tokenizer.py).
//
// Opening checks the size of the index and that the last document ends where the tokens end, whatever the size. Each
// answer lies in its range. check() checks that positions ascend. A document is one sequence.
class DatatroveIndex final : public TokenIndex {
 public:
  // `data_name` and `data_bytes` are of "name.ds". Throws Error (request), `"name": why`.
  DatatroveIndex(ByteSource index, const std::string& data_name, std::int64_t data_bytes);

  TokenType type() const { return type_; }
  std::int64_t tokens() const override { return tokens_; }
  std::int64_t documents() const override { return ends_.count(); }
  std::int64_t document_begin(std::int64_t document) const override;
  std::vector<std::int32_t> sequence_lengths() const override;
  void check() const override;

 private:
  const ByteSource* source() const override { return &source_; }

  ByteSource source_;
  StoredNumbers ends_;
  std::int64_t tokens_;
  TokenType type_ = TokenType::uint16;
};

}  // namespace weft
