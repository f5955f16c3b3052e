// The shape of a model, as its TOML `[model]` section gives it. Names follow Hugging Face.
#pragma once

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "layers/kernels/router_arithmetic.h"
#include "parallel/runtime/enum_names.h"

namespace weft {

// The first part of a block, which mixes tokens: attention, or a state space (Mamba-2).
enum class Mixer : std::uint8_t { attention, state_space, none };
// Its second part: a dense MLP, or routed experts.
enum class BlockKind : std::uint8_t { dense, moe, none };
// Blocks with such a part, with their letters in patterns: for messages.
constexpr std::string_view blocks_of(Mixer mixer) {
  return mixer == Mixer::state_space ? "state spaces (M)" : "attention (d, e, A)";
}
constexpr std::string_view blocks_of(BlockKind kind) {
  return kind == BlockKind::moe ? "MoE blocks (e, E)" : "dense blocks (d, D)";
}
// Tokens of the load-balancing loss's statistics. sequence: each sequence by itself. microbatch: the whole microbatch.
// rank_batch: choices are counted over a data rank's microbatches of the step so far. global: over all data ranks too.
enum class AuxiliaryLoss : std::uint8_t { sequence, microbatch, rank_batch, global };
constexpr auto enum_names(AuxiliaryLoss) {
  return name_list("sequence", "microbatch", "rank_batch", "global");
}
constexpr bool counts_step(AuxiliaryLoss loss) {
  return loss >= AuxiliaryLoss::rank_batch;
}
// The step of an expert's selection bias: `rate` up or down, or `rate` times its part of the mean load that it lacks.
enum class BiasUpdate : std::uint8_t { sign, proportional };
constexpr auto enum_names(BiasUpdate) {
  return name_list("sign", "proportional");
}
// The rate of a selection bias over the run: the same, or in proportion to the learning rate.
enum class BiasSchedule : std::uint8_t { constant, learning_rate };
constexpr auto enum_names(BiasSchedule) {
  return name_list("constant", "learning_rate");
}

// A block, and the width inside it if it has one of its own: of its MLP, or of each of its routed experts. It has both
// parts, attention as the first, or one part alone.
struct ModelBlock {
  BlockKind kind = BlockKind::dense;
  std::int64_t width = 0;  // 0: the model's for this kind
  Mixer mixer = Mixer::attention;

  ModelBlock(BlockKind of = BlockKind::dense, std::int64_t own_width = 0,
             Mixer own_mixer = Mixer::attention)  // NOLINT: a kind is a block
      : kind(of), width(own_width), mixer(own_mixer) {}
  bool is_whole() const { return kind != BlockKind::none && mixer != Mixer::none; }
  auto operator<=>(const ModelBlock&) const = default;
  bool operator==(const ModelBlock&) const = default;
  bool operator==(BlockKind other) const { return kind == other; }
};

// The blocks of a model in forward order, the last `mtp_depth` of them inside predictors (prediction.h).
struct ModelLayers {
  std::vector<ModelBlock> blocks;
  int mtp_depth = 0;
};
// Reads a layer pattern. `d` is a dense block, `e` a mixture-of-experts block. Blocks of one part are `A` (attention),
// `M` (a Mamba-2 state space), `D` (a dense MLP) and `E` (experts). `m` is a predictor of one more token, with a block
// as the last of the model. `d:w` and its like have width w. `x*n` and `(..)*n` repeat, `(..)~n` repeats up to n blocks
// and cuts the last time short. Spaces are ignored. "d e*3 m" is one dense and three MoE blocks, and a predictor with
// another MoE block. Throws Error (request) naming the column.
ModelLayers parse_layers(std::string_view pattern);
// The letter of a block in a pattern, with its width: "d", "E:64".
std::string block_symbol(const ModelBlock& block);

struct MoeConfig {
  std::int64_t num_experts = 0;
  std::int64_t num_experts_per_tok = 0;
  // Below 1: of even choices the part that goes to experts, the others to null slots, which compute nothing (Kilian et
  // al. 2026, arXiv:2601.15370). A token goes to num_experts_per_tok experts on average.
  double real_fraction = 1.0;
  std::int64_t moe_intermediate_size = 0;
  std::int64_t shared_expert_intermediate_size = 0;  // 0: no shared expert
  bool norm_topk_prob = true;
  Scoring scoring = Scoring::softmax;
  AuxiliaryLoss aux_loss = AuxiliaryLoss::sequence;
  double router_aux_loss_coef = 0.0;
  double router_z_loss_coef = 0.0;
  double routed_scaling_factor = 1.0;        // of the weights of the chosen experts
  std::int64_t n_group = 1, topk_group = 1;  // equal runs of experts, and those of them that a token chooses from
  bool shared_expert_gate = false;           // the shared expert's output is multiplied by a sigmoid of the token
  // A number of each expert that is added to its scores in the choice, not in the weights (Wang et al. 2024,
  // arXiv:2408.15664). After each step it moves against the expert's load.
  bool selection_bias = false;
  BiasUpdate bias_update = BiasUpdate::sign;
  double bias_update_rate = 0.001;
  BiasSchedule bias_schedule = BiasSchedule::constant;
  // In training a router's input is multiplied by numbers drawn evenly from [1 - noise, 1 + noise] (Fedus et al. 2021).
  double router_jitter_noise = 0.0;
  double capacity_factor = 0.0;  // 0: experts take what they get
  DropPolicy drop_policy = DropPolicy::probability;
  bool pad_to_capacity = false;  // experts compute as many rows as they may take, whatever they get
  bool force_balance = false;    // experts are dealt in turn, whatever their scores: for measurements, not for training

  // Null slots that a token chooses from beside the experts: num_experts (1 - rho) / rho.
  std::int64_t null_copies() const {
    const auto all = static_cast<std::int64_t>(static_cast<double>(num_experts) / real_fraction);
    return real_fraction < 1.0 ? std::max<std::int64_t>(all - num_experts, 1) : 0;
  }
  std::int64_t pool() const { return num_experts + null_copies(); }
  // Of a router's weight and selection bias: the last one is that of all null slots.
  std::int64_t router_rows() const { return num_experts + std::min<std::int64_t>(null_copies(), 1); }
  // Choices of a token, null slots among them: k / rho.
  std::int64_t choices() const {
    const double all = std::ceil(static_cast<double>(num_experts_per_tok) / real_fraction);
    return std::min(static_cast<std::int64_t>(all), pool());
  }
  bool drops() const { return capacity_factor > 0.0; }
  bool pads() const { return drops() && pad_to_capacity; }
  // Most choices that an expert takes of one sequence, if it drops any. It takes capacity_factor times those of an even
  // load, and not more than one of each token. The bound comes before the cast, which no large factor overflows.
  std::int64_t capacity(std::int64_t sequence_length) const {
    const auto even = static_cast<double>(sequence_length * num_experts_per_tok) / static_cast<double>(num_experts);
    const double asked = std::ceil(capacity_factor * even);
    return static_cast<std::int64_t>(std::min(asked, static_cast<double>(sequence_length)));
  }
  // Choices that experts have room for, by choices that tokens make. Only where experts drop any.
  double room_of_choice(std::int64_t sequence_length) const {
    return static_cast<double>(num_experts * capacity(sequence_length)) /
           static_cast<double>(sequence_length * num_experts_per_tok);
  }
  // Most choices that an expert takes of a rank's tokens, which are of so many sequences: a token chooses it once.
  std::int64_t capacity_rows(std::int64_t tokens, std::int64_t sequences, std::int64_t sequence_length) const {
    return std::min(tokens, sequences * capacity(sequence_length));
  }

  bool operator==(const MoeConfig&) const = default;
};

// Heads of a state space (kernels/state_space.h). Names follow Mamba2Config of Hugging Face.
struct StateSpaceConfig {
  std::int64_t num_heads = 0;
  std::int64_t head_dim = 64;
  std::int64_t state_size = 128;
  std::int64_t n_groups = 1;     // of heads that share B and C
  std::int64_t conv_kernel = 4;  // tokens that the convolution sees, its own among them

  std::int64_t inner() const { return num_heads * head_dim; }
  // Of a projected token: gate, x, B, C and steps.
  std::int64_t columns() const { return 2 * inner() + 2 * n_groups * state_size + num_heads; }
  bool operator==(const StateSpaceConfig&) const = default;
};

struct ModelConfig {
  std::vector<ModelBlock> blocks;  // predictors' at the end, as in ModelLayers
  int mtp_depth = 0;
  double mtp_loss_coef = 0.1;  // of the mean loss of the predictors
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
  StateSpaceConfig state_space;
  MoeConfig moe;

  // Blocks without those of predictors.
  int layers() const { return static_cast<int>(blocks.size()) - mtp_depth; }
  std::int64_t count(BlockKind kind) const { return std::ranges::count(blocks, kind, &ModelBlock::kind); }
  bool has(BlockKind kind) const { return count(kind) > 0; }
  std::int64_t count(Mixer mixer) const { return std::ranges::count(blocks, mixer, &ModelBlock::mixer); }
  bool has(Mixer mixer) const { return count(mixer) > 0; }
  std::int64_t width(const ModelBlock& block) const {
    if (block.width > 0 || block.kind == BlockKind::none) return block.width;
    return block.kind == BlockKind::dense ? intermediate_size : moe.moe_intermediate_size;
  }
  std::int64_t width(int block) const { return width(blocks.at(static_cast<std::size_t>(block))); }
  // Whether a block of this kind has no width of its own.
  bool uses_width_of(BlockKind kind) const {
    return std::ranges::any_of(blocks, [&](const ModelBlock& block) { return block == kind && block.width == 0; });
  }
  // The different widths of the blocks of a kind, in the order of blocks.
  std::vector<std::int64_t> widths(BlockKind kind) const;
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace weft
