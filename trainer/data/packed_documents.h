// Sequences of whole documents: none is cut that fits into one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/order_cache.h"
#include "trainer/data/sample_order.h"
#include "trainer/data/token_file.h"

namespace weft {

// Documents of files, dealt to sequences of at most sequence_length + 1 tokens, the last of which is a target alone. A
// document goes into the fullest of the 256 open sequences in which it fits; where none has room the fullest is closed.
// A longer document is cut into pieces that share a token, so that each of its targets counts once. The last piece is
// dealt like a short document. Documents of one token predict nothing and are left out.
//
// Immutable; safe to use from several threads. 12 bytes for each document and 8 for each sequence, in memory or in the
// file of a cache.
class PackedDocuments {
 public:
  // The parts `ranges` of `files`, numbered from first_file on. Reads their indices once, unless the cache has the
  // tables. Throws Error (request) as TokenFile::document_lengths and OrderCache::tables, and if nothing is left to
  // deal.
  PackedDocuments(std::span<const TokenFile> files, std::span<const TokenRange> ranges, std::int64_t first_file,
                  std::int64_t sequence_length, const OrderCache& cache);

  std::int64_t sequences() const { return tables_[2].count(); }
  // The documents of a sequence, in the order in which they were dealt. Throws Error (request) if a table is damaged.
  std::vector<TokenPiece> pieces(std::int64_t sequence) const;
  // Tokens in all sequences, over the tokens that they have room for.
  double filled() const;

 private:
  std::vector<NumberColumn> deal(std::span<const TokenFile> files, std::span<const TokenRange> ranges) const;
  [[noreturn]] static void refuse_damage();

  std::int64_t first_file_, sequence_length_, tokens_ = 0;
  std::vector<std::int64_t> file_begins_;  // of each file among the tokens of all of them; then their sum
  // By piece: its first token among those of all files, and its tokens. By sequence: the piece behind its last one. The
  // tokens of all sequences.
  NumberTables tables_;
};

}  // namespace weft
