#include "layers/segments.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "layers/kernels/routing.h"
#include "layers/pre_norm.h"
#include "layers/routed_experts.h"
#include "layers/router.h"
#include "layers/segment.h"
#include "layers/sequence_parallel.h"
#include "layers/swiglu_mlp.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// The gate of a shared expert keeps no float32 copy of its input beside that of the block's router.
SegmentSetup gate_setup(SegmentSetup setup) {
  setup.model.moe = {.num_experts = 1, .num_experts_per_tok = 1, .norm_topk_prob = false, .scoring = Scoring::sigmoid};
  setup.recompute_cheap = true;
  return setup;
}

// The gate of a shared expert: a router to one expert, which every token chooses. The weight of the choice is a sigmoid
// of the token.
struct SharedGate {
  const Router router;

  SharedGate(const SegmentSetup& setup, const std::string& scope, int block)
      : router(gate_setup(setup), scope + ".shared_expert_gate", block) {}

  struct Kept {
    Router::Kept router;
    Tensor slots;  // [slice, 1] int32: of token t, t
    Tensor out;    // [slice, hidden]: the shared expert's output before the gate
  };

  std::int64_t activation_bytes(const SegmentSetup& setup) const {
    const std::int64_t out = setup.model.hidden_size * size_of(setup.compute);
    return router.activation_bytes() + setup.slice_tokens() * (size_of(DType::int32) + out);
  }
  // y += gate(x) * out. All are [slice, hidden].
  void forward(LayerContext& context, Weights weights, ConstTensorView x, Tensor out, TensorView y, Kept& kept) const {
    KernelContext& kernels = context.kernels;
    router.forward(context, weights, {}, x, kept.router);
    Tensor count = kernels.routing(DType::int32, 1, 1);
    kept.slots = kernels.routing(DType::int32, x.rows(), 1);
    sort_by_expert(kernels, kept.router.indices, /*some_unrouted=*/false, count, kept.slots);
    unpermute_rows(kernels, out, kept.slots, kept.router.weights, y);
    kept.out = std::move(out);
  }
  // Returns the gradients of `out` and of x through the gate.
  std::pair<Tensor, Tensor> backward_input(LayerContext& context, ConstTensorView weight, ConstTensorView dy,
                                           Kept& kept) const {
    KernelContext& kernels = context.kernels;
    Tensor dweights = kernels.routing(DType::float32, dy.rows(), 1);
    Tensor dout = kernels.activation(dy.dtype(), dy.rows(), dy.columns());
    unpermute_rows_backward(kernels, dy, kept.out, kept.slots, kept.router.weights, dout, dweights);
    kept.out.reset();
    kept.slots.reset();
    return {std::move(dout), router.backward_input(context, weight, dweights, kept.router)};
  }
};

struct SavedMoe final : Saved {
  PreNorm::Kept norm;
  Router::Kept router;
  RoutedExperts::Kept experts;
  SwigluMlp::Kept shared;
  SharedGate::Kept gate;
  Tensor dshared;  // gradient of the shared expert's output, all tokens, from input gradient to weight gradient
  // Between the parts of a forward: the result without routed experts. Of an input gradient: that of the result, and of
  // the input through the shared expert and its gate.
  struct Open {
    Tensor y, dy, through_shared, through_gate;
  } open;
};

// Runs the parts of a computation that `part` stands for, of `count` in all, with the exchanges between them.
template <typename Run, typename Exchange>
void run_parts(ComputePart part, int count, Run run, Exchange exchange) {
  run(part.index);
  for (int next = part.index + 1; part.last() && next < count; ++next) {
    exchange();
    run(next);
  }
}

class Moe final : public Segment {
 public:
  Moe(const SegmentSetup& setup, int block)
      : Segment(setup, {PartKind::experts, block}),
        norm_(setup, name(), Family::dense),
        router_(setup, scope() + ".router", block),
        experts_(setup, name(), block),
        shared_(setup, scope() + ".shared_expert", setup.model.moe.shared_expert_intermediate_size),
        gate_(setup, scope(), block) {
    parameters_ = {norm_.parameter()};
    of_router_ = append(router_.parameters());
    of_experts_ = append(experts_.parameters());
    if (has_shared()) of_shared_ = append(shared_.parameters());
    if (has_gate()) of_gate_ = append(gate_.router.parameters());
  }

  std::int64_t activation_bytes() const override { return bytes_of(experts_.most_routed()).activations; }
  std::int64_t pending_bytes() const override { return bytes_of(experts_.most_routed()).pending; }
  SegmentBytes even_bytes() const override { return bytes_of(experts_.even_routed()); }

  std::vector<SegmentTraffic> traffic() const override {
    std::vector<SegmentTraffic> result = router_.traffic();
    for (const SegmentTraffic& each : experts_.traffic()) result.push_back(each);
    if (!has_shared()) return result;
    for (const SegmentTraffic& each : shared_.traffic()) result.push_back(each);
    return result;
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    std::unique_ptr<SavedMoe> kept(static_cast<SavedMoe*>(saved.release()));
    if (!kept) kept = std::make_unique<SavedMoe>();
    const auto run = [&](int part) {
      if (part == 0) {
        begin_forward(context, weights, input, std::move(x), *kept);
      } else if (part == 1) {
        kept->open.y = shared_forward(context, weights, *kept);
        experts_.run(context, of_experts_.in(weights), kept->experts);
      } else {
        experts_.end_forward(context, kept->router.weights, kept->experts, kept->open.y);
        norm_.end_forward(kept->norm);
      }
    };
    run_parts(context.part, 3, run, [&] { experts_.exchange(context, kept->experts); });
    Tensor y = context.part.last() ? std::move(kept->open.y) : Tensor();
    saved = std::move(kept);
    return y;
  }
  void exchange_rows(LayerContext& context, Saved& saved) override {
    experts_.exchange(context, static_cast<SavedMoe&>(saved).experts);
  }

  bool recomputes_forward() const override { return true; }
  Tensor take_input(Saved& saved) override { return std::move(static_cast<SavedMoe&>(saved).norm.x); }
  std::unique_ptr<Saved> remembered(std::unique_ptr<Saved> saved) const override {
    auto& all = static_cast<SavedMoe&>(*saved);
    auto routing = std::make_unique<SavedMoe>();
    routing->router.expert_counts = std::move(all.router.expert_counts);
    routing->experts = experts_.remembered(std::move(all.experts));
    return routing;
  }
  std::int64_t remembered_bytes() const override { return bytes_of(experts_.most_routed()).remembered; }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedMoe&>(saved);
    Tensor dx;
    const auto run = [&](int part) {
      if (part == 0) {
        kept.open.dy = std::move(dy);
        experts_.begin_backward(context, kept.router.weights, kept.open.dy, kept.experts);
      } else if (part == 1) {
        if (has_shared()) shared_backward(context, weights, kept);
        experts_.run_backward(context, of_experts_.in(weights), kept.experts);
      } else {
        dx = end_backward(context, weights, kept);
      }
    };
    run_parts(context.part, 3, run, [&] { experts_.exchange(context, kept.experts); });
    return dx;
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedMoe&>(saved);
    require_frozen(setup_, parameters_, gradients);
    experts_.backward_weight(context, of_experts_.in(gradients), kept.experts);
    during(context.observer, Work::route, [&] {
      router_.backward_weight(context, of_router_.in(gradients)[0], kept.norm.normed, kept.router);
      if (!has_gate()) return;
      gate_.router.backward_weight(context, of_gate_.in(gradients)[0], kept.norm.normed, kept.gate.router);
    });
    if (trains_shared()) {
      const WorkScope scope(context.observer, Work::shared);
      const GatheredTokens normed(context, kept.norm.normed);
      shared_.backward_weight(context, of_shared_.in(gradients), normed.view(), kept.dshared, kept.shared);
    }
    norm_.backward_weight(context, gradients[0], kept.norm);
  }

 private:
  SegmentBytes bytes_of(const RoutedExperts::Routed& routed) const {
    SegmentBytes bytes{
        .activations = norm_.activation_bytes() + router_.activation_bytes() + experts_.activation_bytes(routed),
        .pending =
            norm_.pending_bytes(reads_normed_for_weights()) + router_.pending_bytes() + experts_.pending_bytes(routed),
        .remembered = router_.balance_bytes() + experts_.remembered_bytes(routed)};
    if (has_shared()) bytes.activations += shared_.activation_bytes();
    if (has_gate()) bytes.activations += gate_.activation_bytes(setup_);
    if (has_gate()) bytes.pending += gate_.router.pending_bytes();
    if (trains_shared()) {
      bytes.pending += shared_.pending_bytes() +
                       setup_.microbatch_tokens * setup_.model.hidden_size * size_of(setup_.compute);  // dshared
    }
    return bytes;
  }
  bool has_shared() const { return setup_.model.moe.shared_expert_intermediate_size > 0; }
  bool trains_shared() const { return has_shared() && setup_.trains(Family::dense); }
  bool has_gate() const { return has_shared() && setup_.model.moe.shared_expert_gate; }
  bool reads_normed_for_weights() const {
    return trains_shared() || router_.reads_x_for_weight() || (has_gate() && gate_.router.reads_x_for_weight());
  }
  // The place of a part's parameters among those of the segment.
  struct Place {
    std::size_t first = 0, count = 0;

    template <typename All>
    All in(All all) const {
      return all.subspan(first, count);
    }
  };
  Place append(const std::vector<ParameterSpec>& more) {
    const Place place{parameters_.size(), more.size()};
    parameters_.insert(parameters_.end(), more.begin(), more.end());
    return place;
  }
  // Up to the rows that leave for experts. The host needs their counts, unless they are those of full experts.
  void begin_forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                     SavedMoe& kept) const {
    norm_.forward(context, weights[0], std::move(x), kept.norm);
    during(context.observer, Work::route, [&] {
      router_.forward(context, of_router_.in(weights), input, kept.norm.normed, kept.router);
      if (!kept.experts.slots.allocated()) choose(context, kept);  // otherwise remembered
    });
    experts_.begin_forward(context, kept.router.weights, kept.norm.normed, kept.experts);
  }
  // The choices that have an expert, counted and sorted.
  void choose(LayerContext& context, SavedMoe& kept) const {
    KernelContext& kernels = context.kernels;
    const MoeConfig& moe = setup_.model.moe;
    const Tensor& all = kept.router.indices;
    Tensor real, within;
    if (moe.null_copies() > 0) {
      real = kernels.routing(DType::int32, all.rows(), all.columns());
      choices_within(kernels, all, 0, moe.num_experts, real);
    }
    const Tensor& chosen = real.allocated() ? real : all;
    if (moe.drops()) within = router_.within_capacity(context, kept.router, chosen);
    const ConstTensorView taken = within.allocated() ? within.view() : chosen.view();
    Tensor counts = kernels.routing(DType::int32, moe.num_experts, 1);
    Tensor slots = kernels.routing(DType::int32, taken.rows(), taken.columns());
    const bool some_unrouted = router_.some_unrouted(kept.router);
    sort_by_expert(kernels, taken, some_unrouted, counts, slots);
    if (!context.recomputing) {
      if (within.allocated()) add_dropped(kernels, chosen, slots, context.report.dropped(block()));
      if (real.allocated()) add_dropped(kernels, all, real, context.report.null_choices(block()));
      add_counts(kernels, counts, context.report.expert_tokens(block()));
      router_.balance(context, kept.router);
    }
    experts_.route(context, taken, kept.router.weights, std::move(counts), std::move(slots), some_unrouted,
                   kept.experts);
  }

  // x plus the shared expert's output, if there is one. The outputs of the routed experts are added to the result.
  Tensor shared_forward(LayerContext& context, Weights weights, SavedMoe& kept) const {
    const Tensor& x = kept.norm.x;
    const WorkScope scope(has_shared() ? context.observer : nullptr, Work::shared);
    Tensor out;
    if (has_shared()) {
      const GatheredTokens normed(context, kept.norm.normed);
      const ConstTensorView residual = has_gate() ? ConstTensorView() : x.view();
      out = shared_.forward(context, of_shared_.in(weights), normed.view(), residual, kept.shared);
      if (!has_gate()) return out;
    }
    Tensor y = context.kernels.activation(setup_.compute, x.rows(), x.columns());
    cast(context.kernels.stream, x, y);
    if (has_gate()) {
      gate_.forward(context, of_gate_.in(weights), kept.norm.normed, std::move(out), y, kept.gate);
    }
    return y;
  }

  // The gradients through the shared expert and its gate.
  void shared_backward(LayerContext& context, Weights weights, SavedMoe& kept) const {
    const WorkScope scope(context.observer, Work::shared);
    Tensor& dy = kept.open.dy;
    Tensor dout;
    if (has_gate()) {
      std::tie(dout, kept.open.through_gate) = gate_.backward_input(context, of_gate_.in(weights)[0], dy, kept.gate);
    }
    kept.dshared = gather_gradient(context, has_gate() ? dout : dy);
    kept.open.through_shared =
        scatter_tokens(context, shared_.backward_input(context, of_shared_.in(weights), kept.dshared, kept.shared));
  }

  // The gradient of the input, from that of the rows that are back.
  Tensor end_backward(LayerContext& context, Weights weights, SavedMoe& kept) const {
    RoutedExperts::InputGradient through = experts_.end_backward(context, kept.experts);
    Tensor dnormed = during(context.observer, Work::route, [&] {
      return router_.backward_input(context, of_router_.in(weights)[0], through.dweights, kept.router);
    });
    experts_.add_input_gradient(context, std::move(through.rows), kept.experts, dnormed);
    if (!reads_normed_for_weights()) kept.norm.normed.reset();
    for (Tensor* more : {&kept.open.through_shared, &kept.open.through_gate}) {
      if (more->allocated()) add(context.kernels.stream, *more, dnormed);
      more->reset();
    }
    if (has_gate() && !trains_shared()) kept.dshared.reset();
    Tensor none;
    auto [residual, dx] = has_gate() ? residual_gradient(std::move(kept.open.dy), none, /*stays=*/false)
                                     : residual_gradient(std::move(kept.open.dy), kept.dshared, trains_shared());
    return norm_.backward_input(context, weights[0], std::move(dnormed), residual, std::move(dx),
                                reads_normed_for_weights(), kept.norm);
  }

  PreNorm norm_;
  Router router_;
  RoutedExperts experts_;
  SwigluMlp shared_;
  SharedGate gate_;
  Place of_router_, of_experts_, of_shared_, of_gate_;
};

}  // namespace

std::unique_ptr<Segment> make_moe(const SegmentSetup& setup, int block) {
  return std::make_unique<Moe>(setup, block);
}

}  // namespace weft
