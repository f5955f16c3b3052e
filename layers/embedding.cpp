#include "layers/segments.h"

#include "layers/segment.h"
#include "layers/vocabulary.h"

namespace weft {
namespace {

struct SavedEmbedding final : Saved {
  ConstTensorView tokens;
  Tensor dy;  // from input gradient to weight gradient
};

class Embedding final : public Segment {
 public:
  explicit Embedding(const SegmentSetup& setup) : Segment(setup, {PartKind::embedding}), lookup_(setup) {
    parameters_ = {vocabulary_table(setup)};
  }

  std::int64_t activation_bytes() const override { return 0; }
  std::int64_t pending_bytes() const override {
    if (!setup_.trains(Family::embedding)) return 0;
    return setup_.slice_tokens() * setup_.model.hidden_size * size_of(setup_.compute);
  }
  std::vector<SegmentTraffic> traffic() const override { return lookup_.traffic(); }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor,
                 std::unique_ptr<Saved>& saved) override {
    auto kept = std::make_unique<SavedEmbedding>();
    kept->tokens = input.tokens;
    saved = std::move(kept);
    return lookup_.forward(context, input.tokens, weights[0]);
  }

  // Token ids have no gradient.
  bool reads_weights_backward() const override { return false; }
  Tensor backward_input(LayerContext&, Weights, Tensor dy, Saved& saved) override {
    if (setup_.trains(Family::embedding)) static_cast<SavedEmbedding&>(saved).dy = std::move(dy);
    return {};
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedEmbedding&>(saved);
    require_frozen(setup_, parameters_, gradients);
    if (setup_.trains(Family::embedding)) lookup_.backward_weight(context, kept.tokens, kept.dy, gradients[0]);
  }

 private:
  VocabularyLookup lookup_;
};

}  // namespace

ParameterSpec vocabulary_table(const SegmentSetup& setup) {
  const Range rows = setup.vocabulary_rows();
  ParameterSpec table = whole_parameter("embedding.weight", Family::embedding, setup.model.vocab_size,
                                        setup.model.hidden_size, Initializer::normal, setup.model.initializer_range);
  table.row_begin = rows.begin;
  table.rows = rows.count;
  return table;
}

std::unique_ptr<Segment> make_embedding(const SegmentSetup& setup) {
  return std::make_unique<Embedding>(setup);
}

}  // namespace weft
