#include "layers/segments.h"

#include <algorithm>

#include "layers/pre_norm.h"
#include "layers/segment.h"
#include "layers/sequence_parallel.h"
#include "layers/vocabulary.h"

namespace weft {
namespace {

struct SavedHead final : Saved {
  PreNorm::Kept norm;
  Tensor dlogits;  // [microbatch tokens, vocabulary rows of this rank]
};

class Head final : public Segment {
 public:
  explicit Head(const SegmentSetup& setup)
      : Segment(setup, {PartKind::head}), norm_(setup, name(), Family::head), loss_(setup) {
    parameters_ = head_parameters(setup);
  }

  std::int64_t activation_bytes() const override { return norm_.activation_bytes() + loss_.gradient_bytes(); }
  std::int64_t pending_bytes() const override {
    return setup_.trains(Family::head) ? norm_.pending_bytes(true) + loss_.gradient_bytes() : 0;
  }
  std::vector<SegmentTraffic> traffic() const override { return loss_.traffic(); }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    auto kept = std::make_unique<SavedHead>();
    norm_.forward(context, weights[0],
                  converted(context.kernels, std::move(x), setup_.head_compute, Bucket::activations), kept->norm);
    kept->dlogits = loss_.forward(context, kept->norm.normed, weights[1], input.targets, context.gradient_factor(),
                                  context.report.loss());
    norm_.end_forward(kept->norm);
    saved = std::move(kept);
    return {};
  }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor, Saved& saved) override {
    auto& kept = static_cast<SavedHead&>(saved);
    Tensor partial = loss_.backward_input(context, kept.dlogits, weights[1]);
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
    loss_.backward_weight(context, kept.dlogits, kept.norm.normed, gradients[1]);
    norm_.backward_weight(context, gradients[0], kept.norm);
  }

 private:
  PreNorm norm_;
  VocabularyLoss loss_;
};

}  // namespace

ParameterSpec head_projection(const SegmentSetup& setup) {
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
  return projection;
}

std::vector<ParameterSpec> head_parameters(const SegmentSetup& setup) {
  return {PreNorm(setup, "head", Family::head).parameter(), head_projection(setup)};
}

std::int64_t logits_chunk_tokens(const SegmentSetup& setup) {
  constexpr std::int64_t tile = 256;  // rows; a partial tile costs as much as a whole one
  const std::int64_t row_bytes = std::max<std::int64_t>(1, setup.vocabulary_rows().count) * size_of(DType::float32);
  const std::int64_t rows = setup.most_logit_bytes / row_bytes;
  return std::clamp<std::int64_t>(rows < tile ? rows : rows / tile * tile, 1, setup.microbatch_tokens);
}

std::unique_ptr<Segment> make_head(const SegmentSetup& setup) {
  return std::make_unique<Head>(setup);
}

}  // namespace weft
