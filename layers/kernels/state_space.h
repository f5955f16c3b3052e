// Kernels of a state-space mixer, Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a short convolution over time, a linear
// recurrence, and a gated norm.
//
// A head has P columns and a state H [P, N], which is zero in front of a document. Token t has x_t [P], and B_t and C_t
// [N] of the head's group. Its step is d_t = softplus(raw_t + dt_bias), and the decay rate is A = -exp(a_log). Then
//   H_t = exp(d_t A) H_(t-1) + d_t x_t B_t^T,   y_t = H_t C_t + D x_t.
// The convolution sees zeros in front of a document.
#pragma once

#include <cstdint>

#include "layers/kernels/context.h"
#include "parallel/runtime/tensor.h"

namespace weft {

// A scan computes chunks of tokens: within a chunk outputs are products of its tokens with each other, between chunks a
// state is passed. Its workspace has at most a state for so many tokens.
inline constexpr std::int64_t shortest_scan_chunk = 64;

// Of a filter: a GPU's thread keeps so many tokens in registers. Published models have 4.
inline constexpr std::int64_t most_filter_taps = 16;

// The columns of a projected token: z | x | B | C | step, or the gate z alone, which a gated norm reads, or the others.
enum class ProjectedColumns : std::uint8_t { all, gates, scanned };

// Heads and groups of one tensor rank, or of one context rank of it. The gate z and x have inner() columns each, B and
// C one for each state element of each group, and steps one a head.
struct StateSpaceShape {
  std::int64_t heads = 0, head_dim = 0, groups = 1, state_size = 0;
  std::int64_t filter = 1;  // tokens that the convolution sees, its own among them
  std::int64_t sequence_length = 0;
  ProjectedColumns projected = ProjectedColumns::all;

  std::int64_t inner() const { return heads * head_dim; }
  std::int64_t group_columns() const { return groups * state_size; }
  std::int64_t heads_of_group() const { return heads / groups; }
  // Of x, B and C.
  std::int64_t channels() const { return inner() + 2 * group_columns(); }
  std::int64_t x_column() const { return projected == ProjectedColumns::all ? inner() : 0; }
  std::int64_t step_column() const { return x_column() + channels(); }
  std::int64_t columns() const { return projected == ProjectedColumns::gates ? inner() : step_column() + heads; }
};

// In all functions row t has position t % sequence_length. Matrices and parameters are float32, bfloat16 or float16,
// all alike, and are computed in float32. But products of a scan of 16 bits on a GPU round their factors to the dtype.
// Gradients of parameters are float32. Results are overwritten. `document_begins` [tokens, 1] int32: the position in
// its sequence at which the document of each token begins; empty if each sequence is one document.

// mixed [tokens, channels()] = silu(bias + sum over k of weight[k] * the token filter - 1 - k places before), for the
// columns x, B and C of `projected` [tokens, columns()]. weight [channels() * filter, 1], the taps of a channel
// together; bias [channels(), 1]. `history` [sequences * (filter - 1), channels()], of generation: the inputs in front
// of the sequences, which become those in front of the next tokens; empty: zeros. With `history` each sequence is one
// document.
void mix_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView projected,
                        ConstTensorView weight, ConstTensorView bias, ConstTensorView document_begins,
                        TensorView history, TensorView mixed);
// Writes the columns x, B and C of dprojected.
void mix_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dmixed,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView bias,
                         ConstTensorView document_begins, TensorView dprojected, TensorView dweight, TensorView dbias);

// [heads, 1] each.
struct StateSpaceRates {
  ConstTensorView a_log, d, dt_bias;
};
struct StateSpaceRateGradients {
  TensorView a_log, d, dt_bias;
};
// y [tokens, inner()] of x, B and C in `mixed` [tokens, channels()] and the steps in `projected`. `carried` [sequences
// * inner(), state_size] float32, of generation: the states in front of the sequences, which become those behind them;
// empty: zero. With `carried` each sequence is one document.
void scan_tokens_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView mixed,
                         ConstTensorView projected, const StateSpaceRates& rates, ConstTensorView document_begins,
                         TensorView carried, TensorView y);
// Writes dmixed and the column of the steps of dprojected. Makes the states between chunks again, as the kernels of
// Mamba-2 do.
void scan_tokens_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dy,
                          ConstTensorView mixed, ConstTensorView projected, const StateSpaceRates& rates,
                          ConstTensorView document_begins, TensorView dmixed, TensorView dprojected,
                          const StateSpaceRateGradients& drates);

// out [tokens, inner()] = RMSNorm of y * silu(z) over the columns of each group, with z in the first columns of
// `projected`. weight [inner(), 1]; inverse_rms [tokens, groups] float32.
void gated_norm_forward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView y,
                        ConstTensorView projected, ConstTensorView weight, float eps, TensorView out,
                        TensorView inverse_rms);
// Writes dy, which may be dout, and the columns z of dprojected.
void gated_norm_backward(KernelContext& context, const StateSpaceShape& shape, ConstTensorView dout, ConstTensorView y,
                         ConstTensorView projected, ConstTensorView weight, ConstTensorView inverse_rms, TensorView dy,
                         TensorView dprojected, TensorView dweight);

}  // namespace weft
