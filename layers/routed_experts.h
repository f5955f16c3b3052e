// The routed experts of a block, from the router's choices on. Rows go to the ranks of their experts, by way of a relay
// of tokens if the dispatch has one. The experts' products follow, and the weighted sums go back.
#pragma once

#include <memory>

#include "layers/expert_bank.h"
#include "layers/expert_exchange.h"
#include "layers/router.h"
#include "layers/token_relay.h"

namespace weft {

// Forward and input gradient have three parts each. Behind the first two, exchange() sends the rows that they made
// ready.
class RoutedExperts {
 public:
  RoutedExperts(const SegmentSetup& setup, const std::string& name, int block);

  struct Open {
    std::unique_ptr<Staging> counting;  // row counts on their way to the host
    RowsUnderWay rows, weights;         // weights: of choices, or their gradients, if they travel beside the rows
    Tensor dweights;                    // gradients of weights that do not travel
  };
  struct Kept {
    bool some_unrouted = false;  // some choices have no row
    TokenRelay::Kept relay;
    Tensor weights;  // with a relay: the router's, of the tokens that arrived
    Tensor slots;    // [tokens, choices]: position of each choice in expert order
    ExchangePlan exchange;
    ExpertBank::Kept bank;
    Tensor out;  // [rows sent, hidden], back from the experts; not kept with SegmentSetup::weights_at_experts
    Open open;   // empty but between parts
  };

  std::vector<ParameterSpec> parameters() const { return bank_.parameters(); }
  // Of a microbatch on this rank.
  struct Routed {
    std::int64_t tokens = 0;    // of which choices are sorted
    std::int64_t sent = 0;      // rows, to experts
    std::int64_t received = 0;  // rows, by this rank's experts
  };
  Routed most_routed() const { return {most_tokens(), most_sent(), bank_.bound_rows()}; }
  // With evenly routed tokens, at least.
  Routed even_routed() const;
  std::int64_t activation_bytes(const Routed& routed) const;
  std::int64_t pending_bytes(const Routed& routed) const { return bank_.pending_bytes(routed.received); }
  std::int64_t remembered_bytes(const Routed& routed) const;
  std::vector<SegmentTraffic> traffic() const;

  // The parts of `kept` that a recomputed forward reuses. It routes the tokens as before, so no count and no choice is
  // exchanged again. Nor are tokens if their rows are kept.
  Kept remembered(Kept kept) const;

  // Fills slots, and relay and weights if there is a relay. `taken` [slice tokens, choices] has the choices that have
  // an expert, and sort_by_expert made `counts` and `slots` of them. Then either kept.exchange is set or row counts are
  // under way. Not for a `kept` that is remembered and has slots.
  void route(LayerContext& context, ConstTensorView taken, ConstTensorView weights, Tensor counts, Tensor slots,
             bool some_unrouted, Kept& kept) const;
  // Exchanges what the part before made ready, if anything.
  void exchange(LayerContext& context, Kept& kept) const;

  // `x`: this rank's slice, in the dtype of dense parts, which stays until the second part; `choice_weights`: its
  // router's. A forward that is recomputed from remembered rows exchanges nothing.
  void begin_forward(LayerContext& context, ConstTensorView choice_weights, ConstTensorView x, Kept& kept) const;
  // Fills exchange and bank.
  void run(LayerContext& context, Weights weights, Kept& kept) const;
  // Fills out. y [slice tokens, hidden] += the weighted sums of the experts' outputs, unless recomputing.
  void end_forward(LayerContext& context, ConstTensorView choice_weights, Kept& kept, TensorView y) const;

  // `dy` stays until the second part.
  void begin_backward(LayerContext& context, ConstTensorView choice_weights, ConstTensorView dy, Kept& kept) const;
  void run_backward(LayerContext& context, Weights weights, Kept& kept) const;
  // Gradients of the input, as add_input_gradient takes them, and of the router's weights.
  struct InputGradient {
    Tensor rows;
    Tensor dweights;  // [slice tokens, choices] float32
  };
  InputGradient end_backward(LayerContext& context, Kept& kept) const;
  // dx [slice tokens, hidden] += the gradient; nothing is kept for routing from here on.
  void add_input_gradient(LayerContext& context, Tensor rows, Kept& kept, TensorView dx) const;
  void backward_weight(LayerContext& context, Gradients gradients, const Kept& kept) const;

 private:
  bool pads() const { return setup_.model.moe.pads(); }
  // Ranks that exchange rows with this one, and their group.
  int exchange_ranks() const { return setup_.expert / relay_.parts(); }
  Group exchange_group() const { return relay_.used() ? Group::ep_inner : Group::ep; }
  // Tokens whose choices this rank sorts, at most, and the rows that it sends to experts for them.
  std::int64_t most_tokens() const { return relay_.used() ? relay_.bound_tokens() : setup_.slice_tokens(); }
  std::int64_t most_sent() const;
  std::int64_t output_bytes(const Routed& routed) const;  // kept
  // Room for the rows of a microbatch without padding; 0: the tensor has that many in any case.
  std::int64_t reserved_rows(const Kept& kept) const { return kept.some_unrouted ? most_sent() : 0; }
  // Rows that an expert takes of the tokens whose choices a rank sorts, where it has a capacity.
  std::int64_t capacity_rows() const { return relay_.parts() * bank_.capacity_rows(); }
  // Every rank sends each expert as many rows as it may take.
  ExchangePlan plan_of_full_experts(const LayerContext& context) const;
  void wait_for_counts(const LayerContext& context, Kept& kept) const;
  bool reuses_rows(const LayerContext& context) const { return context.recomputing && setup_.keep_dispatch; }

  // Rows are sent in the narrower of the dtypes of both ends.
  DType exchanged() const { return narrower(setup_.compute, setup_.expert_compute); }
  ConstTensorView in_exchanged_dtype(KernelContext& kernels, ConstTensorView rows, Tensor& storage) const;
  // The rows of every choice, ready to be sent. `x` is in the dtype of messages.
  Tensor permuted_rows(KernelContext& kernels, ConstTensorView x, const Kept& kept) const;
  // Makes rows of the tokens `x` ready, and the weights of their choices, [rows sent, 1], if they go to the experts.
  void prepare_rows(LayerContext& context, ConstTensorView choice_weights, ConstTensorView x, Kept& kept) const;
  // Starts an exchange between the ranks of a part, or of all experts.
  void start(LayerContext& context, RowsUnderWay& rows, Kept& kept) const;
  Tensor returned_weight_gradients(LayerContext& context, Kept& kept) const;
  Tensor weight_gradients(KernelContext& kernels, const Kept& kept) const;  // not initialised
  // The gradient of kept.out in the dtype of messages, and `dweights` if weights multiply there. `dy`: of all tokens
  // whose choices this rank sorts.
  Tensor output_gradient(LayerContext& context, ConstTensorView dy, ConstTensorView weights, Kept& kept,
                         Tensor& dweights) const;
  Tensor to_experts(LayerContext& context, Kept& kept) const;
  RowsUnderWay from_experts(LayerContext& context, const Kept& kept, Tensor rows) const;
  Tensor returned(LayerContext& context, Kept& kept) const;
  // Sums over the choices of each relayed token, with `weights` or 1, ready to be sent back and summed over parts.
  RowsUnderWay sums_of_tokens(LayerContext& context, ConstTensorView rows, ConstTensorView weights, Work work,
                              const Kept& kept) const;
  Tensor returned_sums(LayerContext& context, Kept& kept) const;

  SegmentSetup setup_;
  TokenRelay relay_;
  ExpertBank bank_;
};

}  // namespace weft
