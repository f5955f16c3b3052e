#include "layers/kernels/routing.h"

#include <limits>

#include "layers/kernels/kernels.h"

namespace weft {

void route_forward(KernelContext& context, ConstTensorView logits, const RoutingRule& rule, ConstTensorView bias,
                   const std::int32_t* targets, TensorView scores, TensorView indices, TensorView weights) {
  const std::int64_t tokens = logits.rows(), experts = scores.columns(), choices = indices.columns();
  require(scores.rows() == tokens && logits.columns() == rule.logits(experts), "every logit has a score");
  require(indices.rows() == tokens && weights.rows() == tokens && weights.columns() == choices,
          "every choice of a token has an index and a weight");
  require(rule.groups >= 1 && rule.groups <= most_expert_groups && experts % rule.groups == 0,
          "groups are equal runs of experts, at most as many as a warp has lanes");
  require(rule.chosen_groups >= 1 && rule.chosen_groups <= rule.groups, "a token chooses among the groups");
  require(choices <= rule.chosen_groups * (experts / rule.groups), "a token chooses among the experts of its groups");
  require(bias.empty() || bias.size() == logits.columns(), "every expert has a bias");
  if (logits.empty()) return;
  run_elementwise(context, context.kernels.route_forward, logits, rule, bias, targets, scores, indices, weights);
}

void route_backward(KernelContext& context, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, const RoutingRule& rule, TensorView dlogits) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns(), choices = indices.columns();
  require(dlogits.rows() == tokens && dlogits.columns() == rule.logits(experts),
          "a gradient has the shape of its tensor");
  require(dscores.empty() || (dscores.rows() == tokens && dscores.columns() == experts), "every score has a gradient");
  require(indices.rows() == tokens && dweights.rows() == tokens && dweights.columns() == choices,
          "every choice of a token has an index and a gradient");
  if (scores.empty()) return;
  run_elementwise(context, context.kernels.route_backward, dweights, dscores, scores, indices, rule, dlogits);
}

namespace {

void require_permutation(ConstTensorView x, ConstTensorView permuted, ConstTensorView slots) {
  require(slots.rows() == x.rows(), "every token has slots");
  require(x.columns() == permuted.columns(), "a permutation keeps the width of rows");
}

void require_weights(ConstTensorView weights, ConstTensorView slots) {
  require(weights.empty() || (weights.rows() == slots.rows() && weights.columns() == slots.columns()),
          "every choice of a token has a weight");
}

}  // namespace

void choices_within(KernelContext& context, ConstTensorView indices, std::int64_t first, std::int64_t experts,
                    TensorView within) {
  require(within.size() == indices.size(), "every choice has an index");
  if (indices.empty()) return;
  run_elementwise(context, context.kernels.choices_within, indices, first, experts, within);
}

void parts_chosen(KernelContext& context, ConstTensorView indices, std::int64_t experts, TensorView parts) {
  require(parts.rows() == indices.rows() && parts.columns() == indices.columns(), "every choice has a part or none");
  require(experts > 0, "a part has experts");
  if (!indices.empty()) run_elementwise(context, context.kernels.parts_chosen, indices, experts, parts);
}

void sort_by_expert(KernelContext& context, ConstTensorView indices, bool some_unrouted, TensorView counts,
                    TensorView slots) {
  require(slots.size() == indices.size(), "every choice has a slot");
  require(indices.size() <= std::numeric_limits<std::int32_t>::max(), "slots fit in 32 bits");
  run_elementwise(context, context.kernels.sort_by_expert, indices, some_unrouted, counts, slots);
}

void add_counts(KernelContext& context, ConstTensorView counts, TensorView totals) {
  require(counts.size() == totals.size(), "every count has a total");
  run_elementwise(context, context.kernels.add_counts, counts, totals);
}

void permute_rows(KernelContext& context, ConstTensorView x, ConstTensorView slots, TensorView permuted) {
  require_permutation(x, permuted, slots);
  require(x.dtype() == permuted.dtype(), "a permutation keeps the dtype");
  if (!permuted.empty()) run_elementwise(context, context.kernels.permute_rows, x, slots, permuted);
}

void unpermute_rows(KernelContext& context, ConstTensorView permuted, ConstTensorView slots, ConstTensorView weights,
                    TensorView y) {
  require_permutation(y, permuted, slots);
  require_weights(weights, slots);
  if (permuted.empty()) return;
  run_elementwise(context, context.kernels.unpermute_rows, permuted, slots, weights, y);
}

void unpermute_rows_backward(KernelContext& context, ConstTensorView dy, ConstTensorView permuted,
                             ConstTensorView slots, ConstTensorView weights, TensorView dpermuted,
                             TensorView dweights) {
  require_permutation(dy, permuted, slots);
  require_permutation(dy, dpermuted, slots);
  require_weights(weights, slots);
  require_weights(dweights, slots);
  if (slots.empty()) return;  // without a row, the gradients of weights are still zero
  run_elementwise(context, context.kernels.unpermute_rows_backward, dy, permuted, slots, weights, dpermuted, dweights);
}

void move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination) {
  require(from.size() == counts.size() && to.size() == counts.size(), "every block has a place before and after");
  require(source.dtype() == destination.dtype() && source.columns() == destination.columns(),
          "a move keeps dtype and width");
  for (std::size_t block = 0; block < counts.size(); ++block) {
    require(from[block] >= 0 && to[block] >= 0 && counts[block] >= 0 && from[block] + counts[block] <= source.rows() &&
                to[block] + counts[block] <= destination.rows(),
            "a block lies inside both tensors");
  }
  run_elementwise(context, context.kernels.move_blocks, source, from, to, counts, destination);
}

void limit_choices(KernelContext& context, ConstTensorView weights, std::int64_t sequence_length, std::int64_t experts,
                   std::int64_t capacity, DropPolicy policy, TensorView indices) {
  require(weights.rows() == indices.rows() && weights.columns() == indices.columns(), "every choice has a weight");
  require(sequence_length > 0 && indices.rows() % sequence_length == 0, "choices are those of whole sequences");
  require(capacity > 0, "an expert takes a choice");
  if (indices.empty()) return;
  run_elementwise(context, context.kernels.limit_choices, weights, sequence_length, experts, capacity, policy, indices);
}

void spread_slots(KernelContext& context, ConstTensorView indices, ConstTensorView counts, std::int64_t rows,
                  TensorView slots) {
  require(slots.size() == indices.size(), "every choice has a slot or none");
  require(rows >= 0 && counts.size() * rows <= std::numeric_limits<std::int32_t>::max(), "slots fit in 32 bits");
  if (!slots.empty()) run_elementwise(context, context.kernels.spread_slots, indices, counts, rows, slots);
}

void add_dropped(KernelContext& context, ConstTensorView indices, ConstTensorView slots, TensorView total) {
  require(slots.size() == indices.size(), "every choice has a slot or none");
  if (!indices.empty()) run_elementwise(context, context.kernels.add_dropped, indices, slots, total);
}

void jitter_rows(KernelContext& context, ConstTensorView x, ConstTensorView keys, std::uint32_t salt, float noise,
                 TensorView y) {
  require(x.rows() == y.rows() && x.columns() == y.columns() && keys.size() == x.rows(), "every token has a key");
  require(x.dtype() == DType::float32 && y.dtype() == DType::float32, "a router computes in float32");
  if (!x.empty()) run_elementwise(context, context.kernels.jitter_rows, x, keys, salt, noise, y);
}

namespace {

void require_slice(TokenSlice slice, std::int64_t tokens, std::int64_t sequences) {
  require(slice.sequence_tokens > 0 && slice.first_token >= 0 &&
              slice.first_token + tokens <= sequences * slice.sequence_tokens,
          "a slice lies inside the sequences of its microbatch");
}

}  // namespace

void expert_statistics(KernelContext& context, ConstTensorView scores, ConstTensorView indices, Scoring scoring,
                       TokenSlice slice, TensorView counts, TensorView score_sums) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns();
  require(indices.rows() == tokens, "every token has its choices");
  require(counts.columns() == experts && score_sums.columns() == experts && counts.rows() == score_sums.rows(),
          "statistics have one row a sequence and one column an expert");
  require_slice(slice, tokens, counts.rows());
  run_elementwise(context, context.kernels.expert_statistics, scores, indices, scoring, slice, counts, score_sums);
}

void scale_counts(KernelContext& context, ConstTensorView choices, double total, TensorView counts) {
  require(choices.size() == counts.size() && choices.dtype() == DType::float64, "every expert has a count");
  run_elementwise(context, context.kernels.scale_counts, choices, total, counts);
}

void auxiliary_loss(KernelContext& context, ConstTensorView counts, ConstTensorView score_sums, std::int64_t choices,
                    std::int64_t sequence_length, double factor, TensorView loss) {
  require(counts.size() == score_sums.size(), "counts and sums of scores describe the same experts");
  run_elementwise(context, context.kernels.auxiliary_loss, counts, score_sums, choices, sequence_length, factor, loss);
}

void auxiliary_loss_backward(KernelContext& context, ConstTensorView scores, ConstTensorView counts, Scoring scoring,
                             TokenSlice slice, std::int64_t choices, float factor, TensorView dscores) {
  const std::int64_t tokens = scores.rows(), experts = scores.columns();
  require(dscores.rows() == tokens && dscores.columns() == experts, "a gradient has the shape of its tensor");
  require(counts.columns() == experts, "every expert has a count");
  require_slice(slice, tokens, counts.rows());
  if (scores.empty()) return;
  run_elementwise(context, context.kernels.auxiliary_loss_backward, scores, counts, scoring, slice, choices, factor,
                  dscores);
}

void z_loss(KernelContext& context, ConstTensorView logits, std::int64_t copies, const std::int32_t* targets,
            double factor, float gradient_factor, TensorView dlogits, TensorView loss) {
  require(dlogits.rows() == logits.rows() && dlogits.columns() == logits.columns(),
          "a gradient has the shape of its tensor");
  if (logits.empty()) return;
  run_elementwise(context, context.kernels.z_loss, logits, copies, targets, factor, gradient_factor, dlogits, loss);
}

}  // namespace weft
