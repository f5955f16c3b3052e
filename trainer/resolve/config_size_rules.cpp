// Bounds of sizes: larger ones are refused before a table of them is built or a product overflows. Then sizes that
// products in float8 can have.
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>

#include "layers/kernels/float8.h"
#include "layers/kernels/state_space.h"
#include "parallel/runtime/error.h"
#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

constexpr std::int64_t most_experts = 1 << 16;  // of all blocks
constexpr double most_parameters = 0x1p50;      // a thousand times the largest known
constexpr double most_elements = 0x1p44;        // of a tensor of a microbatch
constexpr std::int64_t most_stages = 1024;
constexpr std::int64_t most_step_actions = std::int64_t{1} << 20;
constexpr double most_logits = 0x1p44;     // of a rank in a step, which computes them in pieces
constexpr double most_slots = 0x1p31 - 1;  // tokens times choices, which are numbered in 32 bits

// These are in double, which does not overflow here and is exact enough for a bound. Of a token of a state space: 0 of
// a model without one.
double space_columns_of(const ModelConfig& model) {
  if (!model.has(Mixer::state_space)) return 0.0;
  const StateSpaceConfig& space = model.state_space;
  const auto heads = static_cast<double>(space.num_heads);
  return 2.0 * heads * static_cast<double>(space.head_dim) + heads +
         2.0 * static_cast<double>(space.n_groups) * static_cast<double>(space.state_size);
}
double parameters_of(const ModelConfig& model) {
  const auto hidden = static_cast<double>(model.hidden_size), blocks = static_cast<double>(model.blocks.size());
  const double heads = static_cast<double>(model.num_attention_heads) * static_cast<double>(model.head_dim);
  const double spaces = static_cast<double>(model.count(Mixer::state_space)) * space_columns_of(model);
  const auto experts = static_cast<double>(model.moe.num_experts);
  const auto moe_blocks = static_cast<double>(model.count(BlockKind::moe));
  double widths = moe_blocks * static_cast<double>(model.moe.shared_expert_intermediate_size);
  for (const ModelBlock& block : model.blocks) {
    widths += (block == BlockKind::moe ? experts : 1.0) * static_cast<double>(model.width(block));
  }
  return spaces * static_cast<double>(model.state_space.conv_kernel) +
         hidden * (2.0 * static_cast<double>(model.vocab_size) + 4.0 * blocks * heads + 2.0 * spaces + 3.0 * widths +
                   moe_blocks * experts);
}

double microbatch_tokens_of(const Config& config) {
  return static_cast<double>(config.training.microbatch_size) * static_cast<double>(config.training.sequence_length);
}

std::vector<ConfigRule> model_and_microbatch_rules() {
  return {
      {{"model.moe.num_experts", "model.layers"},
       [](const Config& c) {
         const std::int64_t blocks = c.model.count(BlockKind::moe);
         return none_or(blocks == 0 || c.model.moe.num_experts <= most_experts / blocks,
                        "num_experts {} in each of {} MoE blocks (model.layers) are more than {} experts",
                        c.model.moe.num_experts, blocks, most_experts);
       }},
      {{"model.hidden_size", "model.intermediate_size", "model.moe.moe_intermediate_size",
        "model.moe.shared_expert_intermediate_size", "model.moe.num_experts", "model.num_attention_heads",
        "model.head_dim", "model.vocab_size", "model.layers", "model.state_space.num_heads",
        "model.state_space.head_dim", "model.state_space.n_groups", "model.state_space.state_size",
        "model.state_space.conv_kernel"},
       [](const Config& c) {
         const double parameters = parameters_of(c.model);
         return none_or(parameters <= most_parameters,
                        "hidden_size {}, the widths beside it, vocab_size {} and {} blocks make {:.3g} "
                        "parameters; a model has at most {:.3g}",
                        c.model.hidden_size, c.model.vocab_size, c.model.blocks.size(), parameters, most_parameters);
       }},
      {{"training.sequence_length", "training.microbatch_size", "model.hidden_size", "model.intermediate_size",
        "model.vocab_size", "model.num_attention_heads", "model.head_dim", "model.moe.num_experts",
        "model.moe.real_fraction", "model.state_space.num_heads", "model.state_space.head_dim",
        "model.state_space.n_groups", "model.state_space.state_size"},
       [](const Config& c) {
         std::int64_t widest = std::max({c.model.hidden_size, c.model.intermediate_size, c.model.vocab_size,
                                         c.model.num_attention_heads * c.model.head_dim, c.model.moe.pool()});
         for (const std::int64_t width : c.model.widths(BlockKind::dense)) widest = std::max(widest, width);
         // A scan has a state for each chunk of tokens, which is as large as so many columns of them.
         const double states = space_columns_of(c.model) * static_cast<double>(c.model.state_space.state_size) /
                               static_cast<double>(shortest_scan_chunk);
         const double columns = std::max(static_cast<double>(widest), space_columns_of(c.model) + states);
         const double elements = microbatch_tokens_of(c) * columns;
         return none_or(elements <= most_elements,
                        "microbatch_size {} x sequence_length {} tokens are {:.0f} wide at most: {:.3g} elements; "
                        "a tensor of a microbatch has at most {:.3g}",
                        c.training.microbatch_size, c.training.sequence_length, columns, elements, most_elements);
       }},
      {{"training.sequence_length", "training.microbatch_size", "model.moe.num_experts_per_tok",
        "model.moe.real_fraction", "model.layers"},
       [](const Config& c) {
         const MoeConfig& moe = c.model.moe;
         const double slots = microbatch_tokens_of(c) * static_cast<double>(moe.choices());
         return none_or(c.model.count(BlockKind::moe) == 0 || slots <= most_slots,
                        "microbatch_size {} x sequence_length {} x num_experts_per_tok {}{} = {:.3g} tokens "
                        "to deal; at most {:.0f}",
                        c.training.microbatch_size, c.training.sequence_length, moe.num_experts_per_tok,
                        moe.null_copies() > 0 ? fmt::format(" / real_fraction {}", moe.real_fraction) : "", slots,
                        most_slots);
       }},
      {{"model.moe.pad_to_capacity", "training.sequence_length", "training.microbatch_size",
        "model.moe.capacity_factor"},
       [](const Config& c) {
         const MoeConfig& moe = c.model.moe;
         // Another rule reports missing experts.
         const std::int64_t of_sequence =
             moe.pads() && moe.num_experts > 0 ? moe.capacity(c.training.sequence_length) : 0;
         const double rows = static_cast<double>(moe.num_experts) * static_cast<double>(c.training.microbatch_size) *
                             static_cast<double>(of_sequence);
         return none_or(rows <= most_slots,
                        "{} experts of capacity_factor {} have {:.3g} rows with pad_to_capacity; at most {:.0f}",
                        moe.num_experts, moe.capacity_factor, rows, most_slots);
       }},
  };
}

std::vector<ConfigRule> step_rules() {
  return {
      // Actions: two segments a block, forward and backward, with the actions of units and messages beside them.
      {{"model.layers", "training.global_batch_size", "training.microbatch_size", "parallelism.data_replicate",
        "parallelism.data_shard"},
       [](const Config& c) {
         const std::int64_t blocks = std::ssize(c.model.blocks);
         const std::int64_t one = c.training.microbatch_size * c.parallelism.data();
         const std::int64_t microbatches = c.training.global_batch_size / std::max<std::int64_t>(1, one);
         return none_or(microbatches <= most_step_actions / (8 * (blocks + 1)),
                        "{} blocks and {} microbatches (global_batch_size {}) have more than {} actions in a "
                        "step; a larger training.microbatch_size, or more data ranks, make fewer",
                        blocks, microbatches, c.training.global_batch_size, most_step_actions);
       }},
      {{"model.vocab_size", "training.sequence_length", "training.global_batch_size", "parallelism.data_replicate",
        "parallelism.data_shard", "parallelism.tensor", "parallelism.context"},
       [](const Config& c) {
         const double split = static_cast<double>(c.parallelism.data()) * c.parallelism.tensor * c.parallelism.context;
         const double tokens = static_cast<double>(c.training.global_batch_size * c.training.sequence_length);
         const double logits = tokens / split * static_cast<double>(c.model.vocab_size);
         return none_or(logits <= most_logits,
                        "global_batch_size {} x sequence_length {} x vocab_size {} over {:.0f} ranks of "
                        "data, tensor and context are {:.3g} logits of a rank in a step; at most {:.3g}",
                        c.training.global_batch_size, c.training.sequence_length, c.model.vocab_size, split, logits,
                        most_logits);
       }},
      {{"parallelism.pipeline", "pipeline.chunks"},
       [](const Config& c) {
         const std::int64_t stages = std::int64_t{c.parallelism.pipeline} * c.pipeline.chunks;
         return none_or(stages <= most_stages, "pipeline {} x chunks {} make {} stages; there are {} at most",
                        c.parallelism.pipeline, c.pipeline.chunks, stages, most_stages);
       }},
  };
}

// Widths between hidden states, of which each of `ranks` has an equal part.
ConfigRule width_rule(Family family, const std::vector<std::string>& size_keys, int Degrees::*degree,
                      const Sizes& sizes) {
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

std::vector<ConfigRule> size_rules() {
  std::vector<ConfigRule> rules = model_and_microbatch_rules();
  std::ranges::move(step_rules(), std::back_inserter(rules));
  return rules;
}

void require_sizes(const Config& config) {
  const Messages faults = rule_faults(config, size_rules());
  if (!faults.empty()) fail_request("{}", fmt::join(faults, "\n"));
}

std::vector<ConfigRule> float8_rules() {
  // One size, which the message calls `name`.
  const auto of_model = [](const std::string& name, std::int64_t (*size)(const ModelConfig&)) {
    return one_size(name, [=](const Config& c) { return size(c.model); });
  };
  const Sizes hidden = of_model("hidden_size", [](const ModelConfig& m) { return m.hidden_size; });
  const std::string shared = "shared_expert_intermediate_size", space = "model.state_space.";
  const std::vector<std::string> space_keys = {space + "num_heads", space + "head_dim", space + "n_groups",
                                               space + "state_size", "parallelism.tensor"};
  return {
      width_rule(Family::dense, {"model.hidden_size"}, nullptr, hidden),
      width_rule(Family::experts, {"model.hidden_size"}, nullptr, hidden),
      width_rule(Family::dense, {"model.head_dim", "model.num_attention_heads", "parallelism.tensor"}, &Degrees::tensor,
                 of_model("num_attention_heads x head_dim",
                          [](const ModelConfig& m) {
                            return m.has(Mixer::attention) ? m.num_attention_heads * m.head_dim : 0;
                          })),
      width_rule(Family::dense, {"model.head_dim", "model.num_key_value_heads", "parallelism.tensor"}, &Degrees::tensor,
                 of_model("2 x num_key_value_heads x head_dim",
                          [](const ModelConfig& m) {
                            return m.has(Mixer::attention) ? 2 * m.num_key_value_heads * m.head_dim : 0;
                          })),
      width_rule(
          Family::dense, space_keys, &Degrees::tensor,
          of_model("the columns of a state space",
                   [](const ModelConfig& m) { return m.has(Mixer::state_space) ? m.state_space.columns() : 0; })),
      width_rule(Family::dense, {space_keys[0], space_keys[1], "parallelism.tensor"}, &Degrees::tensor,
                 of_model("state_space.num_heads x head_dim",
                          [](const ModelConfig& m) { return m.has(Mixer::state_space) ? m.state_space.inner() : 0; })),
      width_rule(Family::dense, {"model.intermediate_size", "model.layers", "parallelism.tensor"}, &Degrees::tensor,
                 block_widths(BlockKind::dense, "intermediate_size")),
      width_rule(Family::dense, {"model.moe." + shared, "parallelism.tensor"}, &Degrees::tensor,
                 of_model(shared,
                          [](const ModelConfig& m) {
                            return m.has(BlockKind::moe) ? m.moe.shared_expert_intermediate_size : 0;
                          })),
      width_rule(Family::experts, {"model.moe.moe_intermediate_size", "model.layers", "parallelism.expert_tensor"},
                 &Degrees::expert_tensor, block_widths(BlockKind::moe, "moe_intermediate_size")),
      token_rule(),
  };
}

}  // namespace weft
