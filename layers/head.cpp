#include "layers/segments.h"

#include <algorithm>

#include "layers/kernels/cross_entropy.h"
#include "layers/kernels/multiply.h"
#include "layers/pre_norm.h"
#include "layers/segment.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

struct SavedHead final : Saved {
  PreNorm::Kept norm;
  Tensor dlogits;  // [microbatch tokens, vocabulary rows of this rank]
};

class Head final : public Segment {
 public:
  explicit Head(const SegmentSetup& setup)
      : setup_(setup),
        rows_(balanced_part(setup.model.vocab_size, setup.tensor, setup.tensor_rank)),
        norm_(setup, name_, Family::head) {
    parameters_ = head_parameters(setup);
  }

  const std::string& name() const override { return name_; }
  const std::string& scope() const override { return name_; }
  ModelPart part() const override { return {PartKind::head}; }
  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  std::int64_t activation_bytes() const override {
    return norm_.activation_bytes() + setup_.microbatch_tokens * rows_.count * size_of(setup_.head_compute);
  }
  std::int64_t pending_bytes() const override {
    if (!setup_.trains(Family::head)) return 0;
    return norm_.pending_bytes(true) + setup_.microbatch_tokens * rows_.count * size_of(setup_.head_compute);
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    const bool many = setup_.tensor > 1;
    const std::int64_t token_bytes = setup_.microbatch_tokens * size_of(DType::float32);
    return {gather_traffic(setup_, When::forward, setup_.head_compute),
            {When::forward, CollectiveOp::all_reduce, Group::tp, many ? 2 * chunks() : 0, many ? 3 * token_bytes : 0,
             false},
            scatter_traffic(setup_, When::backward_input, setup_.head_compute),
            weight_gather_traffic(setup_, Family::head, setup_.head_compute)};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    MemoryLedger& ledger = context.kernels.ledger;
    const std::int64_t tokens = setup_.microbatch_tokens;
    auto kept = std::make_unique<SavedHead>();
    norm_.forward(context, weights[0],
                  converted(context.kernels, std::move(x), setup_.head_compute, Bucket::activations), kept->norm);

    kept->dlogits = ledger.allocate(Bucket::activations, setup_.head_compute, tokens, rows_.count);
    const GatheredTokens normed(context, kept->norm.normed);
    for (std::int64_t begin = 0; begin < tokens; begin += chunk_tokens()) {
      const std::int64_t count = std::min(chunk_tokens(), tokens - begin);
      logits_to_gradient(context, normed.view().rows_from(begin, count), weights[1],
                         input.targets.rows_from(begin, count), kept->dlogits.view().rows_from(begin, count));
    }
    norm_.end_forward(kept->norm);
    saved = std::move(kept);
    return {};
  }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor, Saved& saved) override {
    auto& kept = static_cast<SavedHead&>(saved);
    MemoryLedger& ledger = context.kernels.ledger;
    Tensor partial =
        ledger.allocate(Bucket::activations, setup_.head_compute, setup_.microbatch_tokens, setup_.model.hidden_size);
    multiply(context.kernels, kept.dlogits, Transpose::no, weights[1], Transpose::no, partial, false);
    if (!setup_.trains(Family::head)) {
      for (Tensor* tensor : {&kept.dlogits, &kept.norm.normed}) tensor->reset();
    }
    Tensor dx = norm_.backward_input(context, weights[0], scatter_tokens(context, std::move(partial)), {}, {},
                                     setup_.trains(Family::head), kept.norm);
    return converted(context.kernels, std::move(dx), setup_.compute, Bucket::activations);
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedHead&>(saved);
    require_frozen(setup_, parameters_, gradients);
    if (!setup_.trains(Family::head)) return;
    const GatheredTokens normed(context, kept.norm.normed);
    add_weight_gradient(context.kernels, kept.dlogits, normed.view(), gradients[1]);
    norm_.backward_weight(context, gradients[0], kept.norm);
  }

 private:
  std::int64_t chunk_tokens() const { return logits_chunk_tokens(setup_); }
  std::int64_t chunks() const { return (setup_.microbatch_tokens + chunk_tokens() - 1) / chunk_tokens(); }

  // Adds the loss of some tokens to the report and computes the gradient of their logits, in place if that is float32.
  void logits_to_gradient(LayerContext& context, ConstTensorView normed, ConstTensorView weight,
                          ConstTensorView targets, TensorView dlogits) const {
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
    const TensorView loss = context.tensor.rank() == 0 ? context.report.loss() : TensorView();
    cross_entropy_gradient(kernels, logits, maximum, sums, targets, rows_.begin, context.gradient_factor(), dlogits,
                           loss);
  }

  SegmentSetup setup_;
  Range rows_;
  std::string name_ = "head";
  PreNorm norm_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace

std::vector<ParameterSpec> head_parameters(const SegmentSetup& setup) {
  ParameterSpec projection = vocabulary_table(setup);
  if (setup.model.tie_word_embeddings) {
    require(setup.head_compute == setup.embedding_compute,
            "a tied weight is gathered in one dtype, which embedding and head compute in");
    require(setup.trains(Family::head) == setup.trains(Family::embedding),
            "of a tied weight embedding and head are frozen together");
  } else {
    projection.name = "head.weight";
    projection.family = Family::head;
  }
  return {PreNorm(setup, "head", Family::head).parameter(), projection};
}

std::int64_t logits_chunk_tokens(const SegmentSetup& setup) {
  constexpr std::int64_t tile = 256;  // rows; a partial tile costs as much as a whole one
  const std::int64_t vocabulary = balanced_part(setup.model.vocab_size, setup.tensor, setup.tensor_rank).count;
  const std::int64_t row_bytes = std::max<std::int64_t>(1, vocabulary) * size_of(DType::float32);
  const std::int64_t rows = setup.most_logit_bytes / row_bytes;
  return std::clamp<std::int64_t>(rows < tile ? rows : rows / tile * tile, 1, setup.microbatch_tokens);
}

std::unique_ptr<Segment> make_head(const SegmentSetup& setup) {
  return std::make_unique<Head>(setup);
}

}  // namespace weft
