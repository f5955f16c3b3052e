// Sizes that products in float8 can have.
#include "layers/kernels/float8.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

using Sizes = std::function<std::vector<NamedSize>(const Config&)>;

// Widths between hidden states, of which each of `ranks` has an equal part.
ConfigRule width_rule(Family family, const std::vector<std::string>& size_keys, int Degrees::*degree, Sizes sizes) {
  std::vector<std::string> keys = {"precision.compute", fmt::format("precision.{}.compute", name_of(family))};
  keys.insert(keys.end(), size_keys.begin(), size_keys.end());
  return {keys, [=](const Config& c) {
            if (product_format(c, family) == ProductFormat::as_stored) return Messages{};
            Messages faults;
            const std::int64_t ranks = degree == nullptr ? 1 : c.parallelism.*degree;
            for (const auto& [name, width] : sizes(c)) {
              if (width % (ranks * float8_inner_multiple) == 0) continue;
              faults.push_back(
                  fmt::format("float8 multiplies sizes of multiples of {}, but {} {} over {} ranks is {:g}: "
                              "write another, or precision.{}.compute = \"bfloat16\"",
                              float8_inner_multiple, name, width, ranks,
                              static_cast<double>(width) / static_cast<double>(ranks), name_of(family)));
            }
            return faults;
          }};
}
// One size, which the message calls `name`.
Sizes always(const std::string& name, std::int64_t (*size_of_model)(const ModelConfig&)) {
  return [=](const Config& c) { return std::vector<NamedSize>{{name, size_of_model(c.model)}}; };
}
Sizes of_blocks(BlockKind kind, const std::string& name) {
  return [=](const Config& c) { return block_widths(c, kind, name); };
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
  const auto hidden = [](const ModelConfig& m) { return m.hidden_size; };
  const std::string shared = "shared_expert_intermediate_size", space = "model.state_space.";
  const std::vector<std::string> space_keys = {space + "num_heads", space + "head_dim", space + "n_groups",
                                               space + "state_size", "parallelism.tensor"};
  return {
      width_rule(Family::dense, {"model.hidden_size"}, nullptr, always("hidden_size", hidden)),
      width_rule(Family::experts, {"model.hidden_size"}, nullptr, always("hidden_size", hidden)),
      width_rule(Family::dense, {"model.head_dim", "model.num_attention_heads", "parallelism.tensor"}, &Degrees::tensor,
                 always("num_attention_heads x head_dim",
                        [](const ModelConfig& m) {
                          return m.has(Mixer::attention) ? m.num_attention_heads * m.head_dim : 0;
                        })),
      width_rule(Family::dense, {"model.head_dim", "model.num_key_value_heads", "parallelism.tensor"}, &Degrees::tensor,
                 always("2 x num_key_value_heads x head_dim",
                        [](const ModelConfig& m) {
                          return m.has(Mixer::attention) ? 2 * m.num_key_value_heads * m.head_dim : 0;
                        })),
      width_rule(Family::dense, space_keys, &Degrees::tensor,
                 always("the columns of a state space",
                        [](const ModelConfig& m) { return m.has(Mixer::state_space) ? m.state_space.columns() : 0; })),
      width_rule(Family::dense, {space_keys[0], space_keys[1], "parallelism.tensor"}, &Degrees::tensor,
                 always("state_space.num_heads x head_dim",
                        [](const ModelConfig& m) { return m.has(Mixer::state_space) ? m.state_space.inner() : 0; })),
      width_rule(Family::dense, {"model.intermediate_size", "model.layers", "parallelism.tensor"}, &Degrees::tensor,
                 of_blocks(BlockKind::dense, "intermediate_size")),
      width_rule(Family::dense, {"model.moe." + shared, "parallelism.tensor"}, &Degrees::tensor,
                 always(shared,
                        [](const ModelConfig& m) {
                          return m.has(BlockKind::moe) ? m.moe.shared_expert_intermediate_size : 0;
                        })),
      width_rule(Family::experts, {"model.moe.moe_intermediate_size", "model.layers", "parallelism.expert_tensor"},
                 &Degrees::expert_tensor, of_blocks(BlockKind::moe, "moe_intermediate_size")),
      token_rule(),
  };
}

}  // namespace weft
