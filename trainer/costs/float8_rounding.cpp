#include "trainer/costs/float8_rounding.h"

namespace weft {
namespace {

// Products of `rows` rows and `inner` columns with `matrices` weights of [inner, columns], which share the rows.
void add_product(RoundedElements& all, double rows, double inner, double columns, double matrices = 1.0) {
  const double input = rows * inner, weights = matrices * inner * columns, gradient = rows * columns;
  all.forward += input + weights;
  all.backward_input += gradient + weights;
  all.backward_weight += gradient + input;
}

// Gate and up are one product.
void add_swiglu(RoundedElements& all, double rows, double hidden, double width, double matrices = 1.0) {
  add_product(all, rows, hidden, 2.0 * width, matrices);
  add_product(all, rows, width, hidden, matrices);
}

}  // namespace

RoundedElements rounded_elements(const Config& config, const ModelPart& part) {
  const ModelConfig& model = config.model;
  const auto& degrees = config.parallelism;
  const auto hidden = static_cast<double>(model.hidden_size), tensor = static_cast<double>(degrees.tensor);
  const double tokens = static_cast<double>(config.microbatch_tokens()) / degrees.context;
  const bool dense = uses_float8(config, Family::dense);
  RoundedElements all;
  if (part.kind == PartKind::attention && dense) {
    const auto head_dim = static_cast<double>(model.head_dim);
    const double queries = static_cast<double>(model.num_attention_heads) * head_dim / tensor;
    const double keys = static_cast<double>(model.num_key_value_heads) * head_dim / tensor;
    add_product(all, tokens, hidden, queries + 2.0 * keys);
    add_product(all, tokens, queries, hidden);
  }
  if (part.kind == PartKind::mlp && dense) {
    add_swiglu(all, tokens, hidden, static_cast<double>(model.intermediate_size) / tensor);
  }
  if (part.kind == PartKind::experts) {
    const MoeConfig& moe = model.moe;
    if (uses_float8(config, Family::experts)) {
      // The ranks of an expert tensor group compute the rows of all of them, each with its part of the width.
      const double rows = tokens / tensor * degrees.expert_tensor * static_cast<double>(moe.num_experts_per_tok);
      add_swiglu(all, rows, hidden, static_cast<double>(moe.moe_intermediate_size) / degrees.expert_tensor,
                 static_cast<double>(moe.num_experts) / degrees.expert);
    }
    if (dense && moe.shared_expert_intermediate_size > 0) {
      add_swiglu(all, tokens, hidden, static_cast<double>(moe.shared_expert_intermediate_size) / tensor);
    }
  }
  return all;
}

}  // namespace weft
