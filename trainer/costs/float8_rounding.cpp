#include "trainer/costs/float8_rounding.h"

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Of an element, 16 bits wide before.
double bytes_of_element(ProductFormat format) {
  switch (format) {
    case ProductFormat::as_stored:
      return 0.0;
    case ProductFormat::float8:
      return 5.0;
    case ProductFormat::float8_blocks:
      return 3.0;
  }
  fail("products read their factors in no known format");
}

class Sum {
 public:
  explicit Sum(const Config& config) : config_(config) {}

  // Products of `rows` rows and `inner` columns with `matrices` weights of [inner, columns], which share the rows.
  void add_product(Family family, double rows, double inner, double columns, double matrices = 1.0) {
    const double each = bytes_of_element(product_format(config_, family));
    const double input = each * rows * inner, weights = each * matrices * inner * columns;
    const double gradient = each * rows * columns;
    bytes_.forward += input + weights;
    bytes_.backward_input += gradient + weights;
    bytes_.backward_weight += gradient + input;
  }
  // Gate and up are one product.
  void add_swiglu(Family family, double rows, double hidden, double width, double matrices = 1.0) {
    add_product(family, rows, hidden, 2.0 * width, matrices);
    add_product(family, rows, width, hidden, matrices);
  }
  const RoundedBytes& bytes() const { return bytes_; }

 private:
  const Config& config_;
  RoundedBytes bytes_;
};

}  // namespace

RoundedBytes rounded_bytes(const Config& config, const ModelPart& part) {
  const ModelConfig& model = config.model;
  const auto& degrees = config.parallelism;
  const auto hidden = static_cast<double>(model.hidden_size), tensor = static_cast<double>(degrees.tensor);
  const double tokens = static_cast<double>(config.microbatch_tokens()) / degrees.context;
  Sum all(config);
  if (part.kind == PartKind::attention) {
    const auto head_dim = static_cast<double>(model.head_dim);
    const double queries = static_cast<double>(model.num_attention_heads) * head_dim / tensor;
    const double keys = static_cast<double>(model.num_key_value_heads) * head_dim / tensor;
    all.add_product(Family::dense, tokens, hidden, queries + 2.0 * keys);
    all.add_product(Family::dense, tokens, queries, hidden);
  }
  if (part.kind == PartKind::mlp) {
    all.add_swiglu(Family::dense, tokens, hidden, static_cast<double>(model.intermediate_size) / tensor);
  }
  if (part.kind == PartKind::experts) {
    const MoeConfig& moe = model.moe;
    // The ranks of an expert tensor group compute the rows of all of them, each with its part of the width.
    const double rows = tokens / tensor * degrees.expert_tensor * static_cast<double>(moe.num_experts_per_tok);
    all.add_swiglu(Family::experts, rows, hidden,
                   static_cast<double>(moe.moe_intermediate_size) / degrees.expert_tensor,
                   static_cast<double>(moe.num_experts) / degrees.expert);
    if (moe.shared_expert_intermediate_size > 0) {
      all.add_swiglu(Family::dense, tokens, hidden, static_cast<double>(moe.shared_expert_intermediate_size) / tensor);
    }
  }
  return all.bytes();
}

}  // namespace weft
