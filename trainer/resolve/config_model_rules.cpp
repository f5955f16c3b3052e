// Rules between the keys of a model, and of its parts with the degrees that split them.
#include <algorithm>
#include <iterator>
#include <set>

#include "trainer/resolve/config_rules.h"

namespace weft {
namespace {

using Rules = std::vector<ConfigRule>;

Size model_size(std::int64_t ModelConfig::*size) {
  return [=](const Config& c) { return c.model.*size; };
}
Size model_size(std::int64_t MoeConfig::*size) {
  return [=](const Config& c) { return c.model.moe.*size; };
}
Size model_size(std::int64_t StateSpaceConfig::*size) {
  return [=](const Config& c) { return c.model.has(Mixer::state_space) ? c.model.state_space.*size : 0; };
}

// Sizes must be multiples of a degree.
ConfigRule splits_over(const std::string& degree_key, int Degrees::*degree, std::vector<std::string> keys,
                       const Sizes& sizes) {
  keys.push_back(degree_key);
  return {std::move(keys), [=](const Config& c) {
            Messages faults;
            const int ranks = c.parallelism.*degree;
            for (const auto& [name, size] : sizes(c)) {
              if (size % ranks == 0) continue;
              faults.push_back(fmt::format("{} {} does not split over {} {}: remainder {}", name, size, degree_key,
                                           ranks, size % ranks));
            }
            return faults;
          }};
}
ConfigRule splits_over_tensor(const std::string& key, const Size& size) {
  return splits_over("parallelism.tensor", &Degrees::tensor, {key}, one_size(key, size));
}

// Keys that blocks with a part need. Where nothing reads them they are written as 0.
template <typename Part>
ConfigRule needed_by(Part part, const std::string& key, Size value) {
  return {{key, "model.layers"}, [=](const Config& c) {
            return none_or(!c.model.has(part) || value(c) > 0, "{} is required: model.layers \"{}\" has {}", key,
                           c.layers_text, blocks_of(part));
          }};
}
// The same of a width, if not all of the blocks have one of their own.
ConfigRule width_needed_by(BlockKind kind, const std::string& key, Size value) {
  return needed_by(kind, key, [=](const Config& c) { return c.model.uses_width_of(kind) ? value(c) : 1; });
}

Rules attention_rules() {
  // 0 of a model without attention, where nothing reads them.
  const auto size = [](std::int64_t ModelConfig::*member) -> Size {
    return [=](const Config& c) { return c.model.has(Mixer::attention) ? c.model.*member : 0; };
  };
  const Size query_heads = size(&ModelConfig::num_attention_heads), pairs = size(&ModelConfig::num_key_value_heads),
             width = size(&ModelConfig::head_dim);
  return {
      needed_by(Mixer::attention, "model.num_attention_heads", query_heads),
      needed_by(Mixer::attention, "model.num_key_value_heads", pairs),
      needed_by(Mixer::attention, "model.head_dim", width),
      {{"model.num_attention_heads", "model.num_key_value_heads"},
       [=](const Config& c) {
         const std::int64_t heads = query_heads(c), shared = pairs(c);
         if (shared == 0) return Messages{};  // another rule reports that there are none where some are needed
         return none_or(heads % shared == 0,
                        "num_attention_heads {} is not a multiple of num_key_value_heads {}: remainder {}", heads,
                        shared, heads % shared);
       }},
      splits_over_tensor("model.num_attention_heads", query_heads),
      splits_over_tensor("model.num_key_value_heads", pairs),
      {{"model.head_dim"},
       [=](const Config& c) {
         return none_or(width(c) % 2 == 0, "head_dim {} is odd; the rotary embedding turns pairs", width(c));
       }},
  };
}

Rules state_space_rules() {
  const std::string heads = "model.state_space.num_heads", groups = "model.state_space.n_groups";
  return {
      needed_by(Mixer::state_space, heads, model_size(&StateSpaceConfig::num_heads)),
      {{heads, groups},
       [](const Config& c) {
         const StateSpaceConfig& space = c.model.state_space;
         return none_or(!c.model.has(Mixer::state_space) || space.num_heads % space.n_groups == 0,
                        "state_space.num_heads {} is not a multiple of n_groups {}: remainder {}", space.num_heads,
                        space.n_groups, space.num_heads % space.n_groups);
       }},
      splits_over_tensor(groups, model_size(&StateSpaceConfig::n_groups)),
      {{heads, "parallelism.tensor", "parallelism.context"},
       [=](const Config& c) {
         const std::int64_t ranks = std::int64_t{c.parallelism.tensor} * c.parallelism.context;
         const std::int64_t size = c.model.has(Mixer::state_space) ? c.model.state_space.num_heads : 0;
         return none_or(c.parallelism.context == 1 || size % ranks == 0,
                        "{} {} does not split over tensor {} x context {}: remainder {}; state spaces scan whole "
                        "sequences, and ranks of both axes have a part of the heads each",
                        heads, size, c.parallelism.tensor, c.parallelism.context, size % ranks);
       }},
      {{groups, "parallelism.tensor", "parallelism.context"},
       [=](const Config& c) {
         const int context = c.parallelism.context;
         const std::int64_t split = c.model.has(Mixer::state_space) ? c.model.state_space.n_groups : 0;
         const std::int64_t own = split / c.parallelism.tensor;
         if (own == 0 || split % c.parallelism.tensor != 0) return Messages{};  // another rule's
         return none_or(own % context == 0 || context % own == 0,
                        "the ranks of context {} share the {} groups of {} on a tensor rank unevenly: one number must "
                        "divide the other",
                        context, own, groups);
       }},
  };
}

ConfigRule needs_experts(const std::string& name, int Degrees::*degree, std::string_view use) {
  return {{"parallelism." + name, "model.layers"}, [=](const Config& c) {
            return none_or(c.parallelism.*degree == 1 || c.model.has(BlockKind::moe),
                           "{} {} has no experts to {}: model.layers \"{}\" has no {}", name, c.parallelism.*degree,
                           use, c.layers_text, blocks_of(BlockKind::moe));
          }};
}

// Another rule reports missing experts.
Messages group_errors(const MoeConfig& moe) {
  if (moe.num_experts == 0) return {};
  if (moe.num_experts % moe.n_group != 0) {
    return none_or(false, "num_experts {} is not a multiple of n_group {}", moe.num_experts, moe.n_group);
  }
  if (moe.topk_group > moe.n_group) {
    return none_or(false, "topk_group {} is more than n_group {}", moe.topk_group, moe.n_group);
  }
  const std::int64_t chosen_from = moe.topk_group * (moe.num_experts / moe.n_group);
  return none_or(moe.num_experts_per_tok <= chosen_from || moe.num_experts_per_tok > moe.num_experts,
                 "num_experts_per_tok {} is more than the {} experts of topk_group {}", moe.num_experts_per_tok,
                 chosen_from, moe.topk_group);
}

Rules block_rules() {
  const std::string width = "model.intermediate_size", shared = "model.moe.shared_expert_intermediate_size";
  return {
      width_needed_by(BlockKind::dense, width, model_size(&ModelConfig::intermediate_size)),
      needed_by(BlockKind::moe, "model.moe.num_experts", model_size(&MoeConfig::num_experts)),
      needed_by(BlockKind::moe, "model.moe.num_experts_per_tok", model_size(&MoeConfig::num_experts_per_tok)),
      width_needed_by(BlockKind::moe, "model.moe.moe_intermediate_size", model_size(&MoeConfig::moe_intermediate_size)),
      splits_over("parallelism.tensor", &Degrees::tensor, {width, "model.layers"},
                  block_widths(BlockKind::dense, width)),
      splits_over_tensor(shared, model_size(&MoeConfig::shared_expert_intermediate_size)),
      {{"model.moe.num_experts_per_tok", "model.moe.num_experts"},
       [](const Config& c) {
         const MoeConfig& moe = c.model.moe;
         // Another rule reports missing experts.
         return none_or(moe.num_experts == 0 || moe.num_experts_per_tok <= moe.num_experts,
                        "num_experts_per_tok {} is more than num_experts {}", moe.num_experts_per_tok, moe.num_experts);
       }},
      {{"model.moe.n_group", "model.moe.topk_group", "model.moe.num_experts", "model.moe.num_experts_per_tok"},
       [](const Config& c) { return group_errors(c.model.moe); }},
      {{"model.moe.real_fraction", "model.moe.n_group"},
       [](const Config& c) {
         const MoeConfig& moe = c.model.moe;
         return none_or(moe.real_fraction == 1.0 || moe.n_group == 1,
                        "real_fraction {} lets a token choose from null slots, which are in none of n_group {} groups: "
                        "write n_group = 1 or real_fraction = 1",
                        moe.real_fraction, moe.n_group);
       }},
      {{"model.moe.capacity_factor", "model.moe.num_experts_per_tok"},
       [](const Config& c) {
         const MoeConfig& moe = c.model.moe;
         return none_or(
             !moe.drops() || moe.capacity_factor * static_cast<double>(moe.num_experts_per_tok) >= 1.0,
             "capacity_factor {} x num_experts_per_tok {} is below 1: even evenly routed tokens would be left "
             "without any expert",
             moe.capacity_factor, moe.num_experts_per_tok);
       }},
      {{"model.moe.capacity_factor", "model.moe.aux_loss"},
       [](const Config& c) {
         const MoeConfig& moe = c.model.moe;
         return none_or(!moe.drops() || !counts_step(moe.aux_loss) || moe.router_aux_loss_coef == 0.0,
                        "aux_loss \"{}\" balances the choices that experts take, and with capacity_factor {} they "
                        "drop the others: write \"sequence\" or \"microbatch\"",
                        name_of(moe.aux_loss), moe.capacity_factor);
       }},
      splits_over("parallelism.expert", &Degrees::expert, {"model.moe.num_experts"},
                  one_size("num_experts", model_size(&MoeConfig::num_experts))),
      splits_over("parallelism.expert_tensor", &Degrees::expert_tensor,
                  {"model.moe.moe_intermediate_size", "model.layers"},
                  block_widths(BlockKind::moe, "moe_intermediate_size")),
      {{"parallelism.expert_dispatch", "parallelism.expert_nodes", "parallelism.expert"},
       [](const Config& c) {
         const Degrees& d = c.parallelism;
         const bool hierarchical = d.expert_dispatch == ExpertDispatch::hierarchical;
         return none_or(
             !hierarchical || d.expert == 1 || d.expert_nodes > 1,
             "expert_dispatch \"hierarchical\" goes between nodes, and expert_nodes is 1: write the number of "
             "nodes that the {} ranks of an expert group stand on, or \"all_to_all\"",
             d.expert);
       }},
      // Predictor k reads the token k places behind its position (layers/prediction.h).
      {{"model.layers", "training.sequence_length"},
       [](const Config& c) {
         const std::int64_t length = c.training.sequence_length;
         return none_or(c.model.mtp_depth < length,
                        "model.layers \"{}\" has {} predictors (m), and predictor {} would read {} tokens ahead in a "
                        "sequence_length of {}: write at most {} or longer sequences",
                        c.layers_text, c.model.mtp_depth, length, length, length, length - 1);
       }},
      needs_experts("expert", &Degrees::expert, "spread"),
      needs_experts("expert_tensor", &Degrees::expert_tensor, "split"),
  };
}

}  // namespace

Sizes one_size(const std::string& name, Size size) {
  return [=, size = std::move(size)](const Config& c) { return std::vector<NamedSize>{{name, size(c)}}; };
}

Sizes block_widths(BlockKind kind, const std::string& name) {
  return [=](const Config& c) {
    std::vector<NamedSize> widths;
    std::set<std::int64_t> own;
    for (const ModelBlock& block : c.model.blocks) {
      if (block == kind && block.width > 0) own.insert(block.width);
    }
    if (c.model.uses_width_of(kind)) widths.push_back({name, c.model.width(ModelBlock(kind))});
    for (const std::int64_t width : own) {
      widths.push_back({fmt::format("model.layers \"{}\": width", c.layers_text), width});
    }
    return widths;
  };
}

std::vector<ConfigRule> model_rules() {
  Rules rules = attention_rules();
  std::ranges::move(state_space_rules(), std::back_inserter(rules));
  std::ranges::move(block_rules(), std::back_inserter(rules));
  return rules;
}

}  // namespace weft
