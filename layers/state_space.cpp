#include "layers/kernels/state_space.h"

#include <cmath>

#include "layers/kernels/multiply.h"
#include "layers/pre_norm.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

using enum StateSpaceOrder::Index;

constexpr std::size_t projections = step_proj - z_proj + 1, convolved = c_filter - x_filter + 1;

struct SavedStateSpace final : Saved {
  PreNorm::Kept norm;
  // All tokens, heads of this rank. `mixed` and `gated` are not kept if they are recomputed.
  Tensor projected, mixed, states, y, gated, inverse_rms;
  Tensor dprojected, dy;  // from input gradient to weight gradient; dy of all tokens
  Tensor dfilter, dbias, drates, dgated_norm;
  ConstTensorView document_begins;  // of the microbatch's text

  std::vector<Tensor*> offloadable() override {
    return allocated({&norm.x, &norm.inverse_rms, &norm.normed, &projected, &mixed, &states, &y, &gated, &inverse_rms});
  }
};

class StateSpace final : public Segment {
 public:
  StateSpace(const SegmentSetup& setup, int block)
      : Segment(setup, {PartKind::state_space, block}),
        norm_(setup, name(), Family::dense),
        format_(setup.format_of(Family::dense)),
        shape_(state_space_shape(setup.model, setup.tensor, setup.sequence_length)) {
    require(setup.context == 1, "a state space has whole sequences");
    parameters_ = state_space_parameters(setup, block);
  }

  std::int64_t activation_bytes() const override {
    const std::int64_t cheap = setup_.recompute_cheap ? 0 : shape_.channels() + shape_.inner();
    const std::int64_t states = shape_.state_rows(setup_.microbatch_tokens) * shape_.state_size;
    return norm_.activation_bytes() + element_bytes(shape_.columns() + shape_.inner() + cheap) +
           (states + setup_.microbatch_tokens * shape_.groups) * size_of(DType::float32);
  }
  std::int64_t offload_bytes() const override { return activation_bytes(); }
  std::int64_t pending_bytes() const override {
    if (!setup_.trains(Family::dense)) return 0;
    // dprojected, gated and dy; gradients of vectors.
    const std::int64_t vectors = shape_.channels() * (shape_.filter + 1) + 3 * shape_.heads + shape_.inner();
    return norm_.pending_bytes(true) + element_bytes(shape_.columns() + shape_.inner() + setup_.model.hidden_size) +
           vectors * size_of(DType::float32);
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    return {gather_traffic(setup_, When::forward, setup_.compute),
            scatter_traffic(setup_, When::forward, setup_.compute),
            gather_traffic(setup_, When::backward_input, setup_.compute),
            scatter_traffic(setup_, When::backward_input, setup_.compute),
            weight_gather_traffic(setup_, Family::dense, setup_.compute)};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    KernelContext& kernels = context.kernels;
    auto kept = std::make_unique<SavedStateSpace>();
    kept->document_begins = input.document_begins;
    const std::int64_t tokens = setup_.microbatch_tokens;
    norm_.forward(context, weights[input_norm], std::move(x), kept->norm);

    kept->projected = activation(kernels, shape_.columns());
    {
      const GatheredTokens normed(context, kept->norm.normed);
      multiply(kernels, format_,
               {.a = normed.view(), .b = projection(weights), .transpose_b = Transpose::yes, .c = kept->projected});
    }
    norm_.end_forward(kept->norm);
    mix(kernels, weights, *kept);
    kept->states =
        kernels.ledger.allocate(Bucket::activations, DType::float32, shape_.state_rows(tokens), shape_.state_size);
    kept->y = activation(kernels, shape_.inner());
    scan_tokens_forward(kernels, shape_, kept->mixed, kept->projected, rates(weights), kept->document_begins, {},
                        kept->states, kept->y);
    if (setup_.recompute_cheap) kept->mixed.reset();
    kept->inverse_rms = kernels.ledger.allocate(Bucket::activations, DType::float32, tokens, shape_.groups);
    gate(kernels, weights, *kept);
    Tensor result = onto_residual(context, format_, kept->gated, weights[out_proj], kept->norm.x);
    if (setup_.recompute_cheap) kept->gated.reset();
    saved = std::move(kept);
    return result;
  }

  bool recomputes_forward() const override { return true; }
  Tensor take_input(Saved& saved) override { return std::move(static_cast<SavedStateSpace&>(saved).norm.x); }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedStateSpace&>(saved);
    KernelContext& kernels = context.kernels;
    const bool trains = setup_.trains(Family::dense);
    kept.dy = gather_gradient(context, dy);
    Tensor dscanned = activation(kernels, shape_.inner());
    multiply(kernels, format_,
             {.a = kept.dy,
              .b = weights[out_proj],
              .transpose_b = Transpose::yes,
              .c = dscanned,
              .gradient = GradientFactor::a});
    // The weight gradient alone reads `gated`.
    if (trains && setup_.recompute_cheap) gate(kernels, weights, kept);
    if (!trains) kept.gated.reset();
    backward_of_tokens(kernels, weights, std::move(dscanned), kept);

    Tensor partial = activation(kernels, setup_.model.hidden_size);
    multiply(kernels, format_,
             {.a = kept.dprojected, .b = projection(weights), .c = partial, .gradient = GradientFactor::a});
    if (!trains) {
      for (Tensor* tensor :
           {&kept.norm.normed, &kept.dprojected, &kept.dfilter, &kept.dbias, &kept.drates, &kept.dgated_norm}) {
        tensor->reset();
      }
    }
    Tensor dnormed = scatter_tokens(context, std::move(partial));
    auto [residual, dx] = residual_gradient(std::move(dy), kept.dy, trains);
    return norm_.backward_input(context, weights[input_norm], std::move(dnormed), residual, std::move(dx), trains,
                                kept.norm);
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedStateSpace&>(saved);
    KernelContext& kernels = context.kernels;
    require_frozen(setup_, parameters_, gradients);
    if (!setup_.trains(Family::dense)) return;
    {
      const GatheredTokens normed(context, kept.norm.normed);
      add_weight_gradient(kernels, format_, GradientFactor::a, kept.dprojected, normed.view(),
                          stacked_rows(gradients.subspan(z_proj, projections)));
    }
    add_weight_gradient(kernels, format_, GradientFactor::b, kept.gated, kept.dy, gradients[out_proj]);
    norm_.backward_weight(context, gradients[input_norm], kept.norm);
    const auto add_vector = [&](ConstTensorView own, TensorView gradient) {
      if (!gradient.empty()) add(kernels.stream, own, gradient);
    };
    add_vector(kept.dfilter, stacked_rows(gradients.subspan(x_filter, convolved)));
    add_vector(kept.dbias, stacked_rows(gradients.subspan(x_bias, convolved)));
    const StateSpaceRateGradients drates = rate_gradients(kept.drates);
    add_vector(drates.a_log, gradients[a_log]);
    add_vector(drates.d, gradients[d_skip]);
    add_vector(drates.dt_bias, gradients[step_bias]);
    add_vector(kept.dgated_norm, gradients[gated_norm]);
  }

 private:
  std::int64_t element_bytes(std::int64_t columns) const {
    return setup_.microbatch_tokens * columns * size_of(setup_.compute);
  }
  Tensor activation(KernelContext& kernels, std::int64_t columns) const {
    return kernels.ledger.allocate(Bucket::activations, setup_.compute, setup_.microbatch_tokens, columns);
  }
  Tensor vector(KernelContext& kernels, std::int64_t elements) const {
    return kernels.ledger.allocate(Bucket::activations, DType::float32, elements, 1);
  }
  static ConstTensorView projection(Weights weights) { return stacked_rows(weights.subspan(z_proj, projections)); }
  static StateSpaceRates rates(Weights weights) { return {weights[a_log], weights[d_skip], weights[step_bias]}; }
  StateSpaceRateGradients rate_gradients(Tensor& drates) const {
    const auto part = [&](std::int64_t i) { return drates.view().rows_from(i * shape_.heads, shape_.heads); };
    return {part(0), part(1), part(2)};
  }

  void mix(KernelContext& kernels, Weights weights, SavedStateSpace& kept) const {
    kept.mixed = activation(kernels, shape_.channels());
    mix_tokens_forward(kernels, shape_, kept.projected, stacked_rows(weights.subspan(x_filter, convolved)),
                       stacked_rows(weights.subspan(x_bias, convolved)), kept.document_begins, {}, kept.mixed);
  }
  // A recomputation overwrites `inverse_rms` with the same bits.
  void gate(KernelContext& kernels, Weights weights, SavedStateSpace& kept) const {
    kept.gated = activation(kernels, shape_.inner());
    gated_norm_forward(kernels, shape_, kept.y, kept.projected, weights[gated_norm],
                       static_cast<float>(setup_.model.rms_norm_eps), kept.gated, kept.inverse_rms);
  }
  // From the gradient of `gated` to that of `projected`, and to those of the vectors. The kernels compute the latter
  // together with the former, even if they are frozen.
  void backward_of_tokens(KernelContext& kernels, Weights weights, Tensor dgated, SavedStateSpace& kept) const {
    kept.dprojected = activation(kernels, shape_.columns());
    kept.dgated_norm = vector(kernels, shape_.inner());
    kept.drates = vector(kernels, 3 * shape_.heads);
    kept.dfilter = vector(kernels, shape_.channels() * shape_.filter);
    kept.dbias = vector(kernels, shape_.channels());
    gated_norm_backward(kernels, shape_, dgated, kept.y, kept.projected, weights[gated_norm], kept.inverse_rms, dgated,
                        kept.dprojected, kept.dgated_norm);
    for (Tensor* tensor : {&kept.y, &kept.inverse_rms}) tensor->reset();
    if (!kept.mixed.allocated()) mix(kernels, weights, kept);
    Tensor dmixed = activation(kernels, shape_.channels());
    scan_tokens_backward(kernels, shape_, dgated, kept.mixed, kept.projected, rates(weights), kept.document_begins,
                         kept.states, dmixed, kept.dprojected, rate_gradients(kept.drates));
    for (Tensor* tensor : {&dgated, &kept.mixed, &kept.states}) tensor->reset();
    mix_tokens_backward(kernels, shape_, dmixed, kept.projected, stacked_rows(weights.subspan(x_filter, convolved)),
                        stacked_rows(weights.subspan(x_bias, convolved)), kept.document_begins, kept.dprojected,
                        kept.dfilter, kept.dbias);
    kept.projected.reset();
  }

  PreNorm norm_;
  ProductFormat format_;
  StateSpaceShape shape_;
};

}  // namespace

StateSpaceShape state_space_shape(const ModelConfig& model, int tensor, std::int64_t sequence_length) {
  const StateSpaceConfig& config = model.state_space;
  return {.heads = config.num_heads / tensor,
          .head_dim = config.head_dim,
          .groups = config.n_groups / tensor,
          .state_size = config.state_size,
          .filter = config.conv_kernel,
          .sequence_length = sequence_length};
}

std::vector<ParameterSpec> state_space_parameters(const SegmentSetup& setup, int block) {
  const ModelConfig& model = setup.model;
  const StateSpaceConfig& config = model.state_space;
  const std::string name = fmt::format("blocks.{}.state_space", block);
  std::vector<ParameterSpec> parameters = {PreNorm(setup, name, Family::dense).parameter()};
  // Tensor parallelism splits the rows of all others.
  const auto add = [&](const char* which, std::int64_t rows, std::int64_t columns, Initializer initializer,
                       double standard_deviation, bool stacked) {
    ParameterSpec spec = whole_parameter(fmt::format("{}.{}", name, which), Family::dense, rows, columns, initializer,
                                         standard_deviation);
    spec.rows /= setup.tensor;
    spec.row_begin = spec.rows * setup.tensor_rank;
    spec.stacked = stacked;
    parameters.push_back(std::move(spec));
  };
  const std::int64_t hidden = model.hidden_size, shared = config.n_groups * config.state_size;
  const auto add_matrix = [&](const char* which, std::int64_t rows, bool stacked) {
    add(which, rows, hidden, Initializer::normal, model.initializer_range, stacked);
  };
  add_matrix("z_proj.weight", config.inner(), false);
  add_matrix("x_proj.weight", config.inner(), true);
  add_matrix("b_proj.weight", shared, true);
  add_matrix("c_proj.weight", shared, true);
  add_matrix("step_proj.weight", config.num_heads, true);
  add_matrix("out_proj.weight", config.inner(), false);
  parameters.back().transposed = true;
  // The variance of the filters is that of PyTorch's convolutions, uniform in +-1 / sqrt(taps).
  const double deviation = 1.0 / std::sqrt(3.0 * static_cast<double>(config.conv_kernel));
  const auto add_channels = [&](const char* which, std::int64_t elements, Initializer initializer) {
    const std::string x = fmt::format("x_{}", which), b = fmt::format("b_{}", which), c = fmt::format("c_{}", which);
    add(x.c_str(), config.inner() * elements, 1, initializer, deviation, false);
    add(b.c_str(), shared * elements, 1, initializer, deviation, true);
    add(c.c_str(), shared * elements, 1, initializer, deviation, true);
  };
  add_channels("filter", config.conv_kernel, Initializer::normal);
  add_channels("bias", 1, Initializer::zeros);
  add("a_log", config.num_heads, 1, Initializer::decay_logs, 0.0, false);
  add("d", config.num_heads, 1, Initializer::ones, 0.0, false);
  add("step_bias", config.num_heads, 1, Initializer::step_biases, 0.0, false);
  add("gated_norm.weight", config.inner(), 1, Initializer::ones, 0.0, false);
  return parameters;
}

std::unique_ptr<Segment> make_state_space(const SegmentSetup& setup, int block) {
  return std::make_unique<StateSpace>(setup, block);
}

}  // namespace weft
