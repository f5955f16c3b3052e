#include "layers/prediction.h"

#include <utility>

#include "layers/kernels/multiply.h"
#include "layers/pre_norm.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"
#include "layers/vocabulary.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// The place of a predictor among those of its model.
struct Place {
  std::size_t index;
  bool first, last;
  Place(const ModelConfig& model, int block)
      : index(static_cast<std::size_t>(block - model.layers())),
        first(index == 0),
        last(static_cast<int>(index) + 1 == model.mtp_depth) {}
};

// A projection from hidden to hidden width. Tensor ranks have it whole and other tokens, so that it needs no exchange.
ParameterSpec square_projection(const SegmentSetup& setup, const std::string& name) {
  const std::int64_t hidden = setup.model.hidden_size;
  ParameterSpec spec =
      whole_parameter(name, Family::dense, hidden, hidden, Initializer::normal, setup.model.initializer_range);
  spec.tensor_replicated = true;
  spec.transposed = true;
  return spec;
}

struct SavedMerge final : Saved {
  PreNorm::Kept hidden, embedding;
  ConstTensorView ids;
  Tensor dy, dembedding;  // from input gradient to weight gradient
};

class Merge final : public Segment {
 public:
  Merge(const SegmentSetup& setup, int block, std::shared_ptr<PredictionTrunk> trunk)
      : Segment(setup, {PartKind::merge, block}),
        place_(setup.model, block),
        trunk_(std::move(trunk)),
        hidden_norm_(setup, name() + ".hidden", Family::dense),
        embedding_norm_(setup, name() + ".embedding", Family::dense),
        lookup_(setup) {
    parameters_ = {hidden_norm_.parameter(), embedding_norm_.parameter(),
                   square_projection(setup, name() + ".hidden_proj.weight"),
                   square_projection(setup, name() + ".embedding_proj.weight"), vocabulary_table(setup)};
  }

  std::int64_t activation_bytes() const override {
    return hidden_norm_.activation_bytes() + embedding_norm_.activation_bytes();
  }
  std::int64_t pending_bytes() const override {
    const std::int64_t slice = setup_.slice_tokens() * setup_.model.hidden_size * size_of(setup_.compute);
    const bool dense = setup_.trains(Family::dense);
    const std::int64_t norms = hidden_norm_.pending_bytes(true) + embedding_norm_.pending_bytes(true);
    return (dense ? norms + slice : 0) + (setup_.trains(Family::embedding) ? slice : 0);
  }
  std::vector<SegmentTraffic> traffic() const override { return lookup_.traffic(); }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    KernelContext& kernels = context.kernels;
    auto kept = std::make_unique<SavedMerge>();
    kept->ids = input.following.at(place_.index).tokens;
    embedding_norm_.forward(context, weights[embedding_norm], lookup_.forward(context, kept->ids, weights[table]),
                            kept->embedding);
    hidden_norm_.forward(context, weights[hidden_norm], std::move(x), kept->hidden);
    if (place_.first) trunk_->hidden = kept->hidden.x;
    Tensor y = like(kernels, kept->hidden.x);
    multiply(kernels, kept->hidden.normed, Transpose::no, weights[hidden_proj], Transpose::no, y, false);
    multiply(kernels, kept->embedding.normed, Transpose::no, weights[embedding_proj], Transpose::no, y, true);
    for (const auto& [norm, of] : {std::pair(&hidden_norm_, &kept->hidden), {&embedding_norm_, &kept->embedding}}) {
      norm->end_forward(*of);
    }
    saved = std::move(kept);
    return y;
  }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedMerge&>(saved);
    const bool trains = setup_.trains(Family::dense);
    Tensor dembedding = norm_gradient(context, embedding_norm_, weights[embedding_norm], weights[embedding_proj], dy,
                                      {}, {}, kept.embedding);
    // The head reads the hidden state too.
    Tensor residual = place_.first ? std::move(trunk_->gradient) : Tensor();
    const ConstTensorView of_head = residual.allocated() ? residual.view() : TensorView();
    Tensor dx = norm_gradient(context, hidden_norm_, weights[hidden_norm], weights[hidden_proj], dy, of_head,
                              std::move(residual), kept.hidden);
    if (setup_.trains(Family::embedding)) kept.dembedding = std::move(dembedding);
    if (trains) kept.dy = std::move(dy);
    return dx;
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedMerge&>(saved);
    require_frozen(setup_, parameters_, gradients);
    if (setup_.trains(Family::embedding)) {
      lookup_.backward_weight(context, kept.ids, kept.dembedding, gradients[table]);
    }
    if (!setup_.trains(Family::dense)) return;
    add_weight_gradient(context.kernels, kept.hidden.normed, kept.dy, gradients[hidden_proj]);
    add_weight_gradient(context.kernels, kept.embedding.normed, kept.dy, gradients[embedding_proj]);
    hidden_norm_.backward_weight(context, gradients[hidden_norm], kept.hidden);
    embedding_norm_.backward_weight(context, gradients[embedding_norm], kept.embedding);
  }

 private:
  enum Index : std::size_t { hidden_norm, embedding_norm, hidden_proj, embedding_proj, table };

  static Tensor like(KernelContext& kernels, ConstTensorView x) {
    return kernels.activation(x.dtype(), x.rows(), x.columns());
  }

  // Through a projection and the norm before it, to which `residual` is added.
  Tensor norm_gradient(LayerContext& context, const PreNorm& norm, ConstTensorView weight, ConstTensorView projection,
                       ConstTensorView dy, ConstTensorView residual, Tensor dx, PreNorm::Kept& kept) const {
    const bool trains = setup_.trains(Family::dense);
    Tensor dnormed = like(context.kernels, dy);
    multiply(context.kernels, dy, Transpose::no, projection, Transpose::yes, dnormed, false);
    if (!trains) kept.normed.reset();
    return norm.backward_input(context, weight, std::move(dnormed), residual, std::move(dx), trains, kept);
  }

  Place place_;
  std::shared_ptr<PredictionTrunk> trunk_;
  PreNorm hidden_norm_, embedding_norm_;
  VocabularyLookup lookup_;
};

struct SavedPredict final : Saved {
  PreNorm::Kept norm;
  Tensor normed;  // in the head's dtype, in place of the norm's own
  Tensor dlogits;
};

class Predict final : public Segment {
 public:
  Predict(const SegmentSetup& setup, int block, std::shared_ptr<PredictionTrunk> trunk)
      : Segment(setup, {PartKind::predict, block}),
        place_(setup.model, block),
        trunk_(std::move(trunk)),
        norm_(setup, name(), Family::dense),
        loss_(setup) {
    parameters_ = {norm_.parameter(), head_projection(setup)};
  }

  std::int64_t activation_bytes() const override {
    const std::int64_t wider = setup_.recompute_cheap ? 0 : size_of(setup_.head_compute) - size_of(setup_.compute);
    return norm_.activation_bytes() + elements() * wider + loss_.gradient_bytes();
  }
  std::int64_t pending_bytes() const override {
    const bool head = setup_.trains(Family::head);
    return norm_.pending_bytes(false) + (head ? elements() * size_of(setup_.head_compute) + loss_.gradient_bytes() : 0);
  }
  std::vector<SegmentTraffic> traffic() const override { return loss_.traffic(); }

  // Hands on the input, or behind the last predictor what the first one got.
  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    KernelContext& kernels = context.kernels;
    auto kept = std::make_unique<SavedPredict>();
    norm_.forward(context, weights[0], std::move(x), kept->norm);
    take_normed(kernels, *kept);
    const auto of_model = static_cast<float>(setup_.model.mtp_loss_coef / setup_.model.mtp_depth);
    kept->dlogits = loss_.forward(context, kept->normed, weights[1], input.following.at(place_.index).targets,
                                  context.gradient_factor() * of_model, context.report.prediction_loss(block()));
    if (setup_.recompute_cheap) kept->normed.reset();
    const ConstTensorView next = place_.last ? trunk_->hidden : ConstTensorView(kept->norm.x);
    Tensor y = kernels.activation(next.dtype(), next.rows(), next.columns());
    cast(kernels.stream, next, y);
    saved = std::move(kept);
    return y;
  }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedPredict&>(saved);
    const bool trains_head = setup_.trains(Family::head);
    Tensor dnormed = scatter_tokens(context, loss_.backward_input(context, kept.dlogits, weights[1]));
    dnormed = converted(context.kernels, std::move(dnormed), setup_.compute, Bucket::activations);
    if (!trains_head) {
      for (Tensor* tensor : {&kept.dlogits, &kept.normed}) tensor->reset();
    }
    if (place_.last) trunk_->gradient = std::move(dy);
    const ConstTensorView residual = dy.allocated() ? dy.view() : TensorView();
    Tensor dx =
        norm_.backward_input(context, weights[0], std::move(dnormed), residual, std::move(dy), trains_head, kept.norm);
    if (kept.norm.normed.allocated()) take_normed(context.kernels, kept);
    return dx;
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedPredict&>(saved);
    require_frozen(setup_, parameters_, gradients);
    if (setup_.trains(Family::head)) loss_.backward_weight(context, kept.dlogits, kept.normed, gradients[1]);
    if (setup_.trains(Family::dense)) norm_.backward_weight(context, gradients[0], kept.norm);
  }

 private:
  std::int64_t elements() const { return setup_.slice_tokens() * setup_.model.hidden_size; }
  void take_normed(KernelContext& kernels, SavedPredict& kept) const {
    kept.normed = converted(kernels, std::move(kept.norm.normed), setup_.head_compute, Bucket::activations);
  }

  Place place_;
  std::shared_ptr<PredictionTrunk> trunk_;
  PreNorm norm_;
  VocabularyLoss loss_;
};

}  // namespace

std::unique_ptr<Segment> make_merge(const SegmentSetup& setup, int block, std::shared_ptr<PredictionTrunk> trunk) {
  return std::make_unique<Merge>(setup, block, std::move(trunk));
}

std::unique_ptr<Segment> make_predict(const SegmentSetup& setup, int block, std::shared_ptr<PredictionTrunk> trunk) {
  return std::make_unique<Predict>(setup, block, std::move(trunk));
}

}  // namespace weft
