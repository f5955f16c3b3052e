// Sequences of whole documents: none is cut that fits into one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/sample_order.h"
#include "trainer/data/token_file.h"

namespace weft {

// Documents of files, dealt to sequences of at most sequence_length + 1 tokens, the last of which is a target alone. A
// document goes into the fullest of the 256 open sequences in which it fits; where none has room the fullest is closed.
// A longer document is cut into pieces that share a token, so that each of its targets counts once. The last piece is
// dealt like a short document. Documents of one token predict nothing and are left out.
//
// Immutable; safe to use from several threads. 12 bytes for each document and 8 for each sequence.
class PackedDocuments {
 public:
  // `files` are the parts `ranges` of `all`, numbered from first_file on. Reads their indices once. Throws Error
  // (request) as TokenFile::document_lengths, and if nothing is left to deal.
  PackedDocuments(std::span<const TokenFile> all, std::span<const TokenRange> ranges, std::int64_t first_file,
                  std::int64_t sequence_length);

  std::int64_t sequences() const { return static_cast<std::int64_t>(ends_.size()); }
  // The documents of a sequence, in the order in which they were dealt.
  std::vector<TokenPiece> pieces(std::int64_t sequence) const;
  // Tokens in all sequences, over the tokens that they have room for.
  double filled() const;

 private:
  std::int64_t first_file_, sequence_length_, tokens_ = 0;
  std::vector<std::int64_t> file_begins_;  // of each file among the tokens of all of them; then their sum
  std::vector<std::int64_t> firsts_;       // by piece: first token among those of all files
  std::vector<std::int32_t> counts_;       // by piece: tokens
  std::vector<std::int64_t> ends_;         // by sequence: the piece behind its last one
};

}  // namespace weft
