#include "layers/mlp.h"

#include "layers/kernels/rms_norm.h"
#include "layers/sequence_parallel.h"
#include "layers/swiglu_mlp.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

struct SavedMlp final : Saved {
  Tensor x, inverse_rms, normed;  // slice
  SwigluMlp::Kept inner;
  Tensor dnormed, dy;  // from input gradient to weight gradient; dy of all tokens
};

class Mlp final : public Segment {
 public:
  Mlp(const SegmentSetup& setup, int block)
      : setup_(setup),
        scope_(fmt::format("blocks.{}", block)),
        name_(scope_ + ".mlp"),
        mlp_(setup, name_, setup.model.intermediate_size) {
    ParameterSpec norm =
        whole_parameter(name_ + ".norm.weight", Family::dense, setup.model.hidden_size, 1, Initializer::ones);
    norm.tensor_replicated = true;
    parameters_ = mlp_.parameters();
    parameters_.insert(parameters_.begin(), norm);
  }

  const std::string& name() const override { return name_; }
  const std::string& scope() const override { return scope_; }
  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  std::int64_t activation_bytes() const override {
    return setup_.slice_tokens() * (2 * setup_.model.hidden_size * size_of(setup_.compute) + size_of(DType::float32)) +
           mlp_.activation_bytes();
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    return {gather_traffic(setup_, When::forward), scatter_traffic(setup_, When::forward),
            gather_traffic(setup_, When::backward_input), scatter_traffic(setup_, When::backward_input),
            gather_traffic(setup_, When::backward_weight)};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput&, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    KernelContext& kernels = context.kernels;
    auto kept = std::make_unique<SavedMlp>();
    kept->normed = kernels.ledger.allocate(Bucket::activations, setup_.compute, x.rows(), x.columns());
    kept->inverse_rms = kernels.ledger.allocate(Bucket::activations, DType::float32, x.rows(), 1);
    rms_norm_forward(kernels, x, weights[0], static_cast<float>(setup_.model.rms_norm_eps), kept->normed,
                     kept->inverse_rms);
    Tensor partial;
    {
      const GatheredTokens normed(context, kept->normed);
      partial = mlp_.forward(context, weights.subspan(1), normed.view(), kept->inner);
    }
    Tensor y = scatter_tokens(context, std::move(partial));
    {
      const PhaseClock::Scope scope(kernels.clock, Phase::elementwise);
      add(x, y);
    }
    kept->x = std::move(x);
    saved = std::move(kept);
    return y;
  }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedMlp&>(saved);
    KernelContext& kernels = context.kernels;
    kept.dy = kernels.ledger.allocate(Bucket::activations, setup_.compute, setup_.microbatch_tokens, dy.columns());
    context.tensor.all_gather(dy, kept.dy);
    kept.dnormed = scatter_tokens(context, mlp_.backward_input(context, weights.subspan(1), kept.dy, kept.inner));
    // dy carries the residual's gradient; the branch adds to it.
    rms_norm_backward_input(kernels, kept.dnormed, kept.x, weights[0], kept.inverse_rms, dy);
    return dy;
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedMlp&>(saved);
    const GatheredTokens normed(context, kept.normed);
    mlp_.backward_weight(context, gradients.subspan(1), normed.view(), kept.dy, kept.inner);
    rms_norm_backward_weight(context.kernels, kept.dnormed, kept.x, kept.inverse_rms, gradients[0]);
  }

 private:
  SegmentSetup setup_;
  std::string scope_, name_;
  SwigluMlp mlp_;
  std::vector<ParameterSpec> parameters_;
};

}  // namespace

std::unique_ptr<Segment> make_mlp(const SegmentSetup& setup, int block) {
  return std::make_unique<Mlp>(setup, block);
}

}  // namespace weft
