#include "layers/kernels/state_space.h"

#include <cmath>

#include "layers/mixer.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

using enum StateSpaceOrder::Index;

ConstTensorView convolution_filter(Weights weights) {
  return stacked_rows(weights.subspan(x_filter, 3));
}
ConstTensorView convolution_bias(Weights weights) {
  return stacked_rows(weights.subspan(x_bias, 3));
}
StateSpaceRates state_space_rates(Weights weights) {
  return {weights[a_log], weights[d_skip], weights[step_bias]};
}

// `out` is gated, and not kept if it is recomputed, like `mixed`.
struct SavedStateSpace final : SavedMixer {
  Tensor mixed, y, inverse_rms;

  std::vector<Tensor*> offloadable() override {
    return allocated({&norm.x, &norm.inverse_rms, &norm.normed, &projected, &mixed, &y, &out, &inverse_rms});
  }
};

class StateSpace final : public MixerSegment {
 public:
  StateSpace(const SegmentSetup& setup, int block)
      : MixerSegment(setup, {PartKind::state_space, block}, state_space_parameters(setup, block), step_proj),
        shape_(state_space_shape(setup.model, setup.tensor, setup.sequence_length)) {
    require(setup.context == 1, "a state space has whole sequences");
  }

  std::int64_t activation_bytes() const override {
    const std::int64_t cheap = setup_.recompute_cheap ? 0 : shape_.channels() + shape_.inner();
    return products_.norm.activation_bytes() + products_.bytes(shape_.columns() + shape_.inner() + cheap) +
           setup_.microbatch_tokens * shape_.groups * size_of(DType::float32);
  }

 private:
  std::unique_ptr<SavedMixer> new_saved() const override { return std::make_unique<SavedStateSpace>(); }

  void mix(LayerContext& context, Weights weights, SavedMixer& saved) const override {
    auto& kept = static_cast<SavedStateSpace&>(saved);
    KernelContext& kernels = context.kernels;
    const std::int64_t tokens = setup_.microbatch_tokens;
    convolve(kernels, weights, kept);
    kept.y = products_.activation(kernels, shape_.inner());
    scan_tokens_forward(kernels, shape_, kept.mixed, kept.projected, state_space_rates(weights), kept.document_begins,
                        {}, kept.y);
    if (setup_.recompute_cheap) kept.mixed.reset();
    kept.inverse_rms = kernels.ledger.allocate(Bucket::activations, DType::float32, tokens, shape_.groups);
    gate(kernels, weights, kept);
  }
  void end_forward(SavedMixer& saved) const override {
    if (setup_.recompute_cheap) saved.out.reset();
  }

  // The kernels compute the gradients of vectors together with those of `projected`, even if they are frozen.
  void unmix(LayerContext& context, Weights weights, Tensor dout, SavedMixer& saved) const override {
    auto& kept = static_cast<SavedStateSpace&>(saved);
    KernelContext& kernels = context.kernels;
    const bool trains = setup_.trains(Family::dense);
    // The weight gradient alone reads `out`.
    if (trains && setup_.recompute_cheap) gate(kernels, weights, kept);
    if (!trains) kept.out.reset();
    kept.dprojected = products_.activation(kernels, shape_.columns());
    std::vector<TensorView> gradients;
    for (const std::int64_t elements : {shape_.channels() * shape_.filter, shape_.channels(), shape_.heads,
                                        shape_.heads, shape_.heads, shape_.inner()}) {
      gradients.push_back(kept.dvectors.emplace_back(vector(kernels, elements)));
    }
    gated_norm_backward(kernels, shape_, dout, kept.y, kept.projected, weights[gated_norm], kept.inverse_rms, dout,
                        kept.dprojected, gradients[5]);
    for (Tensor* tensor : {&kept.y, &kept.inverse_rms}) tensor->reset();
    if (!kept.mixed.allocated()) convolve(kernels, weights, kept);
    Tensor dmixed = products_.activation(kernels, shape_.channels());
    scan_tokens_backward(kernels, shape_, dout, kept.mixed, kept.projected, state_space_rates(weights),
                         kept.document_begins, dmixed, kept.dprojected, {gradients[2], gradients[3], gradients[4]});
    for (Tensor* tensor : {&dout, &kept.mixed}) tensor->reset();
    mix_tokens_backward(kernels, shape_, dmixed, kept.projected, convolution_filter(weights), convolution_bias(weights),
                        kept.document_begins, kept.dprojected, gradients[0], gradients[1]);
    kept.projected.reset();
  }

  void convolve(KernelContext& kernels, Weights weights, SavedStateSpace& kept) const {
    kept.mixed = products_.activation(kernels, shape_.channels());
    mix_tokens_forward(kernels, shape_, kept.projected, convolution_filter(weights), convolution_bias(weights),
                       kept.document_begins, {}, kept.mixed);
  }
  // A recomputation overwrites `inverse_rms` with the same bits.
  void gate(KernelContext& kernels, Weights weights, SavedStateSpace& kept) const {
    kept.out = products_.activation(kernels, shape_.inner());
    gated_norm_forward(kernels, shape_, kept.y, kept.projected, weights[gated_norm],
                       static_cast<float>(setup_.model.rms_norm_eps), kept.out, kept.inverse_rms);
  }

  StateSpaceShape shape_;
};

// During text generation: goes on from the state and the inputs that the last tokens left.
class ContinuedStateSpace final : public ContinuedMixer {
 public:
  ContinuedStateSpace(const SegmentSetup& setup, const GenerationShape& pass, int block)
      : ContinuedMixer(setup, pass, {PartKind::state_space, block}, state_space_parameters(setup, block), step_proj),
        shape_(state_space_shape(setup.model, setup.tensor, pass.tokens)) {}

 private:
  std::int64_t mixing_bytes() const override {
    return pass_.rows() *
           ((shape_.channels() + shape_.inner()) * size_of(setup_.compute) + shape_.groups * size_of(DType::float32));
  }
  // A text begins with caches of zero.
  void mix(LayerContext& context, Weights weights, TensorView projected, TensorView out) const override {
    KernelContext& kernels = context.kernels;
    const auto activation = [&](DType dtype, std::int64_t rows, std::int64_t columns) {
      return kernels.ledger.allocate(Bucket::activations, dtype, rows, columns);
    };
    std::vector<Tensor>& caches = context.generation->caches.at(block());
    const TensorView carried = caches.at(0).view().rows_from(0, pass_.sequences * shape_.inner());
    const TensorView history = caches.at(1).view().rows_from(0, pass_.sequences * (shape_.filter - 1));
    if (context.generation->position == 0) {
      for (const TensorView cache : {carried, history}) fill(kernels.stream, cache, 0.0f);
    }
    const std::int64_t rows = pass_.rows();
    Tensor mixed = activation(setup_.compute, rows, shape_.channels());
    mix_tokens_forward(kernels, shape_, projected, convolution_filter(weights), convolution_bias(weights), {}, history,
                       mixed);
    Tensor y = activation(setup_.compute, rows, shape_.inner());
    scan_tokens_forward(kernels, shape_, mixed, projected, state_space_rates(weights), {}, carried, y);
    Tensor inverse_rms = activation(DType::float32, rows, shape_.groups);
    gated_norm_forward(kernels, shape_, y, projected, weights[gated_norm],
                       static_cast<float>(setup_.model.rms_norm_eps), out, inverse_rms);
  }

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

std::unique_ptr<Segment> make_continued_state_space(const SegmentSetup& setup, const GenerationShape& shape,
                                                    int block) {
  return std::make_unique<ContinuedStateSpace>(setup, shape, block);
}

}  // namespace weft
