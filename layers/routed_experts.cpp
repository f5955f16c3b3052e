#include "layers/routed_experts.h"

#include <algorithm>

#include "layers/kernels/routing.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// A number of each choice as a row of its own.
template <typename View>
View in_one_column(const View& view) {
  return view.reshaped(view.size(), 1);
}
ConstTensorView in_one_column(const Tensor& tensor) {
  return in_one_column(tensor.view());
}

}  // namespace

RoutedExperts::RoutedExperts(const SegmentSetup& setup, const std::string& name, int block)
    : setup_(setup),
      relay_(setup),
      bank_(setup, name,
            setup.model.width({BlockKind::moe, setup.model.blocks.at(static_cast<std::size_t>(block)).width})) {}

std::int64_t RoutedExperts::most_sent() const {
  const MoeConfig& moe = setup_.model.moe;
  const std::int64_t of_experts = relay_.experts() * capacity_rows();
  if (pads()) return of_experts;
  const std::int64_t of_tokens = most_tokens() * std::min(moe.num_experts_per_tok, relay_.experts());
  return relay_.used() && moe.drops() ? std::min(of_tokens, of_experts) : of_tokens;
}

std::int64_t RoutedExperts::output_bytes() const {
  return setup_.weights_at_experts ? 0 : most_sent() * setup_.model.hidden_size * size_of(setup_.compute);
}

std::int64_t RoutedExperts::activation_bytes() const {
  const std::int64_t numbers = most_tokens() * setup_.model.moe.num_experts_per_tok * size_of(DType::int32);
  return output_bytes() + (relay_.used() ? 2 : 1) * numbers + relay_.kept_bytes() + bank_.activation_bytes();
}

std::int64_t RoutedExperts::remembered_bytes() const {
  const std::int64_t numbers = most_tokens() * setup_.model.moe.num_experts_per_tok * size_of(DType::int32);
  std::int64_t bytes = relay_.kept_bytes() + bank_.row_weight_bytes();
  if (relay_.used()) {
    bytes += 2 * numbers;
  } else if (setup_.model.moe.drops()) {
    bytes += numbers;
  }
  if (!setup_.keep_dispatch) return bytes;
  return bytes + output_bytes() + bank_.bound_rows() * setup_.model.hidden_size * size_of(setup_.expert_compute);
}

RoutedExperts::Kept RoutedExperts::remembered(Kept kept) const {
  Kept routing;
  routing.some_unrouted = kept.some_unrouted;
  routing.exchange = std::move(kept.exchange);
  if (relay_.used() || setup_.model.moe.drops()) routing.slots = std::move(kept.slots);
  routing.relay = std::move(kept.relay);
  routing.weights = std::move(kept.weights);
  routing.bank.row_weights = std::move(kept.bank.row_weights);
  if (setup_.keep_dispatch) {
    routing.bank.rows = std::move(kept.bank.rows);
    routing.out = std::move(kept.out);
  }
  return routing;
}

std::vector<SegmentTraffic> RoutedExperts::traffic() const {
  using When = SegmentTraffic::When;
  const MoeConfig& moe = setup_.model.moe;
  const std::int64_t row = setup_.model.hidden_size * size_of(exchanged()), weight = size_of(DType::float32);
  std::vector<SegmentTraffic> result = relay_.traffic(row);
  // Each choice of a microbatch's tokens is sent once: with a relay as many on average. `sent` is exact unless choices
  // are dropped, or other ranks' tokens are relayed; `received` and `gathered` are bounds. With padding all are exact.
  // All include the rows that stay on the rank, as communicators count bytes, and over all ranks the sums of the first
  // two are equal.
  const std::int64_t even = pads() ? most_sent() : setup_.slice_tokens() * moe.num_experts_per_tok;
  const std::int64_t gathered = bank_.bound_rows(), received = gathered / setup_.expert_tensor;
  const auto add_counts = [&](Group group, int ranks) {
    if (pads()) return;
    result.push_back({.when = When::forward,
                      .op = CollectiveOp::all_gather,
                      .group = group,
                      .count = 1,
                      .bytes = ranks * relay_.experts() * size_of(DType::int32),
                      .once = true});
  };
  const auto add_out = [&](When when, std::int64_t bytes, bool once) {
    const bool bound = (moe.drops() || relay_.used()) && !pads();
    if (exchange_ranks() > 1) {
      result.push_back(
          {when, CollectiveOp::all_to_all, exchange_group(), 1, most_sent() * bytes, bound, even * bytes, once});
    }
    if (setup_.expert_tensor > 1) {
      result.push_back({when, CollectiveOp::all_gather, Group::etp, 1, gathered * bytes, !pads(),
                        setup_.expert_tensor * even * bytes, once});
    }
  };
  const auto add_back = [&](When when, std::int64_t bytes, bool once) {
    if (exchange_ranks() > 1) {
      result.push_back(
          {when, CollectiveOp::all_to_all, exchange_group(), 1, received * bytes, !pads(), even * bytes, once});
    }
    if (setup_.expert_tensor > 1) {
      result.push_back({when, CollectiveOp::reduce_scatter, Group::etp, 1, gathered * bytes, !pads(),
                        setup_.expert_tensor * even * bytes, once});
    }
  };
  if (exchange_ranks() > 1) add_counts(exchange_group(), exchange_ranks());
  if (setup_.expert_tensor > 1) add_counts(Group::etp, setup_.expert_tensor * exchange_ranks());
  for (When when : {When::forward, When::backward_input}) {
    const bool forward = when == When::forward;
    add_out(when, row, forward && setup_.keep_dispatch);
    add_back(when, row, forward && (setup_.keep_dispatch || setup_.weights_at_experts));
  }
  if (setup_.weights_at_experts) {
    add_out(When::forward, weight, /*once=*/true);
    add_back(When::backward_input, weight, /*once=*/false);
  }
  return result;
}

ExchangePlan RoutedExperts::plan_of_full_experts(const LayerContext& context) const {
  const std::int64_t counts = context.expert_tensor.size() * context.expert.size() * relay_.experts();
  return plan_exchange(
      context, std::vector<std::int32_t>(static_cast<std::size_t>(counts), static_cast<std::int32_t>(capacity_rows())));
}

void RoutedExperts::wait_for_counts(const LayerContext& context, Counting& counting, Kept& kept) const {
  if (counting) kept.exchange = plan_exchange(context, counting->wait());
  counting.reset();
}

void RoutedExperts::route(LayerContext& context, ConstTensorView taken, ConstTensorView weights, Tensor counts,
                          Tensor slots, bool some_unrouted, Counting& counting, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor relayed;
  if (relay_.used()) {
    slots.reset();
    kept.relay = relay_.plan(context, taken);
    relayed = relay_.pass(context, kept.relay, taken);
    kept.weights = relay_.pass(context, kept.relay, weights);
    choices_within(kernels, relayed, relay_.first_expert(), relay_.experts(), relayed);
    counts = kernels.ledger.allocate(Bucket::moe_routing, DType::int32, relay_.experts(), 1);
    slots = kernels.ledger.allocate(Bucket::moe_routing, DType::int32, relayed.rows(), relayed.columns(),
                                    relay_.bound_tokens());
    sort_by_expert(kernels, relayed, /*some_unrouted=*/true, counts, slots);
    taken = relayed;
  }
  kept.some_unrouted = some_unrouted || relay_.used();
  kept.slots = std::move(slots);
  if (pads()) spread_slots(kernels, taken, counts, capacity_rows(), kept.slots);
  if (context.recomputing) return;
  if (pads()) {
    kept.exchange = plan_of_full_experts(context);
  } else {
    counting.emplace(kernels, std::initializer_list<Communicator*>{&context.expert, &context.expert_tensor}, counts);
  }
}

ConstTensorView RoutedExperts::in_exchanged_dtype(KernelContext& kernels, ConstTensorView rows, Tensor& storage) const {
  if (exchanged() == rows.dtype()) return rows;
  storage = kernels.ledger.allocate(Bucket::moe_routing, exchanged(), rows.rows(), rows.columns());
  cast(kernels.stream, rows, storage);
  return storage;
}

Tensor RoutedExperts::permuted_rows(KernelContext& kernels, ConstTensorView x, const Kept& kept) const {
  const std::int64_t rows = kept.some_unrouted ? kept.exchange.sent() : kept.slots.view().size();
  Tensor permuted = kernels.ledger.allocate(Bucket::moe_routing, exchanged(), rows, x.columns(), reserved_rows(kept));
  if (pads()) fill(kernels.stream, permuted, 0.0f);
  permute_rows(kernels, x, kept.slots, permuted);
  return permuted;
}

Tensor RoutedExperts::to_experts(LayerContext& context, const ExchangePlan& plan, RowsUnderWay under_way) const {
  const WorkScope scope(context.observer, Work::exchange);
  Tensor rows = finish_dispatch(context, plan, std::move(under_way), bank_.bound_rows());
  return converted(context.kernels, std::move(rows), setup_.expert_compute, Bucket::moe_routing, bank_.bound_rows());
}

Tensor RoutedExperts::from_experts(LayerContext& context, const Kept& kept, Tensor rows) const {
  const WorkScope scope(context.observer, Work::exchange);
  KernelContext& kernels = context.kernels;
  rows = converted(kernels, std::move(rows), exchanged(), Bucket::moe_routing, bank_.bound_rows());
  rows = return_rows(context, kept.exchange, std::move(rows), bank_.bound_rows(), reserved_rows(kept));
  return converted(kernels, std::move(rows), setup_.compute, Bucket::moe_routing, reserved_rows(kept));
}

RowsUnderWay RoutedExperts::send_weights(LayerContext& context, ConstTensorView weights, const Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor sorted =
      kernels.ledger.allocate(Bucket::moe_routing, DType::float32, kept.exchange.sent(), 1, reserved_rows(kept));
  during(context.observer, Work::permute, [&] {
    if (pads()) fill(kernels.stream, sorted, 0.0f);
    permute_rows(kernels, in_one_column(weights), in_one_column(kept.slots), sorted);
  });
  const WorkScope scope(context.observer, Work::exchange);
  return begin_dispatch(context, kept.exchange, std::move(sorted), bank_.bound_rows());
}

Tensor RoutedExperts::forward(LayerContext& context, Weights weights, ConstTensorView choice_weights, ConstTensorView x,
                              const std::function<Tensor()>& beside, Counting& counting, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor result, arrived, storage;
  if (relay_.used()) {
    RowsUnderWay tokens = during(context.observer, Work::exchange, [&] {
      const ConstTensorView sent = in_exchanged_dtype(kernels, x, storage);
      return relay_.begin(context, kept.relay, sent, std::move(storage));
    });
    result = beside();
    arrived = during(context.observer, Work::exchange, [&] { return relay_.finish(context, std::move(tokens)); });
    x = arrived;
    choice_weights = kept.weights;
  }
  // The number of rows is known at once if every token is routed.
  if (kept.some_unrouted) wait_for_counts(context, counting, kept);
  // Rows are converted before a copy is made for each choice.
  Tensor permuted = during(context.observer, Work::permute,
                           [&] { return permuted_rows(kernels, in_exchanged_dtype(kernels, x, storage), kept); });
  arrived.reset();
  storage.reset();
  RowsUnderWay under_way = during(context.observer, Work::exchange, [&] {
    wait_for_counts(context, counting, kept);
    return begin_dispatch(context, kept.exchange, std::move(permuted), bank_.bound_rows());
  });
  RowsUnderWay weights_under_way;
  const bool sends_weights = setup_.weights_at_experts && !kept.bank.row_weights.allocated();
  if (sends_weights) weights_under_way = send_weights(context, choice_weights, kept);
  if (!relay_.used()) result = beside();
  if (sends_weights) {
    const WorkScope scope(context.observer, Work::exchange);
    bank_.take_weights(context, kept.exchange.expert_rows,
                       finish_dispatch(context, kept.exchange, std::move(weights_under_way), bank_.bound_rows()),
                       kept.bank);
  }
  Tensor rows = to_experts(context, kept.exchange, std::move(under_way));
  if (context.recomputing && setup_.weights_at_experts) {  // outputs are not read again
    kept.bank.rows = std::move(rows);
    recompute(context, weights, kept);
    return result;
  }
  Tensor out = during(context.observer, Work::products, [&] {
    return bank_.forward(context, weights, kept.exchange.expert_rows, std::move(rows), kept.bank);
  });
  kept.out = from_experts(context, kept, std::move(out));
  return result;
}

void RoutedExperts::recompute(LayerContext& context, Weights weights, Kept& kept) const {
  const WorkScope scope(context.observer, Work::products);
  bank_.recompute(context, weights, kept.exchange.expert_rows, kept.bank);
}

Tensor RoutedExperts::relayed_back(LayerContext& context, ConstTensorView rows, ConstTensorView weights, Work work,
                                   const Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor sums = during(context.observer, work, [&] {
    Tensor of_tokens = kernels.ledger.allocate(Bucket::moe_routing, setup_.compute, kept.slots.rows(), rows.columns(),
                                               relay_.bound_tokens());
    fill(kernels.stream, of_tokens, 0.0f);
    unpermute_rows(kernels, rows, kept.slots, weights, of_tokens);
    return converted(kernels, std::move(of_tokens), exchanged(), Bucket::moe_routing, relay_.bound_tokens());
  });
  const WorkScope scope(context.observer, Work::exchange);
  sums = relay_.back(context, kept.relay, std::move(sums));
  return converted(kernels, std::move(sums), setup_.compute, Bucket::moe_routing);
}

void RoutedExperts::add_outputs(LayerContext& context, ConstTensorView weights, Kept& kept, TensorView y) const {
  if (relay_.used()) weights = kept.weights;
  if (setup_.weights_at_experts) weights = {};
  if (relay_.used()) {
    const Tensor sums = relayed_back(context, kept.out, weights, Work::combine, kept);
    const WorkScope scope(context.observer, Work::combine);
    add(context.kernels.stream, sums, y);
  } else {
    const WorkScope scope(context.observer, Work::combine);
    unpermute_rows(context.kernels, kept.out, kept.slots, weights, y);
  }
  if (setup_.weights_at_experts) kept.out.reset();
}

Tensor RoutedExperts::output_gradient(LayerContext& context, ConstTensorView dy, ConstTensorView weights, Kept& kept,
                                      Tensor& dweights) const {
  KernelContext& kernels = context.kernels;
  MemoryLedger& ledger = kernels.ledger;
  const WorkScope scope(context.observer, Work::combine);
  if (setup_.weights_at_experts) {
    Tensor storage;
    return permuted_rows(kernels, in_exchanged_dtype(kernels, dy, storage), kept);
  }
  Tensor dout =
      ledger.allocate(Bucket::moe_routing, setup_.compute, kept.out.rows(), dy.columns(), reserved_rows(kept));
  dweights = weight_gradients(kernels, kept);
  if (pads()) fill(kernels.stream, dout, 0.0f);
  unpermute_rows_backward(kernels, dy, kept.out, kept.slots, weights, dout, dweights);
  kept.out.reset();
  return converted(kernels, std::move(dout), exchanged(), Bucket::moe_routing, reserved_rows(kept));
}

Tensor RoutedExperts::weight_gradients(KernelContext& kernels, const Kept& kept) const {
  return kernels.ledger.allocate(Bucket::moe_routing, DType::float32, kept.slots.rows(), kept.slots.columns(),
                                 relay_.used() ? relay_.bound_tokens() : 0);
}

Tensor RoutedExperts::returned_weight_gradients(LayerContext& context, Tensor rows, const Kept& kept) const {
  KernelContext& kernels = context.kernels;
  rows = during(context.observer, Work::exchange, [&] {
    return return_rows(context, kept.exchange, std::move(rows), bank_.bound_rows(), reserved_rows(kept));
  });
  const WorkScope scope(context.observer, Work::permute);
  Tensor dweights = weight_gradients(kernels, kept);
  fill(kernels.stream, dweights, 0.0f);
  unpermute_rows(kernels, rows, in_one_column(kept.slots), {}, in_one_column(dweights.view()));
  return dweights;
}

RoutedExperts::InputGradient RoutedExperts::backward_input(LayerContext& context, Weights weights,
                                                           ConstTensorView choice_weights, ConstTensorView dy,
                                                           const std::function<void()>& beside, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor arrived;
  if (relay_.used()) {
    RowsUnderWay tokens = during(context.observer, Work::exchange, [&] {
      Tensor storage;
      const ConstTensorView sent = in_exchanged_dtype(kernels, dy, storage);
      return relay_.begin(context, kept.relay, sent, std::move(storage));
    });
    beside();
    const WorkScope scope(context.observer, Work::exchange);
    arrived = relay_.finish(context, std::move(tokens));
    if (!setup_.weights_at_experts) {
      arrived = converted(kernels, std::move(arrived), setup_.compute, Bucket::moe_routing, relay_.bound_tokens());
    }
    dy = arrived;
    choice_weights = kept.weights;
  }
  Tensor dweights;
  Tensor dout = output_gradient(context, dy, choice_weights, kept, dweights);
  arrived.reset();
  RowsUnderWay under_way = during(context.observer, Work::exchange, [&] {
    return begin_dispatch(context, kept.exchange, std::move(dout), bank_.bound_rows());
  });
  if (!relay_.used()) beside();
  dout = to_experts(context, kept.exchange, std::move(under_way));
  ExpertBank::InputGradient through = during(context.observer, Work::products, [&] {
    return bank_.backward_input(context, weights, kept.exchange.expert_rows, std::move(dout), kept.bank);
  });
  Tensor drows = from_experts(context, kept, std::move(through.rows));
  if (setup_.weights_at_experts) {
    dweights = returned_weight_gradients(context, std::move(through.row_weights), kept);
  }
  if (relay_.used()) {
    drows = relayed_back(context, drows, {}, Work::permute, kept);
    const WorkScope scope(context.observer, Work::exchange);
    dweights = relay_.back(context, kept.relay, std::move(dweights));
  }
  return {std::move(drows), std::move(dweights)};
}

void RoutedExperts::add_input_gradient(LayerContext& context, Tensor rows, Kept& kept, TensorView dx) const {
  const WorkScope scope(context.observer, Work::permute);
  if (relay_.used()) {
    add(context.kernels.stream, rows, dx);
  } else {
    unpermute_rows(context.kernels, rows, kept.slots, {}, dx);
  }
  kept.slots.reset();
  kept.weights.reset();
  kept.relay.slots.reset();
}

void RoutedExperts::backward_weight(LayerContext& context, Gradients gradients, const Kept& kept) const {
  const WorkScope scope(context.observer, Work::products);
  bank_.backward_weight(context, gradients, kept.exchange.expert_rows, kept.bank);
}

}  // namespace weft
