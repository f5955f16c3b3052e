#include "layers/kernels/state_space.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "layers/context_parallel.h"
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

// The gates stay with the tokens of a context rank.
StateSpaceShape gated_shape(const SegmentSetup& setup, StateSpaceShape shape) {
  if (setup.context > 1) shape.projected = ProjectedColumns::gates;
  return shape;
}
// A context rank scans whole sequences for a part of the heads, and of the groups unless several ranks share one.
StateSpaceShape scanned_shape(const SegmentSetup& setup, StateSpaceShape shape) {
  shape.sequence_length = setup.sequence_length;
  if (setup.context == 1) return shape;
  shape.heads /= setup.context;
  shape.groups = std::max<std::int64_t>(shape.groups / setup.context, 1);
  shape.projected = ProjectedColumns::scanned;
  return shape;
}

// `out` is gated, and not kept if it is recomputed, like `mixed`. With context parallelism `projected` has the gates
// alone after the exchange.
struct SavedStateSpace final : SavedMixer {
  Tensor mixed, y, inverse_rms;
  Tensor pieces, begins;  // of whole sequences, with context parallelism only: x, B, C and steps; begins of documents

  std::vector<Tensor*> offloadable() override {
    return allocated(
        {&norm.x, &norm.inverse_rms, &norm.normed, &projected, &mixed, &y, &out, &inverse_rms, &pieces, &begins});
  }
  ConstTensorView scanned() const { return pieces.allocated() ? pieces : projected; }
  ConstTensorView scanned_begins() const { return begins.allocated() ? begins.view() : document_begins; }
};

class StateSpace final : public MixerSegment {
 public:
  StateSpace(const SegmentSetup& setup, int block)
      : MixerSegment(setup, {PartKind::state_space, block}, state_space_parameters(setup, block), step_proj),
        shape_(state_space_shape(setup.model, setup.tensor, setup.local_sequence())),
        gated_(gated_shape(setup, shape_)),
        scanned_(scanned_shape(setup, shape_)),
        x_{0, shape_.inner(), setup.context},
        scan_parts_{
            ColumnPieces{shape_.x_column(), shape_.inner(), setup.context},
            {shape_.x_column() + shape_.inner(), shape_.group_columns(), shared_pieces()},
            {shape_.x_column() + shape_.inner() + shape_.group_columns(), shape_.group_columns(), shared_pieces()},
            {shape_.step_column(), shape_.heads, setup.context}} {}

  std::int64_t activation_bytes() const override {
    const std::int64_t gated = setup_.recompute_cheap ? 0 : shape_.inner();
    std::int64_t whole = setup_.recompute_cheap ? 0 : scanned_.channels();
    if (setup_.context > 1) whole += scanned_.columns();
    return products_.norm.activation_bytes() + products_.bytes(gated_.columns() + shape_.inner() + gated) +
           setup_.context_tokens() * whole * size_of(setup_.compute) + begins_bytes() +
           setup_.microbatch_tokens * shape_.groups * size_of(DType::float32);
  }

 private:
  std::int64_t shared_pieces() const { return std::min<std::int64_t>(shape_.groups, setup_.context); }
  // Begins of documents in whole sequences.
  std::int64_t begins_bytes() const {
    const bool gathered = setup_.context > 1 && setup_.masks_documents;
    return gathered ? setup_.context_tokens() * size_of(DType::int32) : 0;
  }
  std::vector<SegmentTraffic> context_traffic() const override {
    std::vector<SegmentTraffic> traffic;
    for (const auto when : {SegmentTraffic::When::forward, SegmentTraffic::When::backward_input}) {
      traffic.push_back(piece_traffic(setup_, when, scan_parts_));
      traffic.push_back(piece_traffic(setup_, when, {&x_, 1}));
    }
    if (begins_bytes() > 0) {
      traffic.push_back({SegmentTraffic::When::forward, CollectiveOp::all_gather, Group::cp, 1, begins_bytes(), false});
    }
    return traffic;
  }

  std::unique_ptr<SavedMixer> new_saved() const override { return std::make_unique<SavedStateSpace>(); }

  void mix(LayerContext& context, Weights weights, SavedMixer& saved) const override {
    auto& kept = static_cast<SavedStateSpace&>(saved);
    KernelContext& kernels = context.kernels;
    if (setup_.context > 1) {
      kept.pieces = gather_pieces(context, setup_, scan_parts_, kept.projected);
      Tensor gates = products_.activation(kernels, gated_.columns());
      copy_columns(kernels.stream, kept.projected, 0, gates, 0, gates.columns());
      kept.projected = std::move(gates);
      if (setup_.masks_documents) kept.begins = gather_numbers(context, setup_, kept.document_begins);
    }
    convolve(kernels, weights, kept);
    Tensor y = whole(kernels, scanned_.inner());
    scan_tokens_forward(kernels, scanned_, kept.mixed, kept.scanned(), own_rates(weights), kept.scanned_begins(), {},
                        y);
    if (setup_.recompute_cheap) kept.mixed.reset();
    if (setup_.context > 1) {
      kept.y = products_.activation(kernels, shape_.inner());
      return_pieces(context, setup_, {&x_, 1}, std::move(y), kept.y);
    } else {
      kept.y = std::move(y);
    }
    kept.inverse_rms = kernels.activation(DType::float32, setup_.microbatch_tokens, shape_.groups);
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
      gradients.push_back(kept.dvectors.emplace_back(kernels.activation(DType::float32, elements, 1)));
    }
    Tensor dgates;
    if (setup_.context > 1) dgates = products_.activation(kernels, gated_.columns());
    gated_norm_backward(kernels, gated_, dout, kept.y, kept.projected, weights[gated_norm], kept.inverse_rms, dout,
                        dgates.allocated() ? dgates : kept.dprojected, gradients[5]);
    for (Tensor* tensor : {&kept.y, &kept.inverse_rms}) tensor->reset();
    if (setup_.context > 1) {
      copy_columns(kernels.stream, dgates, 0, kept.dprojected, 0, dgates.columns());
      for (Tensor* tensor : {&kept.projected, &dgates}) tensor->reset();
      dout = gather_pieces(context, setup_, {&x_, 1}, dout);
      for (const TensorView gradient : std::span(gradients).first(5)) fill(kernels.stream, gradient, 0.0f);
    }
    if (!kept.mixed.allocated()) convolve(kernels, weights, kept);
    Tensor dpieces;
    if (setup_.context > 1) dpieces = whole(kernels, scanned_.columns());
    const TensorView dscanned = dpieces.allocated() ? dpieces : kept.dprojected;
    Tensor dmixed = whole(kernels, scanned_.channels());
    scan_tokens_backward(kernels, scanned_, dout, kept.mixed, kept.scanned(), own_rates(weights), kept.scanned_begins(),
                         dmixed, dscanned, {own_heads(gradients[2]), own_heads(gradients[3]), own_heads(gradients[4])});
    for (Tensor* tensor : {&dout, &kept.mixed}) tensor->reset();
    convolve_backward(kernels, weights, kept, dmixed, dscanned, gradients[0], gradients[1]);
    for (Tensor* tensor : {&dmixed, &kept.projected, &kept.pieces, &kept.begins}) tensor->reset();
    if (setup_.context > 1) return_pieces(context, setup_, scan_parts_, std::move(dpieces), kept.dprojected);
  }

  void convolve(KernelContext& kernels, Weights weights, SavedStateSpace& kept) const {
    const OwnChannels filter = own_channels(kernels, convolution_filter(weights));
    const OwnChannels bias = own_channels(kernels, convolution_bias(weights));
    kept.mixed = whole(kernels, scanned_.channels());
    mix_tokens_forward(kernels, scanned_, kept.scanned(), filter.view, bias.view, kept.scanned_begins(), {},
                       kept.mixed);
  }
  void convolve_backward(KernelContext& kernels, Weights weights, const SavedStateSpace& kept, ConstTensorView dmixed,
                         TensorView dscanned, TensorView dfilter, TensorView dbias) const {
    const OwnChannels filter = own_channels(kernels, convolution_filter(weights));
    const OwnChannels bias = own_channels(kernels, convolution_bias(weights));
    if (setup_.context == 1) {
      mix_tokens_backward(kernels, scanned_, dmixed, kept.scanned(), filter.view, bias.view, kept.scanned_begins(),
                          dscanned, dfilter, dbias);
      return;
    }
    Tensor own_dfilter = kernels.activation(DType::float32, filter.view.rows(), 1);
    Tensor own_dbias = kernels.activation(DType::float32, bias.view.rows(), 1);
    mix_tokens_backward(kernels, scanned_, dmixed, kept.scanned(), filter.view, bias.view, kept.scanned_begins(),
                        dscanned, own_dfilter, own_dbias);
    for (const auto& [own, all] : {std::pair(own_dfilter.view(), dfilter), std::pair(own_dbias.view(), dbias)}) {
      for (const auto& [at_all, at_own, rows] : channel_runs(all.rows())) {
        cast(kernels.stream, own.rows_from(at_own, rows), all.rows_from(at_all, rows));
      }
    }
  }

  // Weights of the channels of this context rank.
  struct OwnChannels {
    Tensor storage;
    ConstTensorView view;
  };
  OwnChannels own_channels(KernelContext& kernels, ConstTensorView all) const {
    if (setup_.context == 1) return {{}, all};
    const std::int64_t own_rows = all.rows() / shape_.channels() * scanned_.channels();
    OwnChannels own{kernels.activation(all.dtype(), own_rows, 1), {}};
    for (const auto& [at_all, at_own, rows] : channel_runs(all.rows())) {
      cast(kernels.stream, all.rows_from(at_all, rows), own.storage.view().rows_from(at_own, rows));
    }
    own.view = own.storage;
    return own;
  }
  // Runs of this rank's channels in so many rows for all channels x, B and C, and in its own rows.
  struct ChannelRun {
    std::int64_t all, own, rows;
  };
  std::vector<ChannelRun> channel_runs(std::int64_t all_rows) const {
    const std::int64_t rows_of_channel = all_rows / shape_.channels();
    std::vector<ChannelRun> runs;
    std::int64_t all = 0, own = 0;
    for (const ColumnPieces& part : std::span(scan_parts_).first(3)) {
      const std::int64_t begin = all + part.begin(setup_.context_rank, setup_.context);
      runs.push_back({begin * rows_of_channel, own * rows_of_channel, part.width() * rows_of_channel});
      all += part.columns;
      own += part.width();
    }
    return runs;
  }
  // Of vectors with an element for each head.
  template <typename View>
  View own_heads(View all) const {
    return all.rows_from(setup_.context_rank * scanned_.heads, scanned_.heads);
  }
  StateSpaceRates own_rates(Weights weights) const {
    const StateSpaceRates all = state_space_rates(weights);
    return {own_heads(all.a_log), own_heads(all.d), own_heads(all.dt_bias)};
  }
  // Of whole sequences, in the compute dtype.
  Tensor whole(KernelContext& kernels, std::int64_t columns) const {
    return kernels.activation(setup_.compute, setup_.context_tokens(), columns);
  }

  // A recomputation overwrites `inverse_rms` with the same bits.
  void gate(KernelContext& kernels, Weights weights, SavedStateSpace& kept) const {
    kept.out = products_.activation(kernels, shape_.inner());
    gated_norm_forward(kernels, gated_, kept.y, kept.projected, weights[gated_norm],
                       static_cast<float>(setup_.model.rms_norm_eps), kept.out, kept.inverse_rms);
  }

  const StateSpaceShape shape_;                   // of this rank's tokens
  const StateSpaceShape gated_;                   // of these behind the scan
  const StateSpaceShape scanned_;                 // of the sequences and heads that it scans
  const ColumnPieces x_;                          // of the scan's result
  const std::array<ColumnPieces, 4> scan_parts_;  // x, B, C and steps of projected tokens
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
    std::vector<Tensor>& caches = context.generation->caches.at(block());
    const TensorView carried = caches.at(0).view().rows_from(0, pass_.sequences * shape_.inner());
    const TensorView history = caches.at(1).view().rows_from(0, pass_.sequences * (shape_.filter - 1));
    if (context.generation->position == 0) {
      for (const TensorView cache : {carried, history}) fill(kernels.stream, cache, 0.0f);
    }
    const std::int64_t rows = pass_.rows();
    Tensor mixed = kernels.activation(setup_.compute, rows, shape_.channels());
    mix_tokens_forward(kernels, shape_, projected, convolution_filter(weights), convolution_bias(weights), {}, history,
                       mixed);
    Tensor y = kernels.activation(setup_.compute, rows, shape_.inner());
    scan_tokens_forward(kernels, shape_, mixed, projected, state_space_rates(weights), {}, carried, y);
    Tensor inverse_rms = kernels.activation(DType::float32, rows, shape_.groups);
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
