// The shape of a model, as its TOML `[model]` section gives it. Names follow Hugging Face.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft {

enum class BlockKind : std::uint8_t { dense, moe };
enum class Scoring : std::uint8_t { softmax, sigmoid };
// Tokens of the load-balancing loss's statistics. sequence: each sequence by itself. batch: the whole microbatch.
// global: choices are counted over all data ranks and all microbatches of the step so far.
enum class AuxiliaryLoss : std::uint8_t { sequence, batch, global };

// Reads a layer pattern: `d` is a dense block, `e` a mixture-of-experts block, `x*n` and `(..)*n` repeat, spaces are
// ignored. "d e*3" is one dense and three MoE blocks. Throws Error (request) naming the column.
std::vector<BlockKind> parse_layers(std::string_view pattern);

struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert
  bool norm_topk_prob = true;
  Scoring scoring = Scoring::softmax;
  AuxiliaryLoss aux_loss = AuxiliaryLoss::sequence;
  double router_aux_loss_coef = 0.0;
  double router_z_loss_coef = 0.0;

  bool operator==(const MoeConfig&) const = default;
};

struct ModelConfig {
  std::vector<BlockKind> blocks;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t sliding_window = 0;  // positions that a token attends to, its own among them; 0: all up to its own
  bool qk_norm = true;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  double initializer_range = 0.02;
  MoeConfig moe;

  std::int64_t count(BlockKind kind) const { return std::count(blocks.begin(), blocks.end(), kind); }
  bool has(BlockKind kind) const { return count(kind) > 0; }
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace weft
