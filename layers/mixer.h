// The frame of a mixer, the part of a block in which tokens meet: x + out_proj(mix(project(norm(x)))). The frame does
// the norm, both products, the residual connection and their gradients. A mixer adds what happens between the products.
// Tensor ranks split the rows of all matrices.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "layers/generation.h"
#include "layers/pre_norm.h"
#include "layers/segment.h"

namespace weft {

// The products of a mixer. Its parameters are in order: the norm's weight, the matrices of the first product, out_proj,
// and vectors of the mixer.
struct MixerProducts {
  const SegmentSetup& setup;  // of the segment that has these
  PreNorm norm;
  std::size_t projections;  // matrices of the first product, which touch in memory

  std::size_t out_proj() const { return projections + 1; }
  ConstTensorView projection(Weights weights) const;
  // project(norm(x)) of all tokens, [microbatch tokens, rows of the projection]. x [slice tokens, hidden] stays in
  // `kept`.
  Tensor project(LayerContext& context, Weights weights, Tensor x, PreNorm::Kept& kept) const;
  Tensor activation(KernelContext& kernels, std::int64_t columns) const;  // of all tokens, in the compute dtype
  std::int64_t bytes(std::int64_t columns) const;                         // of such activations
};

// A mixer derives its own from it.
struct SavedMixer : Saved {
  PreNorm::Kept norm;
  // All tokens, heads of this rank: the results of the first product and of mixing.
  Tensor projected, out;
  Tensor dprojected, dy;  // from input gradient to weight gradient; dy of all tokens
  // Gradients of the vectors in the order of the parameters, float32, until the weight gradient. Adjacent parameters
  // may have one together.
  std::vector<Tensor> dvectors;
  ConstTensorView document_begins;  // of the tokens that are mixed
};

class MixerSegment : public Segment {
 public:
  std::int64_t offload_bytes() const final { return activation_bytes(); }
  std::int64_t pending_bytes() const final;
  std::vector<SegmentTraffic> traffic() const final;
  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) final;
  bool recomputes_forward() const final { return true; }
  Tensor take_input(Saved& saved) final { return std::move(static_cast<SavedMixer&>(saved).norm.x); }
  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) final;
  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) final;

 protected:
  MixerSegment(const SegmentSetup& setup, ModelPart part, std::vector<ParameterSpec> parameters,
               std::size_t projections);

  virtual std::unique_ptr<SavedMixer> new_saved() const = 0;
  // Sets `out` from `projected`.
  virtual void mix(LayerContext& context, Weights weights, SavedMixer& saved) const = 0;
  // After the last use of `out` in the forward.
  virtual void end_forward(SavedMixer&) const {}
  // Sets `dprojected` and `dvectors` from the gradient of `out`, and leaves `out` for the weight gradient.
  virtual void unmix(LayerContext& context, Weights weights, Tensor dout, SavedMixer& saved) const = 0;
  // Of the context group, with several ranks.
  virtual std::vector<SegmentTraffic> context_traffic() const = 0;

  const MixerProducts products_;
};

// A mixer during text generation: goes on from what it kept of earlier tokens in GenerationState::caches.
class ContinuedMixer : public ForwardSegment {
 public:
  std::int64_t activation_bytes() const final;  // without the caches, which exist all the time
  std::vector<SegmentTraffic> traffic() const final;
  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) final;

 protected:
  ContinuedMixer(const SegmentSetup& setup, const GenerationShape& pass, ModelPart part,
                 std::vector<ParameterSpec> parameters, std::size_t projections);

  // From `projected` to `out`, both with the rows of the pass, and from the caches onto them. May overwrite
  // `projected`.
  virtual void mix(LayerContext& context, Weights weights, TensorView projected, TensorView out) const = 0;
  virtual std::int64_t mixing_bytes() const { return 0; }  // of activations inside mix()

  const GenerationShape pass_;
  const MixerProducts products_;
};

}  // namespace weft
