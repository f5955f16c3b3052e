#include "layers/routed_experts.h"

#include <algorithm>
#include <utility>

#include "layers/kernels/routing.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// A number of each choice as a row of its own.
template <typename View>
View in_one_column(const View& view) {
  return view.reshaped(view.size(), 1);
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
  const std::int64_t of_tokens = most_tokens() * std::min(moe.choices(), relay_.experts());
  return relay_.used() && moe.drops() ? std::min(of_tokens, of_experts) : of_tokens;
}

RoutedExperts::Routed RoutedExperts::even_routed() const {
  const MoeConfig& moe = setup_.model.moe;
  const std::int64_t parts = relay_.parts(), choices = setup_.slice_tokens() * moe.num_experts_per_tok;
  Routed even{.tokens = most_tokens(), .sent = parts * (choices / parts), .received = bank_.even_rows()};
  if (relay_.used() && !setup_.relays_all_tokens) even.tokens = parts * even_copies(moe, parts, setup_.slice_tokens());
  if (moe.drops()) even.sent = relay_.experts() * std::min(capacity_rows(), parts * (choices / moe.num_experts));
  if (pads()) even.sent = most_sent();
  return even;
}

std::int64_t RoutedExperts::output_bytes(const Routed& routed) const {
  return setup_.weights_at_experts ? 0 : routed.sent * setup_.model.hidden_size * size_of(setup_.compute);
}

std::int64_t RoutedExperts::activation_bytes(const Routed& routed) const {
  const std::int64_t numbers = routed.tokens * setup_.model.moe.choices() * size_of(DType::int32);
  return output_bytes(routed) + (relay_.used() ? 2 : 1) * numbers + relay_.kept_bytes() +
         bank_.activation_bytes(routed.received);
}

std::int64_t RoutedExperts::remembered_bytes(const Routed& routed) const {
  const std::int64_t numbers = routed.tokens * setup_.model.moe.choices() * size_of(DType::int32);
  std::int64_t bytes = relay_.kept_bytes() + bank_.row_weight_bytes(routed.received);
  if (relay_.used()) {
    bytes += 2 * numbers;
  } else if (setup_.model.moe.drops()) {
    bytes += numbers;
  }
  if (!setup_.keep_dispatch) return bytes;
  return bytes + output_bytes(routed) + routed.received * setup_.model.hidden_size * size_of(setup_.expert_compute);
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
  // are dropped or null, or other ranks' tokens are relayed; `received` and `gathered` are bounds. With padding all are
  // exact. All include the rows that stay on the rank, as communicators count bytes, and over all ranks the sums of the
  // first two are equal.
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
  // `out`: to the experts.
  const auto add = [&](When when, bool out, std::int64_t bytes, bool once) {
    const bool bound = !pads() && (!out || moe.drops() || moe.null_copies() > 0 || relay_.used());
    const int beside = relay_.used() ? 0 : out ? 1 : 2;  // with a relay the exchange of tokens is
    if (exchange_ranks() > 1) {
      result.push_back({when, CollectiveOp::all_to_all, exchange_group(), 1, (out ? most_sent() : received) * bytes,
                        bound, even * bytes, once, beside});
    }
    if (setup_.expert_tensor > 1) {
      result.push_back({when, out ? CollectiveOp::all_gather : CollectiveOp::reduce_scatter, Group::etp, 1,
                        gathered * bytes, !pads(), setup_.expert_tensor * even * bytes, once});
    }
  };
  if (exchange_ranks() > 1) add_counts(exchange_group(), exchange_ranks());
  if (setup_.expert_tensor > 1) add_counts(Group::etp, setup_.expert_tensor * exchange_ranks());
  for (When when : {When::forward, When::backward_input}) {
    const bool forward = when == When::forward;
    add(when, /*out=*/true, row, forward && setup_.keep_dispatch);
    add(when, /*out=*/false, row, forward && (setup_.keep_dispatch || setup_.weights_at_experts));
  }
  if (setup_.weights_at_experts) {
    add(When::forward, /*out=*/true, weight, /*once=*/true);
    add(When::backward_input, /*out=*/false, weight, /*once=*/false);
  }
  return result;
}

ExchangePlan RoutedExperts::plan_of_full_experts(const LayerContext& context) const {
  const std::int64_t counts = context.expert_tensor.size() * context.expert.size() * relay_.experts();
  return plan_exchange(
      context, std::vector<std::int32_t>(static_cast<std::size_t>(counts), static_cast<std::int32_t>(capacity_rows())));
}

void RoutedExperts::wait_for_counts(const LayerContext& context, Kept& kept) const {
  if (!kept.open.counting) return;
  kept.open.counting->finish();
  kept.exchange = plan_exchange(context, kept.open.counting->as<std::int32_t>());
  kept.open.counting.reset();
}

void RoutedExperts::route(LayerContext& context, ConstTensorView taken, ConstTensorView weights, Tensor counts,
                          Tensor slots, bool some_unrouted, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  Tensor relayed;
  if (relay_.used()) {
    slots.reset();
    kept.relay = relay_.plan(context, taken);
    relayed = relay_.pass(context, kept.relay, taken);
    kept.weights = relay_.pass(context, kept.relay, weights);
    choices_within(kernels, relayed, relay_.first_expert(), relay_.experts(), relayed);
    counts = kernels.routing(DType::int32, relay_.experts(), 1);
    slots = kernels.routing(DType::int32, relayed.rows(), relayed.columns(), relay_.bound_tokens());
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
    kept.open.counting = gather_counts(kernels, {&context.expert, &context.expert_tensor}, counts);
  }
}

ConstTensorView RoutedExperts::in_exchanged_dtype(KernelContext& kernels, ConstTensorView rows, Tensor& storage) const {
  if (exchanged() == rows.dtype()) return rows;
  storage = kernels.routing(exchanged(), rows.rows(), rows.columns());
  cast(kernels.stream, rows, storage);
  return storage;
}

Tensor RoutedExperts::permuted_rows(KernelContext& kernels, ConstTensorView x, const Kept& kept) const {
  const std::int64_t rows = kept.some_unrouted ? sum(kept.exchange.send_rows) : kept.slots.view().size();
  Tensor permuted = kernels.routing(exchanged(), rows, x.columns(), reserved_rows(kept));
  if (pads()) fill(kernels.stream, permuted, 0.0f);
  permute_rows(kernels, x, kept.slots, permuted);
  return permuted;
}

void RoutedExperts::start(LayerContext& context, RowsUnderWay& rows, Kept& kept) const {
  wait_for_counts(context, kept);
  if (rows.ready()) start_exchange(context, kept.exchange, rows, rows.back ? reserved_rows(kept) : bank_.bound_rows());
}

void RoutedExperts::exchange(LayerContext& context, Kept& kept) const {
  const WorkScope scope(context.observer, Work::exchange);
  for (RowsUnderWay* rows : {&kept.open.rows, &kept.open.weights}) {
    if (!rows->ready()) continue;
    relay_.used() ? relay_.start(context, kept.relay, *rows) : start(context, *rows, kept);
  }
}

Tensor RoutedExperts::to_experts(LayerContext& context, Kept& kept) const {
  const WorkScope scope(context.observer, Work::exchange);
  Tensor rows = finish_dispatch(context, kept.exchange, std::exchange(kept.open.rows, {}), bank_.bound_rows());
  return converted(context.kernels, std::move(rows), setup_.expert_compute, Bucket::moe_routing, bank_.bound_rows());
}

RowsUnderWay RoutedExperts::from_experts(LayerContext& context, const Kept& kept, Tensor rows) const {
  const WorkScope scope(context.observer, Work::exchange);
  rows = converted(context.kernels, std::move(rows), exchanged(), Bucket::moe_routing, bank_.bound_rows());
  return prepare_return(context, kept.exchange, std::move(rows), bank_.bound_rows());
}

Tensor RoutedExperts::returned(LayerContext& context, Kept& kept) const {
  const WorkScope scope(context.observer, Work::exchange);
  Tensor rows = finish_return(context, std::exchange(kept.open.rows, {}));
  return converted(context.kernels, std::move(rows), setup_.compute, Bucket::moe_routing, reserved_rows(kept));
}

void RoutedExperts::prepare_rows(LayerContext& context, ConstTensorView choice_weights, ConstTensorView x,
                                 Kept& kept) const {
  KernelContext& kernels = context.kernels;
  // The number of rows is known at once if every token is routed.
  if (kept.some_unrouted) wait_for_counts(context, kept);
  during(context.observer, Work::permute, [&] {
    Tensor storage;  // rows are converted before a copy is made for each choice
    kept.open.rows = {.leaving = permuted_rows(kernels, in_exchanged_dtype(kernels, x, storage), kept)};
  });
  if (!setup_.weights_at_experts || kept.bank.row_weights.allocated()) return;
  const WorkScope scope(context.observer, Work::permute);
  Tensor sorted = kernels.routing(DType::float32, kept.open.rows.leaving.rows(), 1, reserved_rows(kept));
  if (pads()) fill(kernels.stream, sorted, 0.0f);
  permute_rows(kernels, in_one_column(choice_weights), in_one_column(kept.slots.view()), sorted);
  kept.open.weights = {.leaving = std::move(sorted)};
}

void RoutedExperts::begin_forward(LayerContext& context, ConstTensorView choice_weights, ConstTensorView x,
                                  Kept& kept) const {
  if (reuses_rows(context)) return;
  if (!relay_.used()) return prepare_rows(context, choice_weights, x, kept);
  const WorkScope scope(context.observer, Work::exchange);
  Tensor storage;
  const ConstTensorView sent = in_exchanged_dtype(context.kernels, x, storage);
  kept.open.rows = relay_.prepare(context, kept.relay, sent, std::move(storage));
}

void RoutedExperts::run(LayerContext& context, Weights weights, Kept& kept) const {
  const auto recompute = [&] {
    const WorkScope scope(context.observer, Work::products);
    bank_.recompute(context, weights, kept.exchange.expert_rows, kept.bank);
  };
  if (reuses_rows(context)) return recompute();
  if (relay_.used()) {
    const Tensor tokens = during(context.observer, Work::exchange,
                                 [&] { return relay_.finish(context, kept.relay, std::exchange(kept.open.rows, {})); });
    prepare_rows(context, kept.weights, tokens, kept);
    const WorkScope scope(context.observer, Work::exchange);
    for (RowsUnderWay* rows : {&kept.open.rows, &kept.open.weights}) start(context, *rows, kept);
  }
  if (setup_.weights_at_experts && !kept.bank.row_weights.allocated()) {
    const WorkScope scope(context.observer, Work::exchange);
    Tensor row_weights =
        finish_dispatch(context, kept.exchange, std::exchange(kept.open.weights, {}), bank_.bound_rows());
    bank_.take_weights(context, kept.exchange.expert_rows, std::move(row_weights), kept.bank);
  }
  Tensor rows = to_experts(context, kept);
  if (context.recomputing && setup_.weights_at_experts) {  // outputs are not read again
    kept.bank.rows = std::move(rows);
    return recompute();
  }
  Tensor out = during(context.observer, Work::products, [&] {
    return bank_.forward(context, weights, kept.exchange.expert_rows, std::move(rows), kept.bank);
  });
  kept.open.rows = from_experts(context, kept, std::move(out));
  if (!relay_.used()) return;
  during(context.observer, Work::exchange, [&] { start(context, kept.open.rows, kept); });
  kept.out = returned(context, kept);
  if (context.recomputing) return;
  const ConstTensorView of_choices = setup_.weights_at_experts ? ConstTensorView() : kept.weights.view();
  kept.open.rows = sums_of_tokens(context, kept.out, of_choices, Work::combine, kept);
}

void RoutedExperts::end_forward(LayerContext& context, ConstTensorView choice_weights, Kept& kept, TensorView y) const {
  KernelContext& kernels = context.kernels;
  if (kept.open.rows.arriving.allocated() && !relay_.used()) kept.out = returned(context, kept);
  if (context.recomputing) return;
  if (relay_.used()) {
    const Tensor sums = during(context.observer, Work::exchange, [&] { return returned_sums(context, kept); });
    const WorkScope scope(context.observer, Work::combine);
    add(kernels.stream, sums, y);
  } else {
    const WorkScope scope(context.observer, Work::combine);
    unpermute_rows(kernels, kept.out, kept.slots, setup_.weights_at_experts ? ConstTensorView() : choice_weights, y);
  }
  if (setup_.weights_at_experts) kept.out.reset();
}

RowsUnderWay RoutedExperts::sums_of_tokens(LayerContext& context, ConstTensorView rows, ConstTensorView weights,
                                           Work work, const Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const WorkScope scope(context.observer, work);
  Tensor sums = kernels.routing(setup_.compute, kept.slots.rows(), rows.columns(), relay_.bound_tokens());
  fill(kernels.stream, sums, 0.0f);
  unpermute_rows(kernels, rows, kept.slots, weights, sums);
  return TokenRelay::prepare_back(
      converted(kernels, std::move(sums), exchanged(), Bucket::moe_routing, relay_.bound_tokens()));
}

Tensor RoutedExperts::returned_sums(LayerContext& context, Kept& kept) const {
  return converted(context.kernels, relay_.finish(context, kept.relay, std::exchange(kept.open.rows, {})),
                   setup_.compute, Bucket::moe_routing);
}

Tensor RoutedExperts::output_gradient(LayerContext& context, ConstTensorView dy, ConstTensorView weights, Kept& kept,
                                      Tensor& dweights) const {
  KernelContext& kernels = context.kernels;
  const WorkScope scope(context.observer, Work::combine);
  if (setup_.weights_at_experts) {
    Tensor storage;
    return permuted_rows(kernels, in_exchanged_dtype(kernels, dy, storage), kept);
  }
  Tensor dout = kernels.routing(setup_.compute, kept.out.rows(), dy.columns(), reserved_rows(kept));
  dweights = weight_gradients(kernels, kept);
  if (pads()) fill(kernels.stream, dout, 0.0f);
  unpermute_rows_backward(kernels, dy, kept.out, kept.slots, weights, dout, dweights);
  kept.out.reset();
  return converted(kernels, std::move(dout), exchanged(), Bucket::moe_routing, reserved_rows(kept));
}

Tensor RoutedExperts::weight_gradients(KernelContext& kernels, const Kept& kept) const {
  return kernels.routing(DType::float32, kept.slots.rows(), kept.slots.columns(),
                         relay_.used() ? relay_.bound_tokens() : 0);
}

Tensor RoutedExperts::returned_weight_gradients(LayerContext& context, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const Tensor rows = during(context.observer, Work::exchange,
                             [&] { return finish_return(context, std::exchange(kept.open.weights, {})); });
  const WorkScope scope(context.observer, Work::permute);
  Tensor dweights = weight_gradients(kernels, kept);
  fill(kernels.stream, dweights, 0.0f);
  unpermute_rows(kernels, rows, in_one_column(kept.slots.view()), {}, in_one_column(dweights.view()));
  return dweights;
}

void RoutedExperts::begin_backward(LayerContext& context, ConstTensorView choice_weights, ConstTensorView dy,
                                   Kept& kept) const {
  if (relay_.used()) {
    const WorkScope scope(context.observer, Work::exchange);
    Tensor storage;
    const ConstTensorView sent = in_exchanged_dtype(context.kernels, dy, storage);
    kept.open.rows = relay_.prepare(context, kept.relay, sent, std::move(storage));
  } else {
    kept.open.rows = {.leaving = output_gradient(context, dy, choice_weights, kept, kept.open.dweights)};
  }
}

void RoutedExperts::run_backward(LayerContext& context, Weights weights, Kept& kept) const {
  if (relay_.used()) {
    Tensor dy = during(context.observer, Work::exchange, [&] {
      Tensor arrived = relay_.finish(context, kept.relay, std::exchange(kept.open.rows, {}));
      if (setup_.weights_at_experts) return arrived;
      return converted(context.kernels, std::move(arrived), setup_.compute, Bucket::moe_routing, relay_.bound_tokens());
    });
    kept.open.rows = {.leaving = output_gradient(context, dy, kept.weights, kept, kept.open.dweights)};
    dy.reset();
    during(context.observer, Work::exchange, [&] { start(context, kept.open.rows, kept); });
  }
  Tensor dout = to_experts(context, kept);
  ExpertBank::InputGradient through = during(context.observer, Work::products, [&] {
    return bank_.backward_input(context, weights, kept.exchange.expert_rows, std::move(dout), kept.bank);
  });
  kept.open.rows = from_experts(context, kept, std::move(through.rows));
  if (setup_.weights_at_experts) {
    const WorkScope scope(context.observer, Work::exchange);
    kept.open.weights = prepare_return(context, kept.exchange, std::move(through.row_weights), bank_.bound_rows());
  }
  if (!relay_.used()) return;
  during(context.observer, Work::exchange, [&] {
    for (RowsUnderWay* rows : {&kept.open.rows, &kept.open.weights}) start(context, *rows, kept);
  });
  const Tensor drows = returned(context, kept);
  if (setup_.weights_at_experts) kept.open.dweights = returned_weight_gradients(context, kept);
  kept.open.rows = sums_of_tokens(context, drows, {}, Work::permute, kept);
  kept.open.weights = TokenRelay::prepare_back(std::move(kept.open.dweights));
}

RoutedExperts::InputGradient RoutedExperts::end_backward(LayerContext& context, Kept& kept) const {
  if (relay_.used()) {
    const WorkScope scope(context.observer, Work::exchange);
    Tensor rows = returned_sums(context, kept);
    return {std::move(rows), relay_.finish(context, kept.relay, std::exchange(kept.open.weights, {}))};
  }
  Tensor rows = returned(context, kept);
  if (setup_.weights_at_experts) return {std::move(rows), returned_weight_gradients(context, kept)};
  return {std::move(rows), std::move(kept.open.dweights)};
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
