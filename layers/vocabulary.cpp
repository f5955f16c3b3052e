#include "layers/vocabulary.h"

#include <algorithm>

#include "layers/kernels/multiply.h"
#include "layers/kernels/token_kernels.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {

VocabularyLookup::VocabularyLookup(const SegmentSetup& setup) : setup_(setup), rows_(setup.vocabulary_rows()) {}

DType VocabularyLookup::exchanged() const {
  return narrower(setup_.compute, setup_.embedding_compute);
}

std::vector<SegmentTraffic> VocabularyLookup::traffic() const {
  return {scatter_traffic(setup_, SegmentTraffic::When::forward, exchanged()),
          weight_gather_traffic(setup_, Family::embedding, setup_.compute)};
}

Tensor VocabularyLookup::forward(LayerContext& context, ConstTensorView ids, ConstTensorView weight) const {
  KernelContext& kernels = context.kernels;
  Tensor y = kernels.activation(setup_.embedding_compute, setup_.microbatch_tokens, setup_.model.hidden_size);
  embedding_forward(kernels, ids, weight, rows_.begin, y);
  y = scatter_tokens(context, converted(kernels, std::move(y), exchanged(), Bucket::activations));
  return converted(kernels, std::move(y), setup_.compute, Bucket::activations);
}

void VocabularyLookup::backward_weight(LayerContext& context, ConstTensorView ids, ConstTensorView dy,
                                       const Gradient& gradient) const {
  const GatheredTokens whole(context, dy);
  if (gradient.empty()) return;
  embedding_backward(context.kernels, ids, whole.view(), rows_.begin, cleared(context.kernels.stream, gradient));
}

VocabularyLoss::VocabularyLoss(const SegmentSetup& setup) : setup_(setup), rows_(setup.vocabulary_rows()) {}

std::int64_t VocabularyLoss::gradient_bytes() const {
  return setup_.microbatch_tokens * rows_.count * size_of(setup_.head_compute);
}

std::vector<SegmentTraffic> VocabularyLoss::traffic() const {
  using When = SegmentTraffic::When;
  const bool many = setup_.tensor > 1;
  const std::int64_t tokens = setup_.microbatch_tokens, token_bytes = tokens * size_of(DType::float32);
  const std::int64_t of_chunk = logits_chunk_tokens(setup_), chunks = (tokens + of_chunk - 1) / of_chunk;
  return {
      gather_traffic(setup_, When::forward, setup_.head_compute),
      {When::forward, CollectiveOp::all_reduce, Group::tp, many ? 2 * chunks : 0, many ? 3 * token_bytes : 0, false},
      scatter_traffic(setup_, When::backward_input, setup_.head_compute),
      weight_gather_traffic(setup_, Family::head, setup_.head_compute)};
}

Tensor VocabularyLoss::forward(LayerContext& context, ConstTensorView normed, ConstTensorView weight,
                               ConstTensorView targets, float factor, TensorView loss) const {
  const std::int64_t tokens = setup_.microbatch_tokens, of_chunk = logits_chunk_tokens(setup_);
  Tensor dlogits = context.kernels.activation(setup_.head_compute, tokens, rows_.count);
  const GatheredTokens whole(context, normed);
  for (std::int64_t begin = 0; begin < tokens; begin += of_chunk) {
    const std::int64_t count = std::min(of_chunk, tokens - begin);
    logits_to_gradient(context, whole.view().rows_from(begin, count), weight, targets.rows_from(begin, count), factor,
                       loss, dlogits.view().rows_from(begin, count));
  }
  return dlogits;
}

void VocabularyLoss::logits_to_gradient(LayerContext& context, ConstTensorView normed, ConstTensorView weight,
                                        ConstTensorView targets, float factor, TensorView loss,
                                        TensorView dlogits) const {
  KernelContext& kernels = context.kernels;
  Tensor storage;
  TensorView logits = dlogits;
  if (setup_.head_compute != DType::float32) {
    storage = kernels.ledger.allocate(Bucket::workspace, DType::float32, dlogits.rows(), dlogits.columns());
    logits = storage;
  }
  multiply(kernels, normed, Transpose::no, weight, Transpose::yes, logits, false);
  Tensor maximum = kernels.ledger.allocate(Bucket::workspace, DType::float32, dlogits.rows(), 1);
  Tensor sums = kernels.ledger.allocate(Bucket::workspace, DType::float32, dlogits.rows(), 2);
  vocabulary_sums(kernels, logits, targets, rows_.begin, maximum, sums);
  if (setup_.tensor > 1) {
    Tensor of_shard = kernels.ledger.allocate(Bucket::workspace, DType::float32, dlogits.rows(), 1);
    cast(kernels.stream, maximum, of_shard);
    context.tensor.all_reduce(maximum, Reduce::max);
    shift_vocabulary_sums(kernels, of_shard, maximum, targets, rows_, sums);
    context.tensor.all_reduce(sums);
  }
  // Every tensor rank has the loss of all tokens; only rank 0 reports it.
  cross_entropy_gradient(kernels, logits, maximum, sums, targets, rows_.begin, factor, dlogits,
                         context.tensor.rank() == 0 ? loss : TensorView());
}

Tensor VocabularyLoss::backward_input(LayerContext& context, ConstTensorView dlogits, ConstTensorView weight) const {
  Tensor partial = context.kernels.activation(setup_.head_compute, setup_.microbatch_tokens, setup_.model.hidden_size);
  multiply(context.kernels, dlogits, Transpose::no, weight, Transpose::no, partial, false);
  return partial;
}

void VocabularyLoss::backward_weight(LayerContext& context, ConstTensorView dlogits, ConstTensorView normed,
                                     const Gradient& gradient) const {
  const GatheredTokens whole(context, normed);
  add_weight_gradient(context.kernels, dlogits, whole.view(), gradient);
}

}  // namespace weft
