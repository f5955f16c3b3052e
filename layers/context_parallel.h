// Context parallelism: the ranks of a context group share each sequence. A rank holds two runs of positions, run c and
// run 2C - 1 - c of 2C. One is from each end, so that causal attention costs every rank the same. Keys and values are
// communicated; queries are not.
//
// A state space passes a state along whole sequences. There every rank gets all tokens for a part of the heads, and
// gives the results back.
#pragma once

#include <span>
#include <vector>

#include "layers/kernels/attention.h"
#include "layers/segment.h"

namespace weft {

// The positions of a sequence on a context rank, ascending: the whole sequence if there is one rank. With several ranks
// the length is a multiple of 2 * ranks.
std::vector<Range> context_runs(std::int64_t sequence_length, int ranks, int rank);

// The runs of all context ranks, where a rank has sequence after sequence, and sorted by position.
RowBlocks token_blocks(const SegmentSetup& setup);

// Keys and values of every position: those of `own`, with a row for each token of this rank, become
// [sequences * sequence_length, heads.key_value_columns()] in the order of positions. Collective over the context
// group.
Tensor gather_keys_values(LayerContext& context, const SegmentSetup& setup, const HeadShape& heads,
                          const AttentionInputs& own);
// Backward of gather_keys_values: sums the gradients of this rank's keys and values over all ranks, into the last
// columns of `dqkv`. Collective over the context group.
void scatter_keys_values(LayerContext& context, const SegmentSetup& setup, ConstTensorView gradients, TensorView dqkv);

// Columns of a matrix of tokens in equal pieces, one for each context rank, or the same one for as many neighbours.
struct ColumnPieces {
  std::int64_t first = 0, columns = 0;
  std::int64_t pieces = 1;  // divides the number of ranks

  std::int64_t width() const { return columns / pieces; }
  // In front of the piece of a rank, of those of this part alone.
  std::int64_t begin(int rank, int ranks) const { return rank * pieces / ranks * width(); }
};
std::int64_t total_width(std::span<const ColumnPieces> parts);

// This rank's piece of each part, side by side, of every position: [setup.context_tokens(), total_width(parts)] in the
// order of positions. `own` has a row for each token of this rank. Collective over the context group.
Tensor gather_pieces(LayerContext& context, const SegmentSetup& setup, std::span<const ColumnPieces> parts,
                     ConstTensorView own);
// The other way: `own` gets the columns of all parts. A piece of several ranks becomes their sum, in float32 and
// rounded once. Collective over the context group.
void return_pieces(LayerContext& context, const SegmentSetup& setup, std::span<const ColumnPieces> parts, Tensor pieces,
                   TensorView own);
// A number for each token, of every position. Any dtype; collective over the context group.
Tensor gather_numbers(LayerContext& context, const SegmentSetup& setup, ConstTensorView own);

// The collectives of the functions above, in one direction.
SegmentTraffic piece_traffic(const SegmentSetup& setup, SegmentTraffic::When when, std::span<const ColumnPieces> parts);

}  // namespace weft
