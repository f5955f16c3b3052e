#include "layers/segments.h"

#include "layers/pre_norm.h"
#include "layers/sequence_parallel.h"
#include "layers/swiglu_mlp.h"

namespace weft {
namespace {

struct SavedMlp final : Saved {
  PreNorm::Kept norm;
  SwigluMlp::Kept inner;
  Tensor dy;  // of all tokens, from input gradient to weight gradient

  std::vector<Tensor*> offloadable() override {
    return allocated({&norm.x, &norm.inverse_rms, &norm.normed, &inner.gate_up, &inner.activated});
  }
};

class Mlp final : public Segment {
 public:
  Mlp(const SegmentSetup& setup, int block)
      : Segment(setup, {PartKind::mlp, block}),
        norm_(setup, name(), Family::dense),
        mlp_(setup, name(),
             setup.model.width({BlockKind::dense, setup.model.blocks.at(static_cast<std::size_t>(block)).width})) {
    parameters_ = mlp_.parameters();
    parameters_.insert(parameters_.begin(), norm_.parameter());
  }

  std::int64_t activation_bytes() const override { return norm_.activation_bytes() + mlp_.activation_bytes(); }
  std::int64_t offload_bytes() const override { return activation_bytes(); }
  std::int64_t pending_bytes() const override {
    if (!setup_.trains(Family::dense)) return 0;
    const std::int64_t dy = setup_.microbatch_tokens * setup_.model.hidden_size * size_of(setup_.compute);
    return norm_.pending_bytes(true) + mlp_.pending_bytes() + dy;
  }
  std::vector<SegmentTraffic> traffic() const override { return mlp_.traffic(); }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput&, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    auto kept = std::make_unique<SavedMlp>();
    norm_.forward(context, weights[0], std::move(x), kept->norm);
    const GatheredTokens normed(context, kept->norm.normed);
    Tensor y = mlp_.forward(context, weights.subspan(1), normed.view(), kept->norm.x, kept->inner);
    norm_.end_forward(kept->norm);
    saved = std::move(kept);
    return y;
  }

  bool recomputes_forward() const override { return true; }
  Tensor take_input(Saved& saved) override { return std::move(static_cast<SavedMlp&>(saved).norm.x); }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedMlp&>(saved);
    kept.dy = gather_gradient(context, dy);
    Tensor dnormed = scatter_tokens(context, mlp_.backward_input(context, weights.subspan(1), kept.dy, kept.inner));
    const bool trains = setup_.trains(Family::dense);
    if (!trains) kept.norm.normed.reset();
    auto [residual, dx] = residual_gradient(std::move(dy), kept.dy, trains);
    return norm_.backward_input(context, weights[0], std::move(dnormed), residual, std::move(dx), trains, kept.norm);
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedMlp&>(saved);
    require_frozen(setup_, parameters_, gradients);
    if (!setup_.trains(Family::dense)) return;
    const GatheredTokens normed(context, kept.norm.normed);
    mlp_.backward_weight(context, gradients.subspan(1), normed.view(), kept.dy, kept.inner);
    norm_.backward_weight(context, gradients[0], kept.norm);
  }

 private:
  PreNorm norm_;
  SwigluMlp mlp_;
};

}  // namespace

std::unique_ptr<Segment> make_mlp(const SegmentSetup& setup, int block) {
  return std::make_unique<Mlp>(setup, block);
}

}  // namespace weft
