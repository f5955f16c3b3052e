// Context parallelism: the ranks of a context group share each sequence. A rank holds two runs of positions, run c and
// run 2C - 1 - c of 2C. One is from each end, so that causal attention costs every rank the same. Keys and values are
// communicated; queries are not.
#pragma once

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

}  // namespace weft
