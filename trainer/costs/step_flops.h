// Floating-point operations that the model itself demands: every matrix product, causal attention at half its square,
// nothing recomputed.
#pragma once

#include "trainer/config/config.h"

namespace weft {

// Of one token forward, by part of the model. Backward takes twice as many: one product for each factor.
struct TokenFlops {
  double attention_projections = 0.0;  // queries, keys, values and output
  double scores = 0.0;                 // queries with keys and weights with values: no parameters
  double dense_mlp = 0.0, routed_experts = 0.0, shared_experts = 0.0, router = 0.0;
  double head = 0.0;

  double total() const {
    return attention_projections + scores + dense_mlp + routed_experts + shared_experts + router + head;
  }
  bool operator==(const TokenFlops&) const = default;
};

// Of one block; its head is 0. A token meets half a sequence of keys.
TokenFlops block_token_flops(const ModelConfig& model, BlockKind kind, std::int64_t sequence_length);
// Of the whole model.
TokenFlops token_flops(const ModelConfig& model, std::int64_t sequence_length);

// Forward and backward, by the formula of the field (Megatron's, torchtitan's: 6 per active weight and token), which
// leaves the router out; what is published of models and machines is in these. The router would add 0.33 % for
// Qwen3-30B-A3B at 4096 tokens, less for the others of configs/models.
double training_flops_per_token(const ModelConfig& model, std::int64_t sequence_length);
// The same of a step, which utilisation of machines is counted by.
double published_step_flops(const Config& config);
// Of all tokens of a step, with the router.
double step_flops(const Config& config);

}  // namespace weft
