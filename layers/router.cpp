#include "layers/router.h"

#include <algorithm>

#include "layers/context_parallel.h"
#include "layers/kernels/multiply.h"
#include "layers/kernels/routing.h"
#include "parallel/runtime/elementwise.h"

namespace weft {
namespace {

// Without places.
RoutingRule routing_rule(const MoeConfig& moe) {
  return {moe.scoring, moe.norm_topk_prob, static_cast<float>(moe.routed_scaling_factor),
          moe.n_group, moe.topk_group,     moe.force_balance,
          {},          moe.null_copies()};
}

}  // namespace

Router::Router(const SegmentSetup& setup, const std::string& name, int block)
    : setup_(setup), name_(name), block_(block) {}

std::vector<ParameterSpec> Router::parameters() const {
  const MoeConfig& moe = setup_.model.moe;
  std::vector<ParameterSpec> parameters = {whole_parameter(name_ + ".weight", Family::routing, moe.router_rows(),
                                                           setup_.model.hidden_size, Initializer::normal,
                                                           setup_.model.initializer_range)};
  if (moe.selection_bias) {
    parameters.push_back(
        whole_parameter(name_ + ".selection_bias", Family::helpers, moe.router_rows(), 1, Initializer::zeros));
  }
  return parameters;
}

std::int64_t Router::balanced_sequences() const {
  const bool each = setup_.model.moe.aux_loss == AuxiliaryLoss::sequence;
  return each ? setup_.sequences() : 1;
}

double Router::balance_factor(const LayerContext& context) const {
  if (balances_step()) return setup_.model.moe.router_aux_loss_coef * context.token_factor;
  return setup_.model.moe.router_aux_loss_coef * context.sequence_factor * static_cast<double>(setup_.sequences()) /
         static_cast<double>(balanced_sequences());
}

TokenSlice Router::slice() const {
  return {setup_.tensor_rank * setup_.slice_tokens(), setup_.microbatch_tokens / balanced_sequences(),
          setup_.sequences() / balanced_sequences() * setup_.sequence_length};
}

TokenSlice Router::slice(const Kept& kept) const {
  TokenSlice all = slice();
  if (!kept.targets.empty()) {
    all.sequence_length = 0;
    all.targets = kept.targets.as<std::int32_t>().data();
  }
  if (balances_step()) all.sequence_length = 1;
  return all;
}

TokenPlaces Router::places(std::int64_t number) const {
  const auto runs = context_runs(setup_.sequence_length, setup_.context, setup_.context_rank);
  const Range first = runs.front(), second = runs.back();
  TokenPlaces places{.first_place = number * setup_.sequences() * setup_.sequence_length + first.begin,
                     .first_row = slice().first_token};
  if (setup_.context == 1) return places;
  places.run = first.count;
  places.inside = second.begin - first.begin - first.count;
  places.between = setup_.sequence_length + first.begin - second.begin - second.count;
  return places;
}

std::int64_t Router::activation_bytes() const {
  const MoeConfig& moe = setup_.model.moe;
  const std::int64_t input = keeps_input() ? setup_.model.hidden_size : 0;
  return setup_.slice_tokens() * (input + moe.router_rows() + moe.pool() + 2 * moe.choices()) * 4 + balance_bytes();
}

std::int64_t Router::balance_bytes() const {
  return balances() ? 2 * balanced_sequences() * setup_.model.moe.pool() * size_of(DType::float32) : 0;
}

std::int64_t Router::pending_bytes() const {
  if (!setup_.trains(Family::routing)) return 0;
  const std::int64_t input = keeps_input() ? setup_.model.hidden_size : 0;
  return setup_.slice_tokens() * (input + setup_.model.moe.router_rows()) * size_of(DType::float32);
}

std::vector<SegmentTraffic> Router::traffic() const {
  using When = SegmentTraffic::When;
  std::vector<SegmentTraffic> traffic;
  if (setup_.model.moe.drops()) {
    // Indices and weights, of four bytes each.
    const std::int64_t bytes = 2 * setup_.microbatch_tokens * setup_.model.moe.choices() * 4;
    const auto gather = [&](Group group, int ranks, std::int64_t all) {
      if (ranks == 1) return;
      traffic.push_back({.when = When::forward,
                         .op = CollectiveOp::all_gather,
                         .group = group,
                         .count = 2,
                         .bytes = all,
                         .once = true});
    };
    gather(Group::tp, setup_.tensor, bytes);
    gather(Group::cp, setup_.context, setup_.context * bytes);
  }
  if (!balances()) return traffic;
  const auto reduce = [&](Group group) {
    const std::int64_t choices = setup_.model.moe.router_rows() * size_of(DType::float64);
    traffic.push_back({.when = When::forward,
                       .op = CollectiveOp::all_reduce,
                       .group = group,
                       .count = 1,
                       .bytes = balances_step() ? choices : balance_bytes(),
                       .once = true});
  };
  const bool global = setup_.model.moe.aux_loss == AuxiliaryLoss::global;
  if (global) reduce(Group::tokens);
  if (!global && setup_.tensor > 1) reduce(Group::tp);
  if (!global && setup_.context > 1) reduce(Group::cp);
  return traffic;
}

ConstTensorView Router::router_input(KernelContext& kernels, ConstTensorView x, ConstTensorView noise_keys,
                                     Tensor& storage) const {
  const bool wide = x.dtype() == DType::float32;
  if (wide && noise_keys.empty()) return x;
  storage = kernels.routing(DType::float32, x.rows(), x.columns());
  if (!wide) cast(kernels.stream, x, storage);
  if (!noise_keys.empty()) add_noise(kernels, wide ? x : storage, noise_keys, storage);
  return storage;
}

// Blocks draw other numbers for the same token.
void Router::add_noise(KernelContext& kernels, ConstTensorView x, ConstTensorView noise_keys, TensorView y) const {
  jitter_rows(kernels, x, noise_keys, static_cast<std::uint32_t>(block_) * 0x27d4eb2fu,
              static_cast<float>(setup_.model.moe.router_jitter_noise), y);
}

void Router::forward(LayerContext& context, Weights weights, const MicrobatchInput& text, ConstTensorView x,
                     Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const MoeConfig& moe = setup_.model.moe;
  if (!text.document_begins.empty()) {
    kept.targets = text.targets.rows_from(slice().first_token, setup_.slice_tokens());
  }
  if (moe.router_jitter_noise > 0.0 && !text.noise_keys.empty()) {
    kept.noise_keys = text.noise_keys.rows_from(slice().first_token, setup_.slice_tokens());
  }
  const ConstTensorView input = router_input(kernels, x, kept.noise_keys, kept.input);
  kept.logits = kernels.routing(DType::float32, x.rows(), moe.router_rows());
  multiply(kernels, input, Transpose::no, weights[0], Transpose::yes, kept.logits, false);
  if (!keeps_input()) kept.input.reset();
  kept.scores = kernels.routing(DType::float32, x.rows(), moe.pool());
  kept.indices = kernels.routing(DType::int32, x.rows(), moe.choices());
  kept.weights = kernels.routing(DType::float32, x.rows(), moe.choices());
  RoutingRule rule = routing_rule(moe);
  if (rule.in_turn) rule.places = places(text.number);
  route_forward(kernels, kept.logits, rule, moe.selection_bias ? weights[1] : ConstTensorView(), slice(kept).targets,
                kept.scores, kept.indices, kept.weights);
}

Tensor Router::within_capacity(LayerContext& context, const Kept& kept, const Tensor& chosen) const {
  KernelContext& kernels = context.kernels;
  const MoeConfig& moe = setup_.model.moe;
  const std::int64_t own = setup_.microbatch_tokens, choices = moe.choices();
  const std::int64_t first = context.sequence.rank() * own, slice_first = slice().first_token;
  const RowBlocks blocks = token_blocks(setup_);
  // Of all ranks that share the sequences, in the order of positions.
  const auto whole = [&](const Tensor& part) {
    Tensor by_rank = kernels.routing(part.dtype(), setup_.context * own, choices);
    const TensorView here = by_rank.view().rows_from(first, own);
    cast(kernels.stream, part, here.rows_from(slice_first, setup_.slice_tokens()));
    context.tensor.all_gather(here.rows_from(slice_first, setup_.slice_tokens()), here);
    if (setup_.context == 1) return by_rank;
    context.sequence.all_gather(here, by_rank);
    return reordered(kernels, Bucket::moe_routing, blocks, /*sorted=*/true, by_rank);
  };
  Tensor all = whole(chosen);
  limit_choices(kernels, whole(kept.weights), setup_.sequence_length, moe.num_experts,
                moe.capacity(setup_.sequence_length), moe.drop_policy, all);
  if (setup_.context > 1) all = reordered(kernels, Bucket::moe_routing, blocks, /*sorted=*/false, all);
  if (setup_.slice_tokens() == all.rows()) return all;
  Tensor part = kernels.routing(DType::int32, setup_.slice_tokens(), choices);
  cast(kernels.stream, all.view().rows_from(first + slice_first, setup_.slice_tokens()), part);
  return part;
}

// The step's choices so far, per token: this rank's from the report, summed over all ranks with other tokens, or over
// those of its batch. Those of null slots count as choices of the first of them: all have the same scores.
void Router::average_choices(LayerContext& context, TensorView counts) const {
  KernelContext& kernels = context.kernels;
  Tensor choices = kernels.routing(DType::float64, setup_.model.moe.router_rows(), 1);
  cast(kernels.stream, context.report.choices(block_).rows_from(0, choices.rows()), choices);
  if (setup_.model.moe.aux_loss == AuxiliaryLoss::global) {
    context.tokens.all_reduce(choices);
  } else {
    context.tensor.all_reduce(choices);
    context.sequence.all_reduce(choices);
  }
  fill(kernels.stream, counts, 0.0f);
  scale_counts(kernels, choices, static_cast<double>(setup_.model.moe.choices()),
               counts.reshaped(counts.size(), 1).rows_from(0, choices.rows()));
}

void Router::balance(LayerContext& context, Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const MoeConfig& moe = setup_.model.moe;
  if (!balances()) return;
  // Counts and score sums travel as one message: rows [0, sequences) and [sequences, 2 * sequences).
  const std::int64_t sequences = balanced_sequences();
  kept.expert_counts = kernels.routing(DType::float32, 2 * sequences, moe.pool());
  const TensorView counts = kept.expert_counts.view().rows_from(0, sequences);
  const TensorView score_sums = kept.expert_counts.view().rows_from(sequences, sequences);
  const TokenSlice counted = slice(kept);
  expert_statistics(kernels, kept.scores, kept.indices, moe.scoring, counted, counts, score_sums);
  // Every rank of both groups then has the loss of the whole microbatch; only one reports it. If choices are those of
  // all ranks, each rank reports the loss of its own scores.
  if (balances_step()) {
    average_choices(context, counts);
  } else {
    context.tensor.all_reduce(kept.expert_counts);
    context.sequence.all_reduce(kept.expert_counts);
  }
  if (balances_step() || (context.tensor.rank() == 0 && context.sequence.rank() == 0)) {
    auxiliary_loss(kernels, counts, score_sums, moe.choices(), counted.sequence_length, balance_factor(context),
                   context.report.auxiliary_loss(block_));
  }
}

Tensor Router::backward_input(LayerContext& context, ConstTensorView weight, ConstTensorView dweights,
                              Kept& kept) const {
  KernelContext& kernels = context.kernels;
  const MoeConfig& moe = setup_.model.moe;
  const std::int64_t tokens = kept.scores.rows();
  Tensor dscores;
  if (balances()) {
    dscores = kernels.routing(DType::float32, tokens, moe.pool());
    fill(kernels.stream, dscores, 0.0f);
    const std::int64_t sequences = kept.expert_counts.rows() / 2;
    const double factor = balance_factor(context) * context.loss_scale;
    auxiliary_loss_backward(kernels, kept.scores, kept.expert_counts.view().rows_from(0, sequences), moe.scoring,
                            slice(kept), moe.choices(), static_cast<float>(factor), dscores);
  }
  kept.dlogits = kernels.routing(DType::float32, tokens, moe.router_rows());
  route_backward(kernels, dweights, dscores, kept.scores, kept.indices, routing_rule(moe), kept.dlogits);
  if (moe.router_z_loss_coef != 0.0) {
    const double factor = moe.router_z_loss_coef * context.token_factor;
    z_loss(kernels, kept.logits, std::max<std::int64_t>(moe.null_copies(), 1), slice(kept).targets, factor,
           static_cast<float>(factor * context.loss_scale), kept.dlogits, context.report.z_loss(block_));
  }
  Tensor dx = kernels.routing(DType::float32, tokens, setup_.model.hidden_size);
  multiply(kernels, kept.dlogits, Transpose::no, weight, Transpose::no, dx, false);
  if (!kept.noise_keys.empty()) add_noise(kernels, dx, kept.noise_keys, dx);
  for (Tensor* tensor : {&kept.logits, &kept.scores, &kept.indices, &kept.weights, &kept.expert_counts}) {
    tensor->reset();
  }
  if (!setup_.trains(Family::routing)) kept = {};
  if (setup_.compute == DType::float32) return dx;
  Tensor narrow = kernels.routing(setup_.compute, tokens, setup_.model.hidden_size);
  cast(kernels.stream, dx, narrow);
  return narrow;
}

void Router::backward_weight(LayerContext& context, const Gradient& gradient, ConstTensorView x,
                             const Kept& kept) const {
  if (gradient.empty()) return;  // frozen
  Tensor storage;
  const ConstTensorView input =
      kept.input.allocated() ? ConstTensorView(kept.input) : router_input(context.kernels, x, kept.noise_keys, storage);
  add_weight_gradient(context.kernels, kept.dlogits, input, gradient);
}

}  // namespace weft
