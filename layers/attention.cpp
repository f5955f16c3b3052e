#include "layers/kernels/attention.h"

#include "layers/context_parallel.h"
#include "layers/mixer.h"
#include "layers/segments.h"

namespace weft {
namespace {

using enum AttentionOrder::Index;

struct SavedAttention final : SavedMixer {  // `projected`: q, k and v of each token
  // q and k after rotary, with QK-norm only, whose gradient reads them before rotary; not kept if recomputed. Without
  // QK-norm q and k of `projected` are rotated in place.
  Tensor rotated;
  Tensor log_sum_exp;
  Tensor keys_values;  // of the whole sequences; with context parallelism only

  std::vector<Tensor*> offloadable() override {
    return allocated(
        {&norm.x, &norm.inverse_rms, &norm.normed, &projected, &rotated, &out, &log_sum_exp, &keys_values});
  }
};

class Attention final : public MixerSegment {
 public:
  Attention(const SegmentSetup& setup, int block)
      : MixerSegment(setup, {PartKind::attention, block}, attention_parameters(setup, block), v_proj),
        heads_(head_shape(setup.model, setup.tensor, setup.local_sequence())),
        runs_(context_runs(setup.sequence_length, setup.context, setup.context_rank)) {}

  std::int64_t activation_bytes() const override {
    const std::int64_t rotated = setup_.model.qk_norm && !recomputes_rotated() ? heads_.value_column() : 0;
    const std::int64_t sums = setup_.microbatch_tokens * heads_.query_heads * size_of(DType::float32);
    return products_.norm.activation_bytes() + products_.bytes(heads_.columns() + rotated + heads_.output_columns()) +
           sums + gathered_bytes();
  }

 private:
  std::unique_ptr<SavedMixer> new_saved() const override { return std::make_unique<SavedAttention>(); }
  // Keys and values of whole sequences.
  std::int64_t gathered_bytes() const {
    return setup_.context > 1 ? setup_.context * products_.bytes(heads_.key_value_columns()) : 0;
  }
  std::vector<SegmentTraffic> context_traffic() const override {
    using When = SegmentTraffic::When;
    return {{When::forward, CollectiveOp::all_gather, Group::cp, 1, gathered_bytes(), false},
            {When::backward_input, CollectiveOp::reduce_scatter, Group::cp, 1, gathered_bytes(), false}};
  }

  void mix(LayerContext& context, Weights weights, SavedMixer& saved) const override {
    auto& kept = static_cast<SavedAttention&>(saved);
    KernelContext& kernels = context.kernels;
    rotate(context, weights, kept);
    kept.out = products_.activation(kernels, heads_.output_columns());
    kept.log_sum_exp = kernels.activation(DType::float32, kept.out.rows(), heads_.query_heads);
    if (setup_.context > 1) kept.keys_values = gather_keys_values(context, setup_, heads_, own_inputs(kept));
    attention_forward(kernels, whole_heads(), runs_, inputs(kept), kept.out, kept.log_sum_exp);
    if (recomputes_rotated()) kept.rotated.reset();
  }

  void unmix(LayerContext& context, Weights weights, Tensor dout, SavedMixer& saved) const override {
    auto& kept = static_cast<SavedAttention&>(saved);
    KernelContext& kernels = context.kernels;
    if (recomputes_rotated()) rotate(context, weights, kept);
    kept.dprojected = products_.activation(kernels, heads_.columns());
    if (setup_.context > 1) {
      Tensor gradients = kernels.activation(setup_.compute, kept.keys_values.rows(), heads_.key_value_columns());
      attention_backward(kernels, whole_heads(), runs_, dout, inputs(kept), kept.out, kept.log_sum_exp,
                         parted_heads(heads_, kept.dprojected.view(), gradients.view()));
      scatter_keys_values(context, setup_, gradients, kept.dprojected);
    } else {
      attention_backward(kernels, heads_, runs_, dout, inputs(kept), kept.out, kept.log_sum_exp,
                         fused_heads(heads_, kept.dprojected.view()));
    }
    if (!setup_.model.qk_norm) kept.projected.reset();
    for (Tensor* tensor : {&dout, &kept.rotated, &kept.log_sum_exp, &kept.keys_values}) tensor->reset();
    TensorView dq_norm, dk_norm;
    // The kernel computes these together with the gradient of its input, even if they are frozen.
    if (setup_.model.qk_norm) {
      for (TensorView* gradient : {&dq_norm, &dk_norm}) {
        *gradient = kept.dvectors.emplace_back(kernels.activation(DType::float32, heads_.head_dim, 1));
      }
    }
    rotary_backward(kernels, rotary(context), kept.projected, head_norm(weights, q_norm), head_norm(weights, k_norm),
                    kept.dprojected, dq_norm, dk_norm);
    kept.projected.reset();
  }

  bool recomputes_rotated() const { return setup_.recompute_cheap && setup_.model.qk_norm; }
  void rotate(LayerContext& context, Weights weights, SavedAttention& kept) const {
    if (setup_.model.qk_norm) kept.rotated = products_.activation(context.kernels, heads_.value_column());
    rotary_forward(context.kernels, rotary(context), kept.projected, head_norm(weights, q_norm),
                   head_norm(weights, k_norm), setup_.model.qk_norm ? kept.rotated : kept.projected);
  }
  AttentionInputs own_inputs(const SavedAttention& kept) const {
    AttentionInputs own(fused_heads(heads_, ConstTensorView(kept.projected)), kept.document_begins);
    if (setup_.model.qk_norm) own.q.rows = own.k.rows = kept.rotated;
    return own;
  }
  // Keys and values of whole sequences.
  AttentionInputs inputs(const SavedAttention& kept) const {
    const AttentionInputs own = own_inputs(kept);
    if (setup_.context == 1) return own;
    return {parted_heads(heads_, own.q.rows, ConstTensorView(kept.keys_values)), kept.document_begins};
  }
  RotaryOptions rotary(const LayerContext& context) const {
    return {heads_, setup_.model.rope_theta, static_cast<float>(setup_.model.rms_norm_eps), context.rotary_table};
  }
  // For whole sequences, after keys and values have been gathered.
  HeadShape whole_heads() const { return head_shape(setup_.model, setup_.tensor, setup_.sequence_length); }
  ConstTensorView head_norm(Weights weights, AttentionOrder::Index index) const {
    return setup_.model.qk_norm ? weights[index] : ConstTensorView();
  }

  HeadShape heads_;          // sequence_length is this context rank's part
  std::vector<Range> runs_;  // positions of this rank's queries
};

}  // namespace

HeadShape head_shape(const ModelConfig& model, int tensor, std::int64_t sequence_length) {
  return {.query_heads = model.num_attention_heads / tensor,
          .key_value_heads = model.num_key_value_heads / tensor,
          .head_dim = model.head_dim,
          .sequence_length = sequence_length,
          .first_key = {.window = model.sliding_window}};
}

std::vector<ParameterSpec> attention_parameters(const SegmentSetup& setup, int block) {
  const ModelConfig& model = setup.model;
  const std::string name = fmt::format("blocks.{}.attention", block);
  const auto split_rows = [&](const char* which, std::int64_t heads, bool transposed) {
    ParameterSpec spec =
        whole_parameter(fmt::format("{}.{}.weight", name, which), Family::dense, heads * model.head_dim,
                        model.hidden_size, Initializer::normal, model.initializer_range);
    spec.rows /= setup.tensor;
    spec.row_begin = spec.rows * setup.tensor_rank;
    spec.transposed = transposed;
    spec.stacked = std::string_view(which) == "k_proj" || std::string_view(which) == "v_proj";
    return spec;
  };
  std::vector<ParameterSpec> parameters = {
      PreNorm(setup, name, Family::dense).parameter(), split_rows("q_proj", model.num_attention_heads, false),
      split_rows("k_proj", model.num_key_value_heads, false), split_rows("v_proj", model.num_key_value_heads, false),
      split_rows("o_proj", model.num_attention_heads, true)};
  if (!model.qk_norm) return parameters;
  for (const char* which : {"q_norm", "k_norm"}) {
    ParameterSpec head_norm =
        whole_parameter(fmt::format("{}.{}.weight", name, which), Family::dense, model.head_dim, 1, Initializer::ones);
    head_norm.tensor_replicated = true;
    parameters.push_back(head_norm);
  }
  return parameters;
}

std::unique_ptr<Segment> make_attention(const SegmentSetup& setup, int block) {
  return std::make_unique<Attention>(setup, block);
}

}  // namespace weft
