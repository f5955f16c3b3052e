#include "layers/token_relay.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <tuple>

#include "layers/kernels/routing.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// Probability that none of `drawn` different items of `all` is among the `here` first.
double probability_of_none(std::int64_t all, std::int64_t here, std::int64_t drawn) {
  double none = 1.0;
  for (std::int64_t i = 0; i < drawn; ++i) {
    none *= static_cast<double>(std::max<std::int64_t>(all - here - i, 0)) / static_cast<double>(all - i);
  }
  return none;
}

// Ways to choose so many of `all`. Exact for the groups of a router, of which there are few.
double ways_to_choose(std::int64_t all, std::int64_t chosen) {
  double ways = 1.0;
  for (std::int64_t i = 0; i < chosen; ++i) ways *= static_cast<double>(all - i) / static_cast<double>(i + 1);
  return ways;
}

// Of a part with whole groups or a part of one: over the number of its groups that a token chooses from.
double probability_of_no_choice(const MoeConfig& moe, int parts) {
  const std::int64_t groups = moe.n_group, chosen = moe.topk_group, of_group = moe.num_experts / groups;
  const std::int64_t here = std::max<std::int64_t>(groups / parts, 1);  // groups of a part
  const std::int64_t experts_here = std::min(of_group, moe.num_experts / parts);
  double none = 0.0;
  for (std::int64_t j = std::max<std::int64_t>(0, chosen + here - groups); j <= std::min(here, chosen); ++j) {
    const double probability =
        ways_to_choose(here, j) * ways_to_choose(groups - here, chosen - j) / ways_to_choose(groups, chosen);
    none += probability * probability_of_none(chosen * of_group + moe.null_copies(), j * experts_here, moe.choices());
  }
  return none;
}

// Choice k of the token at place t is expert (K t + k) mod P (RoutingRule::in_turn).
double mean_copies_in_turn(const MoeConfig& moe, int parts) {
  const std::int64_t pool = moe.pool(), chosen = moe.choices();
  std::int64_t copies = 0;
  for (std::int64_t token = 0; token < pool; ++token) {
    std::set<std::int64_t> reached;
    for (std::int64_t k = 0; k < chosen; ++k) {
      const std::int64_t expert = (chosen * token + k) % pool;
      if (expert < moe.num_experts) reached.insert(expert / (moe.num_experts / parts));
    }
    copies += std::ssize(reached);
  }
  return static_cast<double>(copies) / static_cast<double>(pool);
}

}  // namespace

TokenCopies copies_of_token(const MoeConfig& moe, int parts) {
  TokenCopies copies{.most = std::min<std::int64_t>(parts, moe.choices())};
  if (moe.force_balance) {
    copies.mean = mean_copies_in_turn(moe, parts);
    return copies;
  }
  const bool aligned = moe.n_group % parts == 0 || parts % moe.n_group == 0;
  if (aligned) {
    copies.most = std::min(copies.most, moe.topk_group * std::max<std::int64_t>(parts / moe.n_group, 1));
    copies.mean = parts * (1.0 - probability_of_no_choice(moe, parts));
  } else {
    const std::int64_t here = moe.num_experts / parts;
    copies.mean = parts * (1.0 - probability_of_none(moe.num_experts, here, moe.num_experts_per_tok));
  }
  return copies;
}

std::int64_t even_copies(const MoeConfig& moe, int parts, std::int64_t tokens) {
  return static_cast<std::int64_t>(
      std::llround(static_cast<double>(tokens) * copies_of_token(moe, parts).mean / parts));
}

std::int64_t TokenRelay::first_expert() const {
  return setup_.expert_rank / (setup_.expert / parts()) * experts();
}

std::int64_t TokenRelay::kept_bytes() const {
  if (!used() || setup_.relays_all_tokens) return 0;
  return setup_.slice_tokens() * setup_.model.moe.choices() * size_of(DType::int32);
}

std::vector<SegmentTraffic> TokenRelay::traffic(std::int64_t row) const {
  using When = SegmentTraffic::When;
  std::vector<SegmentTraffic> result;
  if (!used()) return result;
  const std::int64_t numbers = setup_.model.moe.choices() * size_of(DType::int32);
  const bool all = setup_.relays_all_tokens;
  // Rows that all_to_all counts are those sent: copies on the way out, arrived tokens on the way back.
  const std::int64_t sent = all ? bound_tokens() : bound_copies();
  const std::int64_t even = all ? setup_.slice_tokens() : even_copies(setup_.model.moe, parts(), setup_.slice_tokens());
  const auto add = [&](When when, bool out, std::int64_t count, std::int64_t of_row, bool once, int beside) {
    const CollectiveOp op = !all  ? CollectiveOp::all_to_all
                            : out ? CollectiveOp::all_gather
                                  : CollectiveOp::reduce_scatter;
    result.push_back({when, op, Group::ep_relay, count, count * (out ? sent : bound_tokens()) * of_row, !all,
                      count * parts() * even * of_row, once, beside});
  };
  if (!all) {
    result.push_back({.when = When::forward,
                      .op = CollectiveOp::all_gather,
                      .group = Group::ep_relay,
                      .count = 1,
                      .bytes = std::int64_t{parts()} * parts() * size_of(DType::int32),
                      .once = true});
  }
  add(When::forward, /*out=*/true, 2, numbers, /*once=*/true, /*beside=*/0);  // indices and weights
  for (const When when : {When::forward, When::backward_input}) {
    const bool forward = when == When::forward;
    add(when, /*out=*/true, 1, row, /*once=*/forward && setup_.keep_dispatch, /*beside=*/1);
    // The tensor that comes back is read by the next block alone.
    add(when, /*out=*/false, 1, row, /*once=*/forward, /*beside=*/2);
  }
  add(When::backward_input, /*out=*/false, 1, numbers, /*once=*/false, /*beside=*/2);  // gradients of weights
  return result;
}

TokenRelay::Kept TokenRelay::plan(LayerContext& context, ConstTensorView choices) const {
  Kept kept;
  if (setup_.relays_all_tokens) {
    kept.send_rows.assign(static_cast<std::size_t>(parts()), setup_.slice_tokens());
    kept.receive_rows = kept.send_rows;
    return kept;
  }
  KernelContext& kernels = context.kernels;
  Tensor counts = kernels.routing(DType::int32, parts(), 1);
  kept.slots = kernels.routing(DType::int32, choices.rows(), choices.columns());
  Tensor reached = kernels.routing(DType::int32, choices.rows(), choices.columns());
  parts_chosen(kernels, choices, experts(), reached);
  sort_by_expert(kernels, reached, /*some_unrouted=*/true, counts, kept.slots);
  const std::unique_ptr<Staging> exchanged = gather_counts(kernels, {&context.expert_relay}, counts);
  exchanged->finish();
  const auto all = exchanged->as<std::int32_t>();  // [sender, receiver]
  const auto ranks = static_cast<std::size_t>(parts()), self = static_cast<std::size_t>(context.expert_relay.rank());
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    kept.send_rows.push_back(all[self * ranks + peer]);
    kept.receive_rows.push_back(all[peer * ranks + self]);
  }
  return kept;
}

RowsUnderWay TokenRelay::prepare(LayerContext& context, const Kept& kept, ConstTensorView rows, Tensor storage) const {
  if (setup_.relays_all_tokens) return {.leaving = std::move(storage), .source = rows};
  Tensor copies = context.kernels.routing(rows.dtype(), sum(kept.send_rows), rows.columns(), bound_copies());
  permute_rows(context.kernels, rows, kept.slots, copies);
  return {.leaving = std::move(copies)};
}

void TokenRelay::start(LayerContext& context, const Kept& kept, RowsUnderWay& rows) const {
  Communicator& group = context.expert_relay;
  const ConstTensorView sent = rows.sent();
  const std::int64_t columns = sent.columns();
  const bool all = setup_.relays_all_tokens;
  const auto& [there, here] =
      rows.back ? std::tie(kept.receive_rows, kept.send_rows) : std::tie(kept.send_rows, kept.receive_rows);
  const bool sums = rows.back && all;
  rows.arriving = context.kernels.routing(sent.dtype(), sums ? setup_.slice_tokens() : sum(here), columns,
                                          sums        ? 0
                                          : rows.back ? bound_copies()
                                                      : bound_tokens());
  group.stream().wait_for(context.kernels.stream);  // for the memory of `arriving` too
  if (sums) {
    group.reduce_scatter(sent, rows.arriving);
  } else if (all) {
    group.all_gather(sent, rows.arriving);
  } else {
    group.all_to_all(sent, elements(there, columns), rows.arriving, elements(here, columns));
  }
  rows.arrived = group.stream().record();
}

Tensor TokenRelay::finish(LayerContext& context, const Kept& kept, RowsUnderWay rows) const {
  context.kernels.stream.wait(rows.arrived);
  if (!rows.back || setup_.relays_all_tokens) return std::move(rows.arriving);
  rows.leaving.reset();
  Tensor result = context.kernels.routing(rows.arriving.dtype(), setup_.slice_tokens(), rows.arriving.columns());
  fill(context.kernels.stream, result, 0.0f);
  unpermute_rows(context.kernels, rows.arriving, kept.slots, {}, result);
  return result;
}

Tensor TokenRelay::pass(LayerContext& context, const Kept& kept, ConstTensorView rows) const {
  RowsUnderWay under_way = prepare(context, kept, rows);
  start(context, kept, under_way);
  return finish(context, kept, std::move(under_way));
}

}  // namespace weft
