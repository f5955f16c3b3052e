#include "layers/context_parallel.h"

#include <utility>

#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// Each rank's rows to it, and as many from it, by rank.
Tensor exchanged(LayerContext& context, ConstTensorView rows) {
  Tensor arrived = context.kernels.activation(rows.dtype(), rows.rows(), rows.columns());
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(context.sequence.size()),
                                         rows.size() / context.sequence.size());
  context.sequence.all_to_all(rows, counts, arrived, counts);
  return arrived;
}

}  // namespace

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
  const std::int64_t all_rows = setup.context * setup.microbatch_tokens, columns = heads.key_value_columns();
  const DType dtype = own.k.rows.dtype();
  Tensor gathered = context.kernels.activation(dtype, all_rows, columns);
  const TensorView part =
      gathered.view().rows_from(context.sequence.rank() * setup.microbatch_tokens, setup.microbatch_tokens);
  const std::int64_t value_column = heads.own_value_column();
  copy_columns(context.kernels.stream, own.k.rows, own.k.column, part, 0, value_column);
  copy_columns(context.kernels.stream, own.v.rows, own.v.column, part, value_column, columns - value_column);
  context.sequence.all_gather(part, gathered);
  return reordered(context.kernels, Bucket::activations, token_blocks(setup), /*sorted=*/true, gathered);
}

void scatter_keys_values(LayerContext& context, const SegmentSetup& setup, ConstTensorView gradients, TensorView dqkv) {
  const Tensor by_rank =
      reordered(context.kernels, Bucket::activations, token_blocks(setup), /*sorted=*/false, gradients);
  Tensor own = context.kernels.activation(gradients.dtype(), setup.microbatch_tokens, gradients.columns());
  context.sequence.reduce_scatter(by_rank, own);
  copy_columns(context.kernels.stream, own, 0, dqkv, dqkv.columns() - gradients.columns(), gradients.columns());
}

std::int64_t total_width(std::span<const ColumnPieces> parts) {
  std::int64_t width = 0;
  for (const ColumnPieces& part : parts) width += part.width();
  return width;
}

Tensor gather_pieces(LayerContext& context, const SegmentSetup& setup, std::span<const ColumnPieces> parts,
                     ConstTensorView own) {
  KernelContext& kernels = context.kernels;
  Tensor leaving = kernels.activation(own.dtype(), setup.context_tokens(), total_width(parts));
  for (int rank = 0; rank < setup.context; ++rank) {
    const TensorView rows = leaving.view().rows_from(rank * own.rows(), own.rows());
    std::int64_t column = 0;
    for (const ColumnPieces& part : parts) {
      copy_columns(kernels.stream, own, part.first + part.begin(rank, setup.context), rows, column, part.width());
      column += part.width();
    }
  }
  const Tensor arrived = exchanged(context, std::exchange(leaving, {}));
  return reordered(kernels, Bucket::activations, token_blocks(setup), /*sorted=*/true, arrived);
}

void return_pieces(LayerContext& context, const SegmentSetup& setup, std::span<const ColumnPieces> parts, Tensor pieces,
                   TensorView own) {
  KernelContext& kernels = context.kernels;
  Tensor leaving = reordered(kernels, Bucket::activations, token_blocks(setup), /*sorted=*/false, pieces);
  pieces.reset();
  const Tensor arrived = exchanged(context, std::exchange(leaving, {}));
  const auto rows_of = [&](int rank) { return arrived.view().rows_from(rank * own.rows(), own.rows()); };
  std::int64_t column = 0;
  for (const ColumnPieces& part : parts) {
    const std::int64_t width = part.width();
    const int sharing = setup.context / static_cast<int>(part.pieces);
    for (int first = 0; first < setup.context; first += sharing) {
      const std::int64_t to = part.first + part.begin(first, setup.context);
      if (sharing == 1) {
        copy_columns(kernels.stream, rows_of(first), column, own, to, width);
        continue;
      }
      Tensor one = kernels.activation(own.dtype(), own.rows(), width);
      Tensor sum = kernels.activation(DType::float32, own.rows(), width);
      fill(kernels.stream, sum, 0.0f);
      for (int rank = first; rank < first + sharing; ++rank) {
        copy_columns(kernels.stream, rows_of(rank), column, one, 0, width);
        add(kernels.stream, one, sum);
      }
      cast(kernels.stream, sum, one);
      copy_columns(kernels.stream, one, 0, own, to, width);
    }
    column += width;
  }
}

Tensor gather_numbers(LayerContext& context, const SegmentSetup& setup, ConstTensorView own) {
  Tensor by_rank = context.kernels.activation(own.dtype(), setup.context_tokens(), own.columns());
  context.sequence.all_gather(own, by_rank);
  return reordered(context.kernels, Bucket::activations, token_blocks(setup), /*sorted=*/true, by_rank);
}

SegmentTraffic piece_traffic(const SegmentSetup& setup, SegmentTraffic::When when,
                             std::span<const ColumnPieces> parts) {
  return {when,
          CollectiveOp::all_to_all,
          Group::cp,
          1,
          setup.context_tokens() * total_width(parts) * size_of(setup.compute),
          false};
}

}  // namespace weft
