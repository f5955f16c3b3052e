#include "layers/segments.h"

#include <optional>
#include <tuple>

#include "layers/expert_bank.h"
#include "layers/expert_exchange.h"
#include "layers/kernels/routing.h"
#include "layers/pre_norm.h"
#include "layers/router.h"
#include "layers/segment.h"
#include "layers/sequence_parallel.h"
#include "layers/shared_gate.h"
#include "layers/swiglu_mlp.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

struct SavedMoe final : Saved {
  PreNorm::Kept norm;
  Router::Kept router;
  Tensor slots;  // [slice, choices]: position of each choice in expert order
  ExchangePlan exchange;
  ExpertBank::Kept bank;
  Tensor expert_out;  // [slice * choices, hidden], back from the experts
  SwigluMlp::Kept shared;
  SharedGate::Kept gate;
  Tensor dshared;  // gradient of the shared expert's output, all tokens, from input gradient to weight gradient
};

class Moe final : public Segment {
 public:
  Moe(const SegmentSetup& setup, int block)
      : setup_(setup),
        block_(block),
        scope_(fmt::format("blocks.{}", block)),
        name_(scope_ + ".experts"),
        norm_(setup, name_, Family::dense),
        router_(setup, scope_ + ".router", block),
        bank_(setup, name_),
        shared_(setup, scope_ + ".shared_expert", setup.model.moe.shared_expert_intermediate_size),
        gate_(setup, scope_, block) {
    parameters_ = {norm_.parameter()};
    of_router_ = append(router_.parameters());
    of_bank_ = append(bank_.parameters());
    if (has_shared()) of_shared_ = append(shared_.parameters());
    if (has_gate()) of_gate_ = append(gate_.parameters());
  }

  const std::string& name() const override { return name_; }
  const std::string& scope() const override { return scope_; }
  ModelPart part() const override { return {PartKind::experts, block_}; }
  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }

  std::int64_t activation_bytes() const override {
    const std::int64_t element = size_of(setup_.compute), hidden = setup_.model.hidden_size;
    const std::int64_t choices = setup_.model.moe.num_experts_per_tok;
    return norm_.activation_bytes() + most_sent() * hidden * element +
           setup_.slice_tokens() * choices * size_of(DType::int32) + router_.activation_bytes() +
           bank_.activation_bytes() + (has_shared() ? shared_.activation_bytes() : 0) +
           (has_gate() ? gate_.activation_bytes() : 0);
  }

  std::int64_t pending_bytes() const override {
    std::int64_t bytes = norm_.pending_bytes(reads_normed_for_weights()) + router_.pending_bytes() +
                         bank_.pending_bytes() + (has_gate() ? gate_.pending_bytes() : 0);
    if (trains_shared()) {
      bytes += shared_.pending_bytes() +
               setup_.microbatch_tokens * setup_.model.hidden_size * size_of(setup_.compute);  // dshared
    }
    return bytes;
  }

  std::vector<SegmentTraffic> traffic() const override {
    using When = SegmentTraffic::When;
    std::vector<SegmentTraffic> result = router_.traffic();
    const MoeConfig& moe = setup_.model.moe;
    const std::int64_t row = setup_.model.hidden_size * size_of(exchanged());
    if (setup_.expert > 1) {
      // `out` is exact unless choices are dropped: each choice of this rank's tokens is sent once. `back` is a bound.
      // With padding both are exact. Both include the rows that stay on the rank, as all_to_all counts bytes, and their
      // sums over all ranks are equal. The backward repeats both.
      const std::int64_t out = most_sent() * row;
      const std::int64_t back = bank_.bound_rows() / setup_.expert_tensor * row;
      if (!moe.pads()) {
        result.push_back({.when = When::forward,
                          .op = CollectiveOp::all_gather,
                          .group = Group::ep,
                          .count = 1,
                          .bytes = setup_.expert * moe.num_experts * size_of(DType::int32),
                          .once = true});
      }
      for (When when : {When::forward, When::backward_input}) {
        const bool once = when == When::forward && setup_.keep_dispatch;
        result.push_back({when, CollectiveOp::all_to_all, Group::ep, 1, out, moe.drops() && !moe.pads(), out, once});
        result.push_back({when, CollectiveOp::all_to_all, Group::ep, 1, back, !moe.pads(), out, once});
      }
    }
    if (setup_.expert_tensor > 1) {
      const std::int64_t gathered = bank_.bound_rows() * row;
      const std::int64_t even = setup_.expert_tensor * most_sent() * row;
      if (!moe.pads()) {
        result.push_back({.when = When::forward,
                          .op = CollectiveOp::all_gather,
                          .group = Group::etp,
                          .count = 1,
                          .bytes = setup_.expert_tensor * setup_.expert * moe.num_experts * size_of(DType::int32),
                          .once = true});
      }
      for (When when : {When::forward, When::backward_input}) {
        const bool once = when == When::forward && setup_.keep_dispatch;
        result.push_back({when, CollectiveOp::all_gather, Group::etp, 1, gathered, !moe.pads(), even, once});
        result.push_back({when, CollectiveOp::reduce_scatter, Group::etp, 1, gathered, !moe.pads(), even, once});
      }
    }
    if (has_shared()) {
      for (const auto& each : {gather_traffic(setup_, When::forward, setup_.compute),
                               scatter_traffic(setup_, When::forward, setup_.compute),
                               gather_traffic(setup_, When::backward_input, setup_.compute),
                               scatter_traffic(setup_, When::backward_input, setup_.compute),
                               weight_gather_traffic(setup_, Family::dense, setup_.compute)}) {
        result.push_back(each);
      }
    }
    return result;
  }

  Tensor forward(LayerContext& context, Weights weights, const MicrobatchInput& input, Tensor x,
                 std::unique_ptr<Saved>& saved) override {
    KernelContext& kernels = context.kernels;
    MemoryLedger& ledger = kernels.ledger;
    std::unique_ptr<SavedMoe> kept(static_cast<SavedMoe*>(saved.release()));
    if (!kept) kept = std::make_unique<SavedMoe>();
    norm_.forward(context, weights[0], std::move(x), kept->norm);
    const Tensor& normed = kept->norm.normed;

    const std::int64_t choices = setup_.model.moe.num_experts_per_tok;
    Tensor counts;
    // The host needs the row counts, unless they are those of full experts. It waits for them while the device runs the
    // work queued after them.
    std::optional<ExpertCounts> expert_counts;
    during(context.observer, Work::route, [&] {
      router_.forward(context, of_router_.in(weights), input, normed, kept->router);
      if (kept->slots.allocated()) return;  // remembered
      Tensor within;
      if (setup_.model.moe.drops()) within = router_.within_capacity(context, kept->router);
      const ConstTensorView taken = within.allocated() ? within.view() : kept->router.indices.view();
      counts = ledger.allocate(Bucket::moe_routing, DType::int32, setup_.model.moe.num_experts, 1);
      kept->slots = ledger.allocate(Bucket::moe_routing, DType::int32, normed.rows(), choices);
      sort_by_expert(kernels, taken, router_.some_unrouted(kept->router), counts, kept->slots);
      if (pads()) spread_slots(kernels, taken, counts, bank_.capacity_rows(), kept->slots);
      if (context.recomputing) return;
      if (within.allocated()) {
        add_dropped(kernels, kept->router.indices, kept->slots, context.report.dropped(block_));
      }
      add_counts(kernels, counts, context.report.expert_tokens(block_));
      router_.balance(context, kept->router);
      if (pads()) {
        kept->exchange = plan_of_full_experts(context);
      } else {
        expert_counts.emplace(context, counts);
      }
    });
    Tensor y;
    if (context.recomputing && setup_.keep_dispatch) {
      during(context.observer, Work::products,
             [&] { bank_.recompute(context, of_bank_.in(weights), kept->exchange.expert_rows, kept->bank); });
      y = shared_forward(context, weights, *kept);
    } else {
      y = forward_through_experts(context, weights, expert_counts, *kept);
    }
    during(context.observer, Work::combine,
           [&] { unpermute_rows(kernels, kept->expert_out, kept->slots, kept->router.weights, y); });
    norm_.end_forward(kept->norm);
    saved = std::move(kept);
    return y;
  }

  bool recomputes_forward() const override { return true; }
  Tensor take_input(Saved& saved) override { return std::move(static_cast<SavedMoe&>(saved).norm.x); }
  // A recomputed forward routes the tokens as before, so the row counts are not exchanged again; nor are the tokens if
  // their rows are kept.
  std::unique_ptr<Saved> remembered(std::unique_ptr<Saved> saved) const override {
    auto& all = static_cast<SavedMoe&>(*saved);
    auto routing = std::make_unique<SavedMoe>();
    routing->router.expert_counts = std::move(all.router.expert_counts);
    routing->exchange = std::move(all.exchange);
    if (setup_.model.moe.drops()) routing->slots = std::move(all.slots);
    if (setup_.keep_dispatch) {
      routing->bank.rows = std::move(all.bank.rows);
      routing->expert_out = std::move(all.expert_out);
    }
    return routing;
  }
  std::int64_t remembered_bytes() const override {
    const std::int64_t choices = setup_.slice_tokens() * setup_.model.moe.num_experts_per_tok;
    const std::int64_t kept =
        bank_.bound_rows() * size_of(setup_.expert_compute) + most_sent() * size_of(setup_.compute);
    return router_.balance_bytes() + (setup_.keep_dispatch ? kept * setup_.model.hidden_size : 0) +
           (setup_.model.moe.drops() ? choices * size_of(DType::int32) : 0);
  }

  Tensor backward_input(LayerContext& context, Weights weights, Tensor dy, Saved& saved) override {
    auto& kept = static_cast<SavedMoe&>(saved);
    KernelContext& kernels = context.kernels;
    MemoryLedger& ledger = kernels.ledger;
    const std::int64_t choices = setup_.model.moe.num_experts_per_tok;
    Tensor dexperts =
        ledger.allocate(Bucket::moe_routing, setup_.compute, kept.expert_out.rows(), dy.columns(), reserved_rows(kept));
    Tensor dweights = ledger.allocate(Bucket::moe_routing, DType::float32, dy.rows(), choices);
    during(context.observer, Work::combine, [&] {
      if (pads()) fill(kernels.stream, dexperts, 0.0f);
      unpermute_rows_backward(kernels, dy, kept.expert_out, kept.slots, kept.router.weights, dexperts, dweights);
      kept.expert_out.reset();
      dexperts = converted(kernels, std::move(dexperts), exchanged(), Bucket::moe_routing, reserved_rows(kept));
    });
    RowsUnderWay under_way = during(context.observer, Work::exchange, [&] {
      return begin_dispatch(context, kept.exchange, std::move(dexperts), bank_.bound_rows());
    });
    Tensor dshared, dgated;
    if (has_shared()) {
      const WorkScope scope(context.observer, Work::shared);
      Tensor dout;
      if (has_gate()) std::tie(dout, dgated) = gate_.backward_input(context, of_gate_.in(weights)[0], dy, kept.gate);
      kept.dshared = gather_gradient(context, has_gate() ? dout : dy);
      dshared =
          scatter_tokens(context, shared_.backward_input(context, of_shared_.in(weights), kept.dshared, kept.shared));
    }
    Tensor dout = to_experts(context, kept.exchange, std::move(under_way));
    Tensor drows = during(context.observer, Work::products, [&] {
      return bank_.backward_input(context, of_bank_.in(weights), kept.exchange.expert_rows, std::move(dout), kept.bank);
    });
    drows = from_experts(context, kept, std::move(drows));

    Tensor dnormed = during(context.observer, Work::route, [&] {
      return router_.backward_input(context, of_router_.in(weights)[0], dweights, kept.router);
    });
    during(context.observer, Work::permute, [&] { unpermute_rows(kernels, drows, kept.slots, {}, dnormed); });
    kept.slots.reset();
    if (!reads_normed_for_weights()) kept.norm.normed.reset();
    if (has_shared()) add(kernels.stream, dshared, dnormed);
    if (has_gate()) add(kernels.stream, dgated, dnormed);
    if (has_gate() && !trains_shared()) kept.dshared.reset();
    Tensor none;
    auto [residual, dx] = has_gate() ? residual_gradient(std::move(dy), none, /*stays=*/false)
                                     : residual_gradient(std::move(dy), kept.dshared, trains_shared());
    return norm_.backward_input(context, weights[0], std::move(dnormed), residual, std::move(dx),
                                reads_normed_for_weights(), kept.norm);
  }

  void backward_weight(LayerContext& context, Gradients gradients, Saved& saved) override {
    auto& kept = static_cast<SavedMoe&>(saved);
    require_frozen(setup_, parameters_, gradients);
    during(context.observer, Work::products,
           [&] { bank_.backward_weight(context, of_bank_.in(gradients), kept.exchange.expert_rows, kept.bank); });
    during(context.observer, Work::route, [&] {
      router_.backward_weight(context, of_router_.in(gradients)[0], kept.norm.normed, kept.router);
      if (has_gate()) gate_.backward_weight(context, of_gate_.in(gradients)[0], kept.norm.normed, kept.gate);
    });
    if (trains_shared()) {
      const WorkScope scope(context.observer, Work::shared);
      const GatheredTokens normed(context, kept.norm.normed);
      shared_.backward_weight(context, of_shared_.in(gradients), normed.view(), kept.dshared, kept.shared);
    }
    norm_.backward_weight(context, gradients[0], kept.norm);
  }

 private:
  bool has_shared() const { return setup_.model.moe.shared_expert_intermediate_size > 0; }
  bool trains_shared() const { return has_shared() && setup_.trains(Family::dense); }
  bool pads() const { return setup_.model.moe.pads(); }
  bool has_gate() const { return has_shared() && setup_.model.moe.shared_expert_gate; }
  bool reads_normed_for_weights() const {
    return trains_shared() || router_.reads_x_for_weight() || (has_gate() && gate_.reads_x_for_weight());
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
  // Most rows that this rank sends to experts: its tokens' choices, or those of full experts.
  std::int64_t most_sent() const {
    const MoeConfig& moe = setup_.model.moe;
    return pads() ? moe.num_experts * bank_.capacity_rows() : setup_.slice_tokens() * moe.num_experts_per_tok;
  }
  // Room for the rows of a microbatch without padding; 0: the tensor has that many in any case.
  std::int64_t reserved_rows(const SavedMoe& kept) const {
    return router_.some_unrouted(kept.router) ? most_sent() : 0;
  }
  // Every rank sends each expert as many rows as it may take.
  ExchangePlan plan_of_full_experts(const LayerContext& context) const {
    const std::int64_t counts = context.expert_tensor.size() * context.expert.size() * setup_.model.moe.num_experts;
    return plan_exchange(context, std::vector<std::int32_t>(static_cast<std::size_t>(counts),
                                                            static_cast<std::int32_t>(bank_.capacity_rows())));
  }

  // Sends the tokens to their experts and back, beside the shared expert. Fills exchange, bank and expert_out. Returns
  // x plus the shared expert's output.
  Tensor forward_through_experts(LayerContext& context, Weights weights, std::optional<ExpertCounts>& counts,
                                 SavedMoe& kept) const {
    const auto wait_for_counts = [&] {
      if (counts) kept.exchange = plan_exchange(context, counts->wait());
      counts.reset();
    };
    // The number of rows is known at once if every token is routed.
    if (router_.some_unrouted(kept.router)) wait_for_counts();
    Tensor permuted =
        during(context.observer, Work::permute, [&] { return permuted_rows(context.kernels, kept.norm.normed, kept); });
    RowsUnderWay under_way = during(context.observer, Work::exchange, [&] {
      wait_for_counts();
      return begin_dispatch(context, kept.exchange, std::move(permuted), bank_.bound_rows());
    });
    Tensor y = shared_forward(context, weights, kept);
    Tensor rows = to_experts(context, kept.exchange, std::move(under_way));
    Tensor out = during(context.observer, Work::products, [&] {
      return bank_.forward(context, of_bank_.in(weights), kept.exchange.expert_rows, std::move(rows), kept.bank);
    });
    kept.expert_out = from_experts(context, kept, std::move(out));
    return y;
  }

  // Rows are sent in the narrower of the dtypes of both ends.
  DType exchanged() const { return narrower(setup_.compute, setup_.expert_compute); }
  // The rows of every choice, ready to be sent. They are converted before the permutation copies them for each choice.
  Tensor permuted_rows(KernelContext& kernels, ConstTensorView normed, const SavedMoe& kept) const {
    MemoryLedger& ledger = kernels.ledger;
    Tensor storage;
    if (exchanged() != normed.dtype()) {
      storage = ledger.allocate(Bucket::moe_routing, exchanged(), normed.rows(), normed.columns());
      cast(kernels.stream, normed, storage);
      normed = storage;
    }
    const std::int64_t rows = router_.some_unrouted(kept.router) ? kept.exchange.sent() : kept.slots.view().size();
    Tensor permuted = ledger.allocate(Bucket::moe_routing, exchanged(), rows, normed.columns(), reserved_rows(kept));
    if (pads()) fill(kernels.stream, permuted, 0.0f);
    permute_rows(kernels, normed, kept.slots, permuted);
    return permuted;
  }
  Tensor to_experts(LayerContext& context, const ExchangePlan& plan, RowsUnderWay under_way) const {
    const WorkScope scope(context.observer, Work::exchange);
    Tensor rows = finish_dispatch(context, plan, std::move(under_way), bank_.bound_rows());
    return converted(context.kernels, std::move(rows), setup_.expert_compute, Bucket::moe_routing, bank_.bound_rows());
  }
  Tensor from_experts(LayerContext& context, const SavedMoe& kept, Tensor rows) const {
    const WorkScope scope(context.observer, Work::exchange);
    KernelContext& kernels = context.kernels;
    rows = converted(kernels, std::move(rows), exchanged(), Bucket::moe_routing, bank_.bound_rows());
    rows = return_rows(context, kept.exchange, std::move(rows), bank_.bound_rows(), reserved_rows(kept));
    return converted(kernels, std::move(rows), setup_.compute, Bucket::moe_routing, reserved_rows(kept));
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
    Tensor y = context.kernels.ledger.allocate(Bucket::activations, setup_.compute, x.rows(), x.columns());
    cast(context.kernels.stream, x, y);
    if (has_gate()) {
      gate_.forward(context, of_gate_.in(weights), kept.norm.normed, std::move(out), y, kept.gate);
    }
    return y;
  }

  SegmentSetup setup_;
  int block_;
  std::string scope_, name_;
  PreNorm norm_;
  Router router_;
  ExpertBank bank_;
  SwigluMlp shared_;
  SharedGate gate_;
  std::vector<ParameterSpec> parameters_;
  Place of_router_, of_bank_, of_shared_, of_gate_;
};

}  // namespace

std::unique_ptr<Segment> make_moe(const SegmentSetup& setup, int block) {
  return std::make_unique<Moe>(setup, block);
}

}  // namespace weft
