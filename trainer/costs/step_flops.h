// Floating-point operations of the model itself: every matrix product, causal attention at half its square, nothing
// recomputed. Products in 8 bits add the rounding of their factors (layers/kernels/float8.h).
#pragma once

#include <set>

#include "parallel/runtime/parameter.h"
#include "trainer/config/config.h"

namespace weft {

// Operations of one token forward, by part of the model. Backward takes twice as many: one product for each factor.
struct TokenFlops {
  double mixer_projections = 0.0;  // queries, keys, values and output; those of a state space
  double scores = 0.0;  // queries with keys and weights with values, or the scan of a state space: no parameters
  double dense_mlp = 0.0, routed_experts = 0.0, shared_experts = 0.0, router = 0.0;
  double merges = 0.0;  // of predictors
  double head = 0.0;    // and the losses of predictors

  double total() const {
    return mixer_projections + scores + dense_mlp + routed_experts + shared_experts + router + merges + head;
  }
  TokenFlops& operator+=(const TokenFlops& other);
  bool operator==(const TokenFlops&) const = default;
};

// Operations of one block; `head` is 0. A token attends to half a sequence of keys.
TokenFlops block_token_flops(const ModelConfig& model, const ModelBlock& block, std::int64_t sequence_length);
double head_flops(const ModelConfig& model);
// Of the two projections of a predictor's merge (layers/prediction.h).
double merge_flops(const ModelConfig& model);
// Of the operations of one token forward, those that a backward repeats.
double repeated_flops(const TokenFlops& flops, const TrainingConfig& training);
// Operations of the whole model.
TokenFlops token_flops(const ModelConfig& model, std::int64_t sequence_length);

// Forward and backward of one token, by the usual formula (Megatron's, torchtitan's: 6 per active weight and token),
// which leaves the router out. Published figures of models and machines use this formula. The router would add 0.33 %
// for Qwen3-30B-A3B at 4096 tokens, less for the others of configs/models.
// Choices that find no room in an expert are not counted, nor are weight gradients of frozen families.
double training_flops_per_token(const ModelConfig& model, std::int64_t sequence_length,
                                const std::set<Family>& frozen = {});
// The same for a step, as used for the utilisation of machines.
double published_step_flops(const Config& config);
// Operations of all tokens of a step, router included.
double step_flops(const Config& config);

// Bytes that a rank moves in one microbatch to round the factors of a part's products, by the computation that reads
// them. Each of a product's three computations rounds its two factors: input and weight, gradient and weight, gradient
// and input. A factor with one scale is read twice, for the scale and to be rounded. One with scales of blocks is read
// once; both are written once. Routed tokens are shared evenly; padding and scales are not counted. All zero where
// products read their factors as stored.
struct RoundedBytes {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
};
RoundedBytes rounded_bytes(const Config& config, const ModelPart& part);

}  // namespace weft
