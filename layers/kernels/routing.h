// Kernels of a MoE router: its choice, the permutation of tokens by it, its auxiliary losses. Integers and orders are
// exact, so the same logits give the same routing on every device. T tokens, E experts, K choices per token. With null
// slots a token chooses from P = E + N, N of them null; without, P is E.
#pragma once

#include <algorithm>
#include <span>

#include "layers/kernels/context.h"
#include "layers/kernels/router_arithmetic.h"

namespace weft {

// Avoids 0 / 0 if all scores of a token underflow to zero.
constexpr float smallest_sum = 1e-20f;

// The rule by which a router chooses and weighs experts.
struct RoutingRule {
  Scoring scoring = Scoring::softmax;
  bool normalise = true;
  float scaling = 1.0f;  // of all weights
  // A token chooses from `chosen_groups` of `groups` equal runs of experts, those with the largest sums of their two
  // largest values. Ties go to the lower group (DeepSeek-AI 2024, arXiv:2412.19437).
  std::int64_t groups = 1, chosen_groups = 1;
  bool in_turn = false;          // choice k of the token at place p is expert (K p + k) mod P, whatever its value
  TokenPlaces places = {};       // of the T tokens; only read in turn
  std::int64_t null_copies = 0;  // N

  // Columns of logits, with `pool` scores of a token.
  std::int64_t logits(std::int64_t pool) const { return pool - std::max<std::int64_t>(null_copies - 1, 0); }
};
// A warp of the CUDA kernel has a lane for each group.
constexpr std::int64_t most_expert_groups = 32;

// The target of a token that is no text but fills a sequence up. Such tokens go to no expert, and do not count in a
// router's losses.
constexpr std::int32_t padding_target = -2;
// The index of a choice of no expert, and its slot. Its weight is 0.
constexpr std::int32_t no_expert = -1;

// All tensors are float32 or int32. logits [T, E], with null slots [T, E + 1], the last of them all. bias as a row of
// logits, finite, or empty. `targets` of the T tokens, in memory of the device, with padding_target for padding; null:
// no token is padding.
// scores [T, P]: of the logits, that of null slots N times. indices [T, K]: the K largest values of score + bias, ties
// to the lower expert, in descending order, from E on null slots; no_expert for padding. weights [T, K]: the scores of
// these experts, divided by their sum (+ smallest_sum) when `normalise`, times `scaling`; 0 for null slots.
void route_forward(KernelContext& context, ConstTensorView logits, const RoutingRule& rule, ConstTensorView bias,
                   const std::int32_t* targets, TensorView scores, TensorView indices, TensorView weights);
// dlogits, as logits, = gradient through `weights` (dweights [T, K]) and through `scores` directly (dscores [T, P],
// empty for none).
void route_backward(KernelContext& context, ConstTensorView dweights, ConstTensorView dscores, ConstTensorView scores,
                    ConstTensorView indices, const RoutingRule& rule, TensorView dlogits);

// y [T, columns] = x, both float32, times numbers drawn evenly from [1 - noise, 1 + noise]. They are a function of the
// token's key ([T, 1] int32), `salt`, and the column, on every device to the bit. x and y may be one tensor.
void jitter_rows(KernelContext& context, ConstTensorView x, ConstTensorView keys, std::uint32_t salt, float noise,
                 TensorView y);

// The permutation of tokens by chosen expert, and moves of whole rows.
//
// Stable sort of the T*K choices by expert. counts [E, 1] int32: choices of each expert. slots [T, K] int32: the
// position of choice (t, k) in expert-major order, token order inside an expert. `some_unrouted`: some indices may be
// no_expert; they have the slot no_expert.
void sort_by_expert(KernelContext& context, ConstTensorView indices, bool some_unrouted, TensorView counts,
                    TensorView slots);
// totals [E, 1] float64 += counts [E, 1] int32.
void add_counts(KernelContext& context, ConstTensorView counts, TensorView totals);
// permuted [rows, hidden]: row slots[t, k] = x[t], of any dtype. Other rows keep what they have. From here on rows are
// float32, bfloat16 or float16.
void permute_rows(KernelContext& context, ConstTensorView x, ConstTensorView slots, TensorView permuted);
// y[t] += sum over k of weights[t, k] * permuted[slots[t, k]], float32 sums; empty weights count as 1.
void unpermute_rows(KernelContext& context, ConstTensorView permuted, ConstTensorView slots, ConstTensorView weights,
                    TensorView y);
// Gradients of unpermute_rows: dpermuted[slots[t, k]] = weights[t, k] * dy[t], and no other row; dweights[t, k] =
// <dy[t], permuted[slots[t, k]]>, 0 without a slot.
void unpermute_rows_backward(KernelContext& context, ConstTensorView dy, ConstTensorView permuted,
                             ConstTensorView slots, ConstTensorView weights, TensorView dpermuted, TensorView dweights);
// Moves row blocks: block b of `counts[b]` rows begins at from[b] in source and at to[b] in destination.
void move_blocks(KernelContext& context, ConstTensorView source, std::span<const std::int64_t> from,
                 std::span<const std::int64_t> to, std::span<const std::int64_t> counts, TensorView destination);

// Choices on their way over several groups of ranks.
//
// within [T, K]: indices minus `first` of choices among the experts [first, first + experts), otherwise no_expert. May
// be `indices`.
void choices_within(KernelContext& context, ConstTensorView indices, std::int64_t first, std::int64_t experts,
                    TensorView within);
// parts [T, K]: the part, a run of `experts` neighbours, of each choice that is its token's first there, otherwise
// no_expert.
void parts_chosen(KernelContext& context, ConstTensorView indices, std::int64_t experts, TensorView parts);

// Expert capacity. weights [T, K] and indices [T, K] of route_forward for whole sequences of S = `sequence_length`
// tokens, one after another. In each sequence an expert keeps `capacity` choices: the largest weights, the earlier of
// equal ones, or the earliest; the others become no_expert.
void limit_choices(KernelContext& context, ConstTensorView weights, std::int64_t sequence_length, std::int64_t experts,
                   std::int64_t capacity, DropPolicy policy, TensorView indices);
// The slots of sort_by_expert if every expert had `rows` choices: those that it lacks are behind the ones it has.
// `indices` and `counts` as there; no count is more than `rows`.
void spread_slots(KernelContext& context, ConstTensorView indices, ConstTensorView counts, std::int64_t rows,
                  TensorView slots);
// total [1, 1] float64 += choices that have an expert in `indices` and no slot.
void add_dropped(KernelContext& context, ConstTensorView indices, ConstTensorView slots, TensorView total);

// Auxiliary losses. Statistics are taken sequence by sequence, so that neither the microbatch size nor the layout
// changes the objective. All tensors are float32 or int32. T tokens of this rank, S tokens per sequence.

// Tokens of a rank: row t is token first_token + t of its microbatch and belongs to sequence (first_token + t) /
// sequence_tokens. Under sequence parallelism a slice may begin and end inside a sequence.
struct TokenSlice {
  std::int64_t first_token = 0;
  std::int64_t sequence_tokens = 0;  // of each sequence in this microbatch: fewer than S under context parallelism
  // S. 0: S is the number of tokens that count, different in each sequence, known by its choices.
  std::int64_t sequence_length = 0;
  const std::int32_t* targets = nullptr;  // of the slice's tokens, in memory of the device; null: all count
};

// scores [T, E] and indices [T, K] are results of route_forward; E is P here. counts [sequences, E] float32: choices of
// each expert in each sequence. score_sums [sequences, E]: sums of scores over tokens; scores other than softmax are
// first divided by their sum over experts. Both are overwritten with this slice's share; their sums over tensor and
// context groups are complete.
void expert_statistics(KernelContext& context, ConstTensorView scores, ConstTensorView indices, Scoring scoring,
                       TokenSlice slice, TensorView counts, TensorView score_sums);
// From complete statistics: loss [1, 1] float64 += factor * the sum over sequences of E / (K S^2) * sum over e of
// score_sums[e] * counts[e]. Uniform routing gives 1 per sequence (Fedus et al. 2021, Switch Transformers).
// `sequence_length` as in TokenSlice. A sequence without tokens that count has no loss.
void auxiliary_loss(KernelContext& context, ConstTensorView counts, ConstTensorView score_sums, std::int64_t choices,
                    std::int64_t sequence_length, double factor, TensorView loss);
// counts (float32) = choices (float64, whole numbers) times `total` over their sum; zeros if there are no choices.
// Equal numbers of elements.
void scale_counts(KernelContext& context, ConstTensorView choices, double total, TensorView counts);
// dscores [T, E] += factor * gradient of auxiliary_loss, for the tokens of this slice. `counts` is complete and treated
// as constant.
void auxiliary_loss_backward(KernelContext& context, ConstTensorView scores, ConstTensorView counts, Scoring scoring,
                             TokenSlice slice, std::int64_t choices, float factor, TensorView dscores);

// loss [1, 1] float64 += factor * the sum over tokens of logsumexp(logits)^2 (Zoph et al. 2022, ST-MoE). dlogits [T, E]
// += the gradient of that sum, with `gradient_factor` in place of `factor`. `targets` as in TokenSlice. The last logit
// of a token counts `copies` times.
void z_loss(KernelContext& context, ConstTensorView logits, std::int64_t copies, const std::int32_t* targets,
            double factor, float gradient_factor, TensorView dlogits, TensorView loss);

}  // namespace weft
