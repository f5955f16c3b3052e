// Writes datasets of Megatron, "prefix.bin" and "prefix.idx", byte for byte as Megatron's IndexedDatasetBuilder does
// (megatron/core/datasets/indexed_dataset.py).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/partial_file.h"
#include "trainer/data/stored_numbers.h"

namespace weft {

// uint16 for fewer than 65500 tokens, otherwise int32: DType.optimal_dtype of Megatron, which leaves some ids unused.
TokenType indexed_type(std::int64_t vocab_size);

// The contents of a dataset. Each document is one sequence.
struct IndexedCounts {
  std::int64_t tokens = 0, documents = 0;
  bool operator==(const IndexedCounts&) const = default;
};

// Used by one thread. Holds a few MiB of buffers, however many tokens and documents are written. The lengths of
// documents wait in a file of their own, "prefix.lengths.partial".
//
// Until finish() all bytes are in files that end in ".partial", which the destructor removes unless flush() was called.
//
// A disk that fails or is full throws Error (failure); all else that is refused throws Error (request).
class IndexedWriter {
 public:
  // Throws if "prefix.bin" or "prefix.idx" exists: a finished dataset is not overwritten. One whose writer was killed
  // between the two, with "prefix.idx.partial" in place of its index, is not finished. Requires 1 <= vocab_size <=
  // 2^31. Goes on behind `flushed`, what flush() returned to an earlier writer of the same prefix and vocabulary;
  // throws Error (failure) if its files have less.
  IndexedWriter(std::string prefix, std::int64_t vocab_size, const IndexedCounts& flushed = {});

  // So far.
  const IndexedCounts& counts() const { return counts_; }

  // A document, which may be empty. Throws for an id outside the vocabulary and for 2^31 tokens or
  // more.
  void add_document(std::span<const std::int32_t> ids);

  // Returns when everything so far is on disk, from where another writer can go on: the files stay when this one ends.
  IndexedCounts flush();

  // Writes the index and flushes both files to the disk. Only put_in_place() may follow.
  void complete();
  // Puts both files in place, "prefix.idx" last: if "prefix.idx" exists, the dataset is whole.
  void put_in_place();
  void finish() {
    complete();
    put_in_place();
  }

 private:
  void write_index(PartialFile& index);

  std::string prefix_;
  std::int64_t vocab_size_;
  TokenType type_;
  PartialFile data_, lengths_;
  std::optional<PartialFile> index_ = {};  // once complete
  std::vector<std::uint8_t> encoded_;
  IndexedCounts counts_;
};

}  // namespace weft
