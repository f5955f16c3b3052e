#include "layers/segments.h"

#include "layers/context_parallel.h"
#include "layers/kernels/attention.h"
#include "layers/kernels/multiply.h"
#include "layers/pre_norm.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

using enum AttentionOrder::Index;

struct SavedAttention final : Saved {
  PreNorm::Kept norm;
  // All tokens, heads of this rank. `rotated`: q and k after rotary, with QK-norm only, whose gradient reads them
  // before rotary; not kept if recomputed. Without QK-norm q and k of `qkv` are rotated in place.
  Tensor qkv, rotated;
  Tensor out, log_sum_exp;
  Tensor keys_values;  // of the whole sequences; with context parallelism only
  Tensor dqkv, dy;     // from input gradient to weight gradient; dy of all tokens
  Tensor dq_norm, dk_norm;
  ConstTensorView document_begins;  // of the microbatch's text

  std::vector<Tensor*> offloadable() override {
    return allocated({&norm.x, &norm.inverse_rms, &norm.normed, &qkv, &rotated, &out, &log_sum_exp, &keys_values});
  }
};

class Attention final : public Segment {
 public:
  Attention(const SegmentSetup& setup, int block)
      : Segment(setup, {PartKind::attention, block}),
        norm_(setup, name(), Family::dense),
        format_(setup.format_of(Family::dense)),
        heads_(head_shape(setup.model, setup.tensor, setup.local_sequence())),
        runs_(context_runs(setup.sequence_length, setup.context, setup.context_rank)) {
    parameters_ = attention_parameters(setup, block);
  }

  std::int64_t activation_bytes() const override {
    const std::int64_t element = size_of(setup_.compute);
    const std::int64_t rotated = setup_.model.qk_norm && !recomputes_rotated() ? heads_.value_column() : 0;
    const std::int64_t per_token = (heads_.columns() + rotated) * element + heads_.output_columns() * element +
                                   heads_.query_heads * size_of(DType::float32);
    const std::int64_t gathered =
        setup_.context > 1 ? setup_.context * setup_.microbatch_tokens * heads_.key_value_columns() * element : 0;
    return norm_.activation_bytes() + setup_.microbatch_tokens * per_token + gathered;
  }
  std::int64_t offload_bytes() const override { return activation_bytes(); }
  std::int64_t pending_bytes() const override {
    if (!setup_.trains(Family::dense)) return 0;
    // dqkv, out and dy.
    const std::int64_t columns = heads_.columns() + heads_.output_columns() + setup_.model.hidden_size;
    const std::int64_t head_norms = setup_.model.qk_norm ? 2 * heads_.head_dim * size_of(DType::float32) : 0;
    return norm_.pending_bytes(true) + setup_.microbatch_tokens * columns * size_of(setup_.compute) + head_norms;
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    const bool shared = setup_.context > 1;
    const std::int64_t keys_values =
        shared ? setup_.context * setup_.microbatch_tokens * heads_.key_value_columns() * size_of(setup_.compute) : 0;
    return {gather_traffic(setup_, When::forward, setup_.compute),
            {When::forward, CollectiveOp::all_gather, Group::cp, shared ? 1 : 0, keys_values, false},
            scatter_traffic(setup_, When::forward, setup_.compute),
            gather_traffic(setup_, When::backward_input, setup_.compute),
            {When::backward_input, CollectiveOp::reduce_scatter, Group::cp, shared ? 1 : 0, keys_values, false},
            scatter_traffic(setup_, When::backward_input, setup_.compute),
            weight_gather_traffic(setup_, Family::dense, setup_.compute)};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    KernelContext& kernels = context.kernels;
    auto kept = std::make_unique<SavedAttention>();
    kept->document_begins = input.document_begins;
    const std::int64_t tokens = setup_.microbatch_tokens;
    norm_.forward(context, weights[norm_weight], std::move(x), kept->norm);

    kept->qkv = activation(kernels, tokens, heads_.columns());
    {
      const GatheredTokens normed(context, kept->norm.normed);
      multiply(kernels, format_,
               {.a = normed.view(),
                .b = stacked_rows(weights.subspan(q_proj, 3)),
                .transpose_b = Transpose::yes,
                .c = kept->qkv});
    }
    norm_.end_forward(kept->norm);
    rotate(context, weights, *kept);

    kept->out = activation(kernels, tokens, heads_.output_columns());
    kept->log_sum_exp = kernels.ledger.allocate(Bucket::activations, DType::float32, tokens, heads_.query_heads);
    if (setup_.context > 1) {
      const AttentionInputs own = own_inputs(*kept);
      kept->keys_values = gather_keys_values(context, setup_, heads_, own);
    }
    attention_forward(kernels, whole_heads(), runs_, inputs(*kept), kept->out, kept->log_sum_exp);

    if (recomputes_rotated()) kept->rotated.reset();
    Tensor y = onto_residual(context, format_, kept->out, weights[o_proj], kept->norm.x);
    saved = std::move(kept);
    return y;
  }

  bool recomputes_forward() const override { return true; }
  Tensor take_input(Saved& saved) override { return std::move(static_cast<SavedAttention&>(saved).norm.x); }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedAttention&>(saved);
    KernelContext& kernels = context.kernels;
    const std::int64_t tokens = setup_.microbatch_tokens;
    kept.dy = gather_gradient(context, dy);

    Tensor dout = activation(kernels, tokens, kept.out.columns());
    multiply(
        kernels, format_,
        {.a = kept.dy, .b = weights[o_proj], .transpose_b = Transpose::yes, .c = dout, .gradient = GradientFactor::a});
    if (recomputes_rotated()) rotate(context, weights, kept);
    kept.dqkv = activation(kernels, tokens, heads_.columns());
    if (setup_.context > 1) {
      Tensor gradients = activation(kernels, kept.keys_values.rows(), heads_.key_value_columns());
      attention_backward(kernels, whole_heads(), runs_, dout, inputs(kept), kept.out, kept.log_sum_exp,
                         parted_heads(heads_, kept.dqkv.view(), gradients.view()));
      scatter_keys_values(context, setup_, gradients, kept.dqkv);
    } else {
      attention_backward(kernels, heads_, runs_, dout, inputs(kept), kept.out, kept.log_sum_exp,
                         fused_heads(heads_, kept.dqkv.view()));
    }
    if (!setup_.model.qk_norm) kept.qkv.reset();
    for (Tensor* tensor : {&dout, &kept.rotated, &kept.log_sum_exp, &kept.keys_values}) tensor->reset();
    // The kernel computes these together with the gradient of its input, even if they are frozen.
    if (setup_.model.qk_norm) {
      for (Tensor* gradient : {&kept.dq_norm, &kept.dk_norm}) {
        *gradient = kernels.ledger.allocate(Bucket::activations, DType::float32, heads_.head_dim, 1);
      }
    }
    rotary_backward(kernels, rotary(context), kept.qkv, head_norm(weights, q_norm), head_norm(weights, k_norm),
                    kept.dqkv, kept.dq_norm, kept.dk_norm);
    kept.qkv.reset();

    Tensor partial = activation(kernels, tokens, setup_.model.hidden_size);
    multiply(
        kernels, format_,
        {.a = kept.dqkv, .b = stacked_rows(weights.subspan(q_proj, 3)), .c = partial, .gradient = GradientFactor::a});
    const bool trains = setup_.trains(Family::dense);
    if (!trains) {
      for (Tensor* tensor : {&kept.norm.normed, &kept.out, &kept.dqkv, &kept.dq_norm, &kept.dk_norm}) tensor->reset();
    }
    Tensor dnormed = scatter_tokens(context, std::move(partial));
    auto [residual, dx] = residual_gradient(std::move(dy), kept.dy, trains);
    return norm_.backward_input(context, weights[norm_weight], std::move(dnormed), residual, std::move(dx), trains,
                                kept.norm);
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedAttention&>(saved);
    KernelContext& kernels = context.kernels;
    require_frozen(setup_, parameters_, gradients);
    if (!setup_.trains(Family::dense)) return;
    {
      const GatheredTokens normed(context, kept.norm.normed);
      add_weight_gradient(kernels, format_, GradientFactor::a, kept.dqkv, normed.view(),
                          stacked_rows(gradients.subspan(q_proj, 3)));
    }
    add_weight_gradient(kernels, format_, GradientFactor::b, kept.out, kept.dy, gradients[o_proj]);
    norm_.backward_weight(context, gradients[norm_weight], kept.norm);
    if (setup_.model.qk_norm) {
      if (!gradients[q_norm].empty()) add(kernels.stream, kept.dq_norm, gradients[q_norm]);
      if (!gradients[k_norm].empty()) add(kernels.stream, kept.dk_norm, gradients[k_norm]);
    }
  }

 private:
  bool recomputes_rotated() const { return setup_.recompute_cheap && setup_.model.qk_norm; }
  void rotate(LayerContext& context, Weights weights, SavedAttention& kept) const {
    if (setup_.model.qk_norm) kept.rotated = activation(context.kernels, kept.qkv.rows(), heads_.value_column());
    rotary_forward(context.kernels, rotary(context), kept.qkv, head_norm(weights, q_norm), head_norm(weights, k_norm),
                   setup_.model.qk_norm ? kept.rotated : kept.qkv);
  }
  AttentionInputs own_inputs(const SavedAttention& kept) const {
    AttentionInputs own(fused_heads(heads_, ConstTensorView(kept.qkv)), kept.document_begins);
    if (setup_.model.qk_norm) own.q.rows = own.k.rows = kept.rotated;
    return own;
  }
  // Keys and values of whole sequences.
  AttentionInputs inputs(const SavedAttention& kept) const {
    const AttentionInputs own = own_inputs(kept);
    if (setup_.context == 1) return own;
    return {parted_heads(heads_, own.q.rows, ConstTensorView(kept.keys_values)), kept.document_begins};
  }
  Tensor activation(KernelContext& kernels, std::int64_t rows, std::int64_t columns) const {
    return kernels.ledger.allocate(Bucket::activations, setup_.compute, rows, columns);
  }
  RotaryOptions rotary(const LayerContext& context) const {
    return {heads_, setup_.model.rope_theta, static_cast<float>(setup_.model.rms_norm_eps), context.rotary_table};
  }
  // For whole sequences, after keys and values have been gathered.
  HeadShape whole_heads() const { return head_shape(setup_.model, setup_.tensor, setup_.sequence_length); }
  ConstTensorView head_norm(Weights weights, AttentionOrder::Index index) const {
    return setup_.model.qk_norm ? weights[index] : ConstTensorView();
  }

  PreNorm norm_;
  ProductFormat format_;
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
