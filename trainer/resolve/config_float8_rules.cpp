// Sizes that products in float8 can have.
#include <set>

#include "layers/kernels/float8.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

// A width between hidden states, of which each of `ranks` has an equal part.
ConfigRule width_rule(Family family, std::string_view what, const std::vector<std::string>& sizes,
                      std::int64_t (*width_of)(const ModelConfig&), int (*ranks_of)(const Degrees&),
                      bool (*exists)(const ModelConfig&)) {
  std::vector<std::string> keys = {"precision.compute", fmt::format("precision.{}.compute", name_of(family))};
  keys.insert(keys.end(), sizes.begin(), sizes.end());
  return {keys, [=](const Config& c) {
            if (product_format(c, family) == ProductFormat::as_stored || !exists(c.model)) return Messages{};
            const std::int64_t width = width_of(c.model), ranks = ranks_of(c.parallelism);
            return none_or(width % (ranks * float8_inner_multiple) == 0,
                           "float8 multiplies sizes of multiples of {}, but {} {} over {} ranks is {:g}: "
                           "write another, or precision.{}.compute = \"bfloat16\"",
                           float8_inner_multiple, what, width, ranks,
                           static_cast<double>(width) / static_cast<double>(ranks), name_of(family));
          }};
}

// Widths of blocks that have one of their own.
ConfigRule own_widths_rule() {
  return {{"precision.compute", "precision.dense.compute", "precision.experts.compute", "model.layers",
           "parallelism.tensor", "parallelism.expert_tensor"},
          [](const Config& c) {
            std::set<std::string> faults;
            for (const ModelBlock& block : c.model.blocks) {
              const Family family = block == BlockKind::dense ? Family::dense : Family::experts;
              const int ranks = family == Family::dense ? c.parallelism.tensor : c.parallelism.expert_tensor;
              if (product_format(c, family) == ProductFormat::as_stored) continue;
              if (block.width % (ranks * float8_inner_multiple) == 0) continue;
              faults.insert(
                  fmt::format("float8 multiplies sizes of multiples of {}, but width {} (model.layers \"{}\") over {} "
                              "ranks is {:g}: write another, or precision.{}.compute = \"bfloat16\"",
                              float8_inner_multiple, block.width, c.layers_text, ranks,
                              static_cast<double>(block.width) / static_cast<double>(ranks), name_of(family)));
            }
            return Messages(faults.begin(), faults.end());
          }};
}

// The rows of products of dense blocks are the tokens of a microbatch; those of experts are padded.
ConfigRule token_rule() {
  return {{"precision.compute", "precision.dense.compute", "training.microbatch_size", "training.sequence_length",
           "parallelism.context"},
          [](const Config& c) {
            const std::int64_t tokens = c.microbatch_tokens(), ranks = c.parallelism.context;
            return none_or(product_format(c, Family::dense) != ProductFormat::float8_blocks ||
                               tokens % (ranks * float8_row_multiple) == 0,
                           "float8_blocks multiplies multiples of {} tokens, but a microbatch of {} over {} "
                           "context ranks is {:g}: write precision.dense.compute = \"float8\"",
                           float8_row_multiple, tokens, ranks,
                           static_cast<double>(tokens) / static_cast<double>(ranks));
          }};
}

}  // namespace

std::vector<ConfigRule> float8_rules() {
  const auto of_tensor = [](const Degrees& p) { return p.tensor; };
  const auto alone = [](const Degrees&) { return 1; };
  const auto always = [](const ModelConfig&) { return true; };
  const auto moe = [](const ModelConfig& m) { return m.has(BlockKind::moe); };
  const auto hidden = [](const ModelConfig& m) { return m.hidden_size; };
  return {
      width_rule(Family::dense, "hidden_size", {"model.hidden_size"}, hidden, alone, always),
      width_rule(Family::experts, "hidden_size", {"model.hidden_size"}, hidden, alone, always),
      width_rule(
          Family::dense, "num_attention_heads x head_dim",
          {"model.head_dim", "model.num_attention_heads", "parallelism.tensor"},
          [](const ModelConfig& m) { return m.num_attention_heads * m.head_dim; }, of_tensor, always),
      width_rule(
          Family::dense, "2 x num_key_value_heads x head_dim",
          {"model.head_dim", "model.num_key_value_heads", "parallelism.tensor"},
          [](const ModelConfig& m) { return 2 * m.num_key_value_heads * m.head_dim; }, of_tensor, always),
      width_rule(
          Family::dense, "intermediate_size", {"model.intermediate_size", "parallelism.tensor"},
          [](const ModelConfig& m) { return m.intermediate_size; }, of_tensor,
          [](const ModelConfig& m) { return m.uses_width_of(BlockKind::dense); }),
      width_rule(
          Family::dense, "shared_expert_intermediate_size",
          {"model.moe.shared_expert_intermediate_size", "parallelism.tensor"},
          [](const ModelConfig& m) { return m.moe.shared_expert_intermediate_size; }, of_tensor, moe),
      width_rule(
          Family::experts, "moe_intermediate_size", {"model.moe.moe_intermediate_size", "parallelism.expert_tensor"},
          [](const ModelConfig& m) { return m.moe.moe_intermediate_size; },
          [](const Degrees& p) { return p.expert_tensor; },
          [](const ModelConfig& m) { return m.uses_width_of(BlockKind::moe); }),
      own_widths_rule(),
      token_rule(),
  };
}

}  // namespace weft
