#include "trainer/costs/step_flops.h"

#include <algorithm>

namespace weft {
namespace {

void add(TokenFlops& sum, const TokenFlops& part) {
  sum.attention_projections += part.attention_projections;
  sum.scores += part.scores;
  sum.dense_mlp += part.dense_mlp;
  sum.routed_experts += part.routed_experts;
  sum.shared_experts += part.shared_experts;
  sum.router += part.router;
  sum.head += part.head;
}

}  // namespace

TokenFlops block_token_flops(const ModelConfig& model, BlockKind kind, std::int64_t sequence_length) {
  const auto h = static_cast<double>(model.hidden_size);
  const auto q = static_cast<double>(model.num_attention_heads * model.head_dim);
  const auto kv = static_cast<double>(model.num_key_value_heads * model.head_dim);
  TokenFlops flops;
  flops.attention_projections = 2.0 * h * (2.0 * q + 2.0 * kv);
  // Two products with every position that a token sees, 2 q operations each. Without a window that is half of the
  // sequence; with one, w - w^2 / 2s on average.
  const auto s = static_cast<double>(sequence_length);
  const double w = model.sliding_window > 0 ? std::min(static_cast<double>(model.sliding_window), s) : s;
  flops.scores = 4.0 * q * w * (1.0 - w / (2.0 * s));
  // SwiGLU has three matrices.
  const auto swiglu = [&](std::int64_t width) { return 6.0 * h * static_cast<double>(width); };
  if (kind == BlockKind::dense) {
    flops.dense_mlp = swiglu(model.intermediate_size);
    return flops;
  }
  const MoeConfig& moe = model.moe;
  flops.routed_experts = swiglu(moe.num_experts_per_tok * moe.moe_intermediate_size);
  flops.shared_experts = swiglu(moe.shared_expert_intermediate_size);
  flops.router = 2.0 * h * static_cast<double>(moe.num_experts);
  return flops;
}

TokenFlops token_flops(const ModelConfig& model, std::int64_t sequence_length) {
  TokenFlops flops;
  for (const BlockKind kind : model.blocks) add(flops, block_token_flops(model, kind, sequence_length));
  flops.head = 2.0 * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
  return flops;
}

double training_flops_per_token(const ModelConfig& model, std::int64_t sequence_length) {
  const TokenFlops flops = token_flops(model, sequence_length);
  return 3.0 * (flops.total() - flops.router);
}

double published_step_flops(const Config& config) {
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  return training_flops_per_token(config.model, config.training.sequence_length) * tokens;
}

double step_flops(const Config& config) {
  const auto tokens = static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
  return 3.0 * token_flops(config.model, config.training.sequence_length).total() * tokens;
}

}  // namespace weft
