// The router of a MoE block: float32 logits, top-k choice, auxiliary losses. Its weight (Family::routing) is replicated
// in float32, and so is its selection bias (Family::helpers), if it has one. Load-balance statistics are taken per
// sequence, as if each were a microbatch of its own. So neither the microbatch size nor the layout changes the
// objective. A model may choose the microbatch or the step so far instead (AuxiliaryLoss).
#pragma once

#include "layers/kernels/routing.h"
#include "layers/segment.h"

namespace weft {

class Router {
 public:
  Router(const SegmentSetup& setup, const std::string& name, int block);

  struct Kept {
    // Float32 copy of the input if the input is not float32; recomputed with SegmentSetup::recompute_cheap.
    Tensor input;
    Tensor logits, scores;    // [tokens, router_rows] and [tokens, pool] float32
    Tensor indices, weights;  // [tokens, choices]
    // [2 * sequences, pool] float32, summed over tensor and context groups: counts, then sums of scores; only with
    // an auxiliary loss. `sequences` is 1 for statistics of the microbatch. For the step so far: counts of all ranks,
    // or of those that share a batch, averaged to one token. Sums of scores are then this rank's.
    Tensor expert_counts;
    Tensor dlogits;  // from input gradient to weight gradient
    // Of this rank's slice, where some tokens may be padding (padding_target); otherwise empty.
    ConstTensorView targets;
    ConstTensorView noise_keys;  // of this rank's slice; empty without noise
  };

  // The weight, and the selection bias if there is one.
  std::vector<ParameterSpec> parameters() const;
  std::int64_t activation_bytes() const;
  std::int64_t pending_bytes() const;
  // Whether backward_weight reads x: false if the float32 copy is kept or the router is frozen.
  bool reads_x_for_weight() const { return setup_.trains(Family::routing) && !keeps_input(); }
  std::vector<SegmentTraffic> traffic() const;

  // x: this rank's slice, any dtype. `weights` are those of parameters(). Padding of `text` goes to no expert. Fills
  // `kept` except expert_counts.
  void forward(LayerContext& context, Weights weights, const MicrobatchInput& text, ConstTensorView x,
               Kept& kept) const;
  // `chosen` without those beyond an expert's capacity in their sequence, of which this rank may hold a part: indices
  // or no_expert, [slice tokens, choices]. Collective over tensor and context groups. Only if the model drops choices
  // (MoeConfig::drops).
  Tensor within_capacity(LayerContext& context, const Kept& kept, const Tensor& chosen) const;
  // Whether some choices may go to no expert.
  bool some_unrouted(const Kept& kept) const {
    return setup_.model.moe.drops() || setup_.model.moe.null_copies() > 0 || !kept.targets.empty();
  }
  // Fills expert_counts and reports the load-balancing loss, after the report has this microbatch's choices. Called
  // once per microbatch: a recomputed forward is given the first forward's expert_counts. Let N be the tokens in the
  // step, and C_e the choices of expert e so far on all ranks. Let p_te be the score of a token t over the sum of its
  // scores. The loss over the step so far is
  //   coefficient * E / N * sum over microbatches, ranks and their tokens t, and e of C_e / (sum of all C) * p_te,
  // which is the coefficient for equal scores, whatever padding a rank or a microbatch has.
  void balance(LayerContext& context, Kept& kept) const;
  std::int64_t balance_bytes() const;
  // dweights [tokens, choices] float32. Returns the gradient of x through the router, in the compute dtype. Reports the
  // z loss, which is computed with its gradient. Drops the tensors of `kept` that backward_weight does not read.
  Tensor backward_input(LayerContext& context, ConstTensorView weight, ConstTensorView dweights, Kept& kept) const;
  void backward_weight(LayerContext& context, const Gradient& gradient, ConstTensorView x, const Kept& kept) const;

 private:
  bool keeps_input() const { return setup_.compute != DType::float32 && !setup_.recompute_cheap; }
  // The input of the logits: x itself if it is float32 and there is no noise, otherwise a float32 copy in `storage`,
  // with the noise.
  ConstTensorView router_input(KernelContext& kernels, ConstTensorView x, ConstTensorView noise_keys,
                               Tensor& storage) const;
  void add_noise(KernelContext& kernels, ConstTensorView x, ConstTensorView noise_keys, TensorView y) const;
  bool balances() const { return setup_.model.moe.router_aux_loss_coef != 0.0; }
  bool balances_step() const { return counts_step(setup_.model.moe.aux_loss); }
  // Of the loss of one of balanced_sequences() in the mean over the step. Over the step so far: of a token's loss.
  double balance_factor(const LayerContext& context) const;
  // Sequences per microbatch as the auxiliary loss counts them, and this rank's tokens of them.
  std::int64_t balanced_sequences() const;
  TokenSlice slice() const;
  // The same for kernels: with padding, sequences are as long as the tokens that count. Over the step so far a
  // sequence stands for one token.
  TokenSlice slice(const Kept& kept) const;
  // In the text of the step, of which this is the microbatch with `number`.
  TokenPlaces places(std::int64_t number) const;
  void average_choices(LayerContext& context, TensorView counts) const;

  SegmentSetup setup_;
  std::string name_;
  int block_;
};

}  // namespace weft
