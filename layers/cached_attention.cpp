#include "layers/kernels/attention.h"
#include "layers/mixer.h"
#include "layers/segments.h"

namespace weft {
namespace {

using enum AttentionOrder::Index;

class CachedAttention final : public ContinuedMixer {
 public:
  CachedAttention(const SegmentSetup& setup, const GenerationShape& pass, int block)
      : ContinuedMixer(setup, pass, {PartKind::attention, block}, attention_parameters(setup, block), v_proj) {}

 private:
  void mix(LayerContext& context, Weights weights, TensorView qkv, TensorView out) const override {
    KernelContext& kernels = context.kernels;
    const std::int64_t position = context.generation->position;
    // Angles of the positions of this pass.
    const RotaryOptions rotary{heads_over(pass_.tokens), setup_.model.rope_theta,
                               static_cast<float>(setup_.model.rms_norm_eps),
                               context.rotary_table.rows_from(position, pass_.tokens)};
    const auto head_norm = [&](AttentionOrder::Index index) {
      return setup_.model.qk_norm ? weights[index] : ConstTensorView();
    };
    rotary_forward(kernels, rotary, qkv, head_norm(q_norm), head_norm(k_norm), qkv);
    const TensorView cache =
        context.generation->caches.at(block()).at(0).view().rows_from(0, pass_.sequences * pass_.capacity);
    attention_cached(kernels, heads_over(pass_.capacity), position, qkv, cache, out);
  }
  HeadShape heads_over(std::int64_t sequence_length) const {
    return head_shape(setup_.model, setup_.tensor, sequence_length);
  }
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
