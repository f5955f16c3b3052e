// The dense part of a block, and the feed-forward that it shares with the shared expert.
#include "layers/swiglu_mlp.h"

#include "layers/kernels/multiply.h"
#include "layers/kernels/token_kernels.h"
#include "layers/pre_norm.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"

namespace weft {

SwigluMlp::SwigluMlp(const SegmentSetup& setup, const std::string& name, std::int64_t width)
    : setup_(setup),
      name_(name),
      format_(setup.format_of(Family::dense)),
      width_(width),
      local_width_(width / setup.tensor) {}

std::vector<ParameterSpec> SwigluMlp::parameters() const {
  std::vector<ParameterSpec> parameters;
  for (const char* which : {"gate_proj", "up_proj", "down_proj"}) {
    ParameterSpec spec = whole_parameter(fmt::format("{}.{}.weight", name_, which), Family::dense, width_,
                                         setup_.model.hidden_size, Initializer::normal, setup_.model.initializer_range);
    spec.rows = local_width_;
    spec.row_begin = local_width_ * setup_.tensor_rank;
    spec.transposed = std::string_view(which) == "down_proj";
    spec.stacked = std::string_view(which) == "up_proj";
    parameters.push_back(spec);
  }
  return parameters;
}

std::int64_t SwigluMlp::activation_bytes() const {
  return setup_.microbatch_tokens * (setup_.recompute_cheap ? 2 : 3) * local_width_ * size_of(setup_.compute);
}

std::int64_t SwigluMlp::pending_bytes() const {
  // activated, and dgate_up in the storage of gate_up.
  return setup_.trains(Family::dense) ? setup_.microbatch_tokens * 3 * local_width_ * size_of(setup_.compute) : 0;
}

std::vector<SegmentTraffic> SwigluMlp::traffic() const {
  using When = SegmentTraffic::When;
  return {gather_traffic(setup_, When::forward, setup_.compute), scatter_traffic(setup_, When::forward, setup_.compute),
          gather_traffic(setup_, When::backward_input, setup_.compute),
          scatter_traffic(setup_, When::backward_input, setup_.compute),
          weight_gather_traffic(setup_, Family::dense, setup_.compute)};
}

Tensor SwigluMlp::forward(LayerContext& context, Weights weights, ConstTensorView x, ConstTensorView residual,
                          Kept& kept) const {
  KernelContext& kernels = context.kernels;
  kept.gate_up = kernels.activation(setup_.compute, x.rows(), 2 * local_width_);
  multiply(kernels, format_,
           {.a = x, .b = stacked_rows(weights.first(2)), .transpose_b = Transpose::yes, .c = kept.gate_up});
  kept.activated = kernels.activation(setup_.compute, x.rows(), local_width_);
  swiglu_forward(kernels, kept.gate_up, {}, kept.activated);
  Tensor y = onto_residual(context, format_, kept.activated, weights[2], residual);
  if (setup_.recompute_cheap) kept.activated.reset();
  return y;
}

Tensor SwigluMlp::backward_input(LayerContext& context, Weights weights, ConstTensorView dy, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor dactivated = kernels.activation(setup_.compute, dy.rows(), local_width_);
  multiply(kernels, format_,
           {.a = dy, .b = weights[2], .transpose_b = Transpose::yes, .c = dactivated, .gradient = GradientFactor::a});
  if (setup_.recompute_cheap && setup_.trains(Family::dense)) {
    kept.activated = kernels.activation(setup_.compute, dy.rows(), local_width_);
    swiglu_forward(kernels, kept.gate_up, {}, kept.activated);
  }
  // In place: the gradient overwrites gate_up.
  swiglu_backward(kernels, dactivated, kept.gate_up, {}, kept.gate_up, {});
  kept.dgate_up = std::move(kept.gate_up);
  Tensor dx = kernels.activation(setup_.compute, dy.rows(), setup_.model.hidden_size);
  multiply(kernels, format_,
           {.a = kept.dgate_up, .b = stacked_rows(weights.first(2)), .c = dx, .gradient = GradientFactor::a});
  if (!setup_.trains(Family::dense)) kept = {};
  return dx;
}

void SwigluMlp::backward_weight(LayerContext& context, Gradients gradients, ConstTensorView x, ConstTensorView dy,
                                const Kept& kept) const {
  add_weight_gradient(context.kernels, format_, GradientFactor::a, kept.dgate_up, x, stacked_rows(gradients.first(2)));
  add_weight_gradient(context.kernels, format_, GradientFactor::b, kept.activated, dy, gradients[2]);
}

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
