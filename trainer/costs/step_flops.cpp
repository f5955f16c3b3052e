#include "trainer/costs/step_flops.h"

#include <algorithm>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

double tokens_of_step(const Config& config) {
  return static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
}

void add_attention(const ModelConfig& model, std::int64_t sequence_length, TokenFlops& flops) {
  const auto h = static_cast<double>(model.hidden_size);
  const auto q = static_cast<double>(model.num_attention_heads * model.head_dim);
  const auto kv = static_cast<double>(model.num_key_value_heads * model.head_dim);
  flops.mixer_projections = 2.0 * h * (2.0 * q + 2.0 * kv);
  // Two products with every position that a token sees, 2 q operations each. Without a window that is half of the
  // sequence; with one, w - w^2 / 2s on average.
  const auto s = static_cast<double>(sequence_length);
  const double w = model.sliding_window > 0 ? std::min(static_cast<double>(model.sliding_window), s) : s;
  flops.scores = 4.0 * q * w * (1.0 - w / (2.0 * s));
}

// As Megatron counts Mamba-2: 7 operations for each element of a state, that is to decay it, to add to it and to read
// it. A convolution has as few operations as a norm.
void add_state_space(const ModelConfig& model, TokenFlops& flops) {
  const StateSpaceConfig& space = model.state_space;
  flops.mixer_projections =
      2.0 * static_cast<double>(model.hidden_size) * static_cast<double>(space.columns() + space.inner());
  flops.scores = 7.0 * static_cast<double>(space.inner()) * static_cast<double>(space.state_size);
}

}  // namespace

TokenFlops& TokenFlops::operator+=(const TokenFlops& other) {
  mixer_projections += other.mixer_projections;
  scores += other.scores;
  dense_mlp += other.dense_mlp;
  routed_experts += other.routed_experts;
  shared_experts += other.shared_experts;
  router += other.router;
  merges += other.merges;
  head += other.head;
  return *this;
}

double head_flops(const ModelConfig& model) {
  return 2.0 * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
}

double merge_flops(const ModelConfig& model) {
  return 4.0 * static_cast<double>(model.hidden_size) * static_cast<double>(model.hidden_size);
}

TokenFlops block_token_flops(const ModelConfig& model, const ModelBlock& block, std::int64_t sequence_length) {
  const auto h = static_cast<double>(model.hidden_size);
  TokenFlops flops;
  if (block.mixer == Mixer::attention) add_attention(model, sequence_length, flops);
  if (block.mixer == Mixer::state_space) add_state_space(model, flops);
  // SwiGLU has three matrices.
  const auto swiglu = [&](std::int64_t width) { return 6.0 * h * static_cast<double>(width); };
  if (block == BlockKind::dense) flops.dense_mlp = swiglu(model.width(block));
  if (block != BlockKind::moe) return flops;
  const MoeConfig& moe = model.moe;
  flops.routed_experts = swiglu(moe.num_experts_per_tok * model.width(block));
  flops.shared_experts = swiglu(moe.shared_expert_intermediate_size);
  flops.router = 2.0 * h * static_cast<double>(moe.router_rows() + (moe.shared_expert_gate ? 1 : 0));
  return flops;
}

double repeated_flops(const TokenFlops& flops, const TrainingConfig& training) {
  switch (training.recompute) {
    case Recompute::none:
    case Recompute::selective:
      return 0.0;
    case Recompute::experts:
      return flops.routed_experts * 2.0 / 3.0;
    case Recompute::keep_dispatch:
      return flops.total() - flops.routed_experts / 3.0;
    case Recompute::full:  // outputs of experts that are not kept are not read again either
      return flops.total() - (training.weights_at_experts ? flops.routed_experts / 3.0 : 0.0);
  }
  fail("no recompute {}", static_cast<int>(training.recompute));
}

TokenFlops token_flops(const ModelConfig& model, std::int64_t sequence_length) {
  TokenFlops flops{.merges = model.mtp_depth * merge_flops(model), .head = (1 + model.mtp_depth) * head_flops(model)};
  for (const ModelBlock& block : model.blocks) flops += block_token_flops(model, block, sequence_length);
  if (model.moe.drops()) flops.routed_experts *= std::min(model.moe.room_of_choice(sequence_length), 1.0);
  return flops;
}

double training_flops_per_token(const ModelConfig& model, std::int64_t sequence_length,
                                const std::set<Family>& frozen) {
  const TokenFlops flops = token_flops(model, sequence_length);
  // A forward, an input gradient and, if the family is trained, a weight gradient.
  const auto passes = [&](Family family) { return frozen.contains(family) ? 2.0 : 3.0; };
  return passes(Family::dense) * (flops.mixer_projections + flops.dense_mlp + flops.shared_experts + flops.merges) +
         passes(Family::experts) * flops.routed_experts + passes(Family::head) * flops.head + 3.0 * flops.scores;
}

double published_step_flops(const Config& config) {
  const TrainingConfig& training = config.training;
  return training_flops_per_token(config.model, training.sequence_length, training.frozen) * tokens_of_step(config);
}

double step_flops(const Config& config) {
  return 3.0 * token_flops(config.model, config.training.sequence_length).total() * tokens_of_step(config);
}

RoundedBytes rounded_bytes(const Config& config, const ModelPart& part) {
  const ModelConfig& model = config.model;
  const auto& degrees = config.parallelism;
  const auto hidden = static_cast<double>(model.hidden_size), tensor = static_cast<double>(degrees.tensor);
  const double tokens = static_cast<double>(config.microbatch_tokens()) / degrees.context;
  RoundedBytes bytes;
  // Products of `rows` rows and `inner` columns with `matrices` weights of [inner, columns], which share the rows.
  const auto add_product = [&](Family family, double rows, double inner, double columns, double matrices = 1.0) {
    const ProductFormat format = product_format(config, family);
    // Bytes moved for an element, 16 bits wide before.
    const double each = format == ProductFormat::float8 ? 5.0 : format == ProductFormat::float8_blocks ? 3.0 : 0.0;
    const double input = each * rows * inner, weights = each * matrices * inner * columns;
    const double gradient = each * rows * columns;
    bytes.forward += input + weights;
    bytes.backward_input += gradient + weights;
    bytes.backward_weight += gradient + input;
  };
  // Gate and up are one product.
  const auto add_swiglu = [&](Family family, double rows, double width, double matrices = 1.0) {
    add_product(family, rows, hidden, 2.0 * width, matrices);
    add_product(family, rows, width, hidden, matrices);
  };
  const auto width_as = [&](BlockKind kind) {
    return static_cast<double>(model.width({kind, model.blocks.at(static_cast<std::size_t>(*part.block)).width}));
  };
  if (part.kind == PartKind::attention) {
    const auto head_dim = static_cast<double>(model.head_dim);
    const double queries = static_cast<double>(model.num_attention_heads) * head_dim / tensor;
    const double keys = static_cast<double>(model.num_key_value_heads) * head_dim / tensor;
    add_product(Family::dense, tokens, hidden, queries + 2.0 * keys);
    add_product(Family::dense, tokens, queries, hidden);
  }
  if (part.kind == PartKind::state_space) {
    const StateSpaceConfig& space = model.state_space;
    add_product(Family::dense, tokens, hidden, static_cast<double>(space.columns()) / tensor);
    add_product(Family::dense, tokens, static_cast<double>(space.inner()) / tensor, hidden);
  }
  if (part.kind == PartKind::mlp) {
    add_swiglu(Family::dense, tokens, width_as(BlockKind::dense) / tensor);
  }
  if (part.kind == PartKind::experts) {
    const MoeConfig& moe = model.moe;
    // The ranks of an expert tensor group compute the rows of all of them, each with its part of the width.
    const double rows = tokens / tensor * degrees.expert_tensor * static_cast<double>(moe.num_experts_per_tok);
    add_swiglu(Family::experts, rows, width_as(BlockKind::moe) / degrees.expert_tensor,
               static_cast<double>(moe.num_experts) / degrees.expert);
    if (moe.shared_expert_intermediate_size > 0) {
      add_swiglu(Family::dense, tokens, static_cast<double>(moe.shared_expert_intermediate_size) / tensor);
    }
  }
  return bytes;
}

}  // namespace weft
