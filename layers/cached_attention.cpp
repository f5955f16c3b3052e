
#include "layers/generation.h"
#include "layers/kernels/attention.h"
#include "layers/kernels/multiply.h"
#include "layers/pre_norm.h"
#include "layers/segments.h"
#include "layers/sequence_parallel.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

using enum AttentionOrder::Index;

class CachedAttention final : public ForwardSegment {
 public:
  CachedAttention(const SegmentSetup& setup, const GenerationShape& shape, int block)
      : ForwardSegment(setup, {PartKind::attention, block}), shape_(shape), norm_(setup, name(), Family::dense) {
    parameters_ = attention_parameters(setup, block);
    require(shape.rows() <= setup.microbatch_tokens, "a pass fits its microbatch");
  }

  // Without the cache, which exists all the time.
  std::int64_t activation_bytes() const override {
    const HeadShape heads = heads_over(1);
    const std::int64_t columns = heads.columns() + heads.output_columns();
    return norm_.activation_bytes() + setup_.microbatch_tokens * columns * size_of(setup_.compute);
  }
  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    return {gather_traffic(setup_, When::forward, setup_.compute),
            scatter_traffic(setup_, When::forward, setup_.compute)};
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput&, Tensor x,
                 std::unique_ptr<Saved>&) override {
    KernelContext& kernels = context.kernels;
    require(context.generation != nullptr, "generation has a state");
    const std::int64_t position = context.generation->position, rows = shape_.rows();
    PreNorm::Kept norm;
    norm_.forward(context, weights[norm_weight], std::move(x), norm);

    Tensor qkv = activation(kernels, heads_over(1).columns());
    {
      const GatheredTokens normed(context, norm.normed);
      multiply(
          kernels, setup_.format_of(Family::dense),
          {.a = normed.view(), .b = stacked_rows(weights.subspan(q_proj, 3)), .transpose_b = Transpose::yes, .c = qkv});
    }
    // Angles of the positions of this pass. Padding rows are rotated by some of them; their results are not read.
    const RotaryOptions rotary{heads_over(shape_.tokens), setup_.model.rope_theta,
                               static_cast<float>(setup_.model.rms_norm_eps),
                               context.rotary_table.rows_from(position, shape_.tokens)};
    const auto head_norm = [&](AttentionOrder::Index index) {
      return setup_.model.qk_norm ? weights[index] : ConstTensorView();
    };
    rotary_forward(kernels, rotary, qkv, head_norm(q_norm), head_norm(k_norm), qkv);

    Tensor out = activation(kernels, rotary.heads.output_columns());
    const std::int64_t padding = out.rows() - rows;
    if (padding > 0) fill(kernels.stream, out.view().rows_from(rows, padding), 0.0f);
    const TensorView cache =
        context.generation->caches.at(block()).at(0).view().rows_from(0, shape_.sequences * shape_.capacity);
    attention_cached(kernels, heads_over(shape_.capacity), position, qkv.view().rows_from(0, rows), cache,
                     out.view().rows_from(0, rows));
    return onto_residual(context, setup_.format_of(Family::dense), out, weights[o_proj], norm.x);
  }

 private:
  HeadShape heads_over(std::int64_t sequence_length) const {
    return head_shape(setup_.model, setup_.tensor, sequence_length);
  }
  Tensor activation(KernelContext& kernels, std::int64_t columns) const {
    return kernels.ledger.allocate(Bucket::activations, setup_.compute, setup_.microbatch_tokens, columns);
  }

  GenerationShape shape_;
  PreNorm norm_;
};

}  // namespace

std::unique_ptr<Segment> make_cached_attention(const SegmentSetup& setup, const GenerationShape& shape, int block) {
  return std::make_unique<CachedAttention>(setup, shape, block);
}

std::vector<CacheSize> cache_sizes(const SegmentSetup& setup, int block, std::int64_t sequences,
                                   std::int64_t capacity) {
  switch (setup.model.blocks.at(static_cast<std::size_t>(block)).mixer) {
    case Mixer::attention:
      return {
          {setup.compute, sequences * capacity, head_shape(setup.model, setup.tensor, capacity).key_value_columns()}};
    case Mixer::state_space: {
      const StateSpaceShape shape = state_space_shape(setup.model, setup.tensor, 1);
      return {{DType::float32, sequences * shape.inner(), shape.state_size},
              {setup.compute, sequences * (shape.filter - 1), shape.channels()}};
    }
    case Mixer::none:
      break;
  }
  return {};
}

}  // namespace weft
