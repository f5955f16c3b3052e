// The texts of sequences out of windows of tokens, which are consecutive ones of a file.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/data/sample_order.h"

namespace weft {

// The memory for the text of a sequence. Each position has a token id, its target, and the position at which its
// document begins. The target is the id that follows, or a number below 0 if that does not count. `document_begins` is
// empty unless documents are masked. `following` has, of each predictor k = 1, 2, ... the k-th id behind, 0 if the
// sequence or document has none. Its target is the target of that position, or a number below 0 if that does not count
// or belongs to another document.
struct SequenceText {
  std::span<std::int32_t> tokens, targets, document_begins = {};
  struct Following {
    std::span<std::int32_t> tokens, targets;
  };
  std::vector<Following> following = {};
  std::span<std::int32_t> noise_keys = {};  // left as they are by a reader of text
};
// `numbers` as equal parts, in the order of the fields.
SequenceText parts_of(std::span<std::int32_t> numbers, const TextParts& parts);
// Writes a sequence from the tokens of its positions and one more, or of fewer than it has positions. The rest is
// padding, with padding_target (layers/kernels/routing.h) as target. `begins`: as document_begins() of those tokens.
// `losses`: 0 for those that are not to be predicted; empty: all are.
void write_sequence(std::span<const std::int32_t> window, std::span<const std::int32_t> begins,
                    std::span<const std::uint8_t> losses, const SequenceText& to);
// Reads a sequence out of pieces of files, one behind the other. Throws as TokenFile::read and document_begins.
void read_sequence(const std::vector<TokenFile>& files, const std::vector<TokenPiece>& pieces, const SequenceText& to);

// The positions in a window at which documents begin, ascending and each once: always 0, since the window's first
// document begins or continues there. The window has the `count` tokens from `first` on. An attention that stays inside
// documents, and positions, start again there. With count = sequence_length + 1 the last position, sequence_length,
// tells that only the last target belongs to another document. Empty documents leave no trace. Throws as
// TokenFile::document_of.
std::vector<std::int32_t> document_begins(const TokenFile& file, std::int64_t first, std::int64_t count);

// Of `count` tokens from `first` on, those that count as targets. These are all except the first that have a loss and,
// if documents are masked, a token of their document before them. Throws as document_begins.
std::int64_t counted_targets(const TokenFile& file, std::int64_t first, std::int64_t count, bool masked);

}  // namespace weft
