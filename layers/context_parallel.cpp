#include "layers/context_parallel.h"

#include "parallel/runtime/elementwise.h"

namespace weft {
RowBlocks token_blocks(const SegmentSetup& setup) {
  RowBlocks blocks;
  std::int64_t next = 0;
  for (int rank = 0; rank < setup.context; ++rank) {
    for (std::int64_t sequence = 0; sequence < setup.sequences(); ++sequence) {
      for (const Range& run : context_runs(setup.sequence_length, setup.context, rank)) {
        blocks.by_rank.push_back(next);
        blocks.sorted.push_back(sequence * setup.sequence_length + run.begin);
        blocks.rows.push_back(run.count);
        next += run.count;
      }
    }
  }
  return blocks;
}

std::vector<Range> context_runs(std::int64_t sequence_length, int ranks, int rank) {
  if (ranks == 1) return {{0, sequence_length}};
  const std::int64_t run = sequence_length / (2 * ranks);
  require(run * 2 * ranks == sequence_length, "a sequence divides into two runs a context rank");
  return {{rank * run, run}, {(2 * ranks - 1 - rank) * run, run}};
}

Tensor gather_keys_values(LayerContext& context, const SegmentSetup& setup, const HeadShape& heads,
                          const AttentionInputs& own) {
  MemoryLedger& ledger = context.kernels.ledger;
  const std::int64_t all_rows = setup.context * setup.microbatch_tokens, columns = heads.key_value_columns();
  const DType dtype = own.k.rows.dtype();
  Tensor gathered = ledger.allocate(Bucket::activations, dtype, all_rows, columns);
  const TensorView part =
      gathered.view().rows_from(context.sequence.rank() * setup.microbatch_tokens, setup.microbatch_tokens);
  const std::int64_t value_column = heads.own_value_column();
  copy_columns(context.kernels.stream, own.k.rows, own.k.column, part, 0, value_column);
  copy_columns(context.kernels.stream, own.v.rows, own.v.column, part, value_column, columns - value_column);
  context.sequence.all_gather(part, gathered);
  return reordered(context.kernels, Bucket::activations, token_blocks(setup), /*sorted=*/true, gathered);
}

void scatter_keys_values(LayerContext& context, const SegmentSetup& setup, ConstTensorView gradients, TensorView dqkv) {
  MemoryLedger& ledger = context.kernels.ledger;
  const Tensor by_rank =
      reordered(context.kernels, Bucket::activations, token_blocks(setup), /*sorted=*/false, gradients);
  Tensor own = ledger.allocate(Bucket::activations, gradients.dtype(), setup.microbatch_tokens, gradients.columns());
  context.sequence.reduce_scatter(by_rank, own);
  copy_columns(context.kernels.stream, own, 0, dqkv, dqkv.columns() - gradients.columns(), gradients.columns());
}

}  // namespace weft
