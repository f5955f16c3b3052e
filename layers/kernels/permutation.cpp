#include "layers/kernels/permutation.h"

#include <limits>

#include "layers/kernels/kernels.h"

namespace weft {
namespace {

void require_permutation(ConstTensorView x, ConstTensorView permuted, ConstTensorView slots) {
  require(slots.rows() == x.rows() && slots.size() == permuted.rows(), "every choice of a token has a permuted row");
  require(x.columns() == permuted.columns(), "a permutation keeps the width of rows");
}

void require_weights(ConstTensorView weights, ConstTensorView slots) {
  require(weights.empty() || (weights.rows() == slots.rows() && weights.columns() == slots.columns()),
          "every choice of a token has a weight");
}

}  // namespace

void sort_by_expert(KernelContext& context, ConstTensorView indices, TensorView counts, TensorView slots) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(slots.size() == indices.size(), "every choice has a slot");
  require(indices.size() <= std::numeric_limits<std::int32_t>::max(), "slots fit in 32 bits");
  context.kernels.permutation.sort_by_expert(context, indices, counts, slots);
}

void add_counts(KernelContext& context, ConstTensorView counts, TensorView totals) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(counts.size() == totals.size(), "every count has a total");
  context.kernels.permutation.add_counts(context, counts, totals);
}

void permute_rows(KernelContext& context, ConstTensorView x, ConstTensorView slots, TensorView permuted) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require_permutation(x, permuted, slots);
  require(x.dtype() == permuted.dtype(), "a permutation keeps the dtype");
  if (!permuted.empty()) context.kernels.permutation.permute_rows(context, x, slots, permuted);
}

void unpermute_rows(KernelContext& context, ConstTensorView permuted, ConstTensorView slots, ConstTensorView weights,
                    TensorView y) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require_permutation(y, permuted, slots);
  require_weights(weights, slots);
  if (!permuted.empty()) context.kernels.permutation.unpermute_rows(context, permuted, slots, weights, y);
}

void unpermute_rows_backward(KernelContext& context, ConstTensorView dy, ConstTensorView permuted,
                             ConstTensorView slots, ConstTensorView weights, TensorView dpermuted,
                             TensorView dweights) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require_permutation(dy, permuted, slots);
  require_permutation(dy, dpermuted, slots);
  require_weights(weights, slots);
  require_weights(dweights, slots);
  if (permuted.empty()) return;
  context.kernels.permutation.unpermute_rows_backward(context, dy, permuted, slots, weights, dpermuted, dweights);
}

void move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination) {
  const PhaseClock::Scope scope(context.clock, Phase::elementwise, context.stream);
  require(from.size() == counts.size() && to.size() == counts.size(), "every block has a place before and after");
  require(source.dtype() == destination.dtype() && source.columns() == destination.columns(),
          "a move keeps dtype and width");
  for (std::size_t block = 0; block < counts.size(); ++block) {
    require(from[block] >= 0 && to[block] >= 0 && counts[block] >= 0 && from[block] + counts[block] <= source.rows() &&
                to[block] + counts[block] <= destination.rows(),
            "a block lies inside both tensors");
  }
  context.kernels.permutation.move_blocks(context, source, from, to, counts, destination);
}

}  // namespace weft
