#include "trainer/resolve/config_rules.h"

#include <algorithm>
#include <limits>
#include <set>

#include "parallel/runtime/error.h"
#include "trainer/config/update_groups.h"

namespace weft {
namespace {

using Rules = std::vector<ConfigRule>;

using Size = std::function<std::int64_t(const Config&)>;
Size model_size(std::int64_t ModelConfig::*size) {
  return [=](const Config& c) { return c.model.*size; };
}
Size model_size(std::int64_t MoeConfig::*size) {
  return [=](const Config& c) { return c.model.moe.*size; };
}
Size model_size(std::int64_t StateSpaceConfig::*size) {
  return [=](const Config& c) { return c.model.has(Mixer::state_space) ? c.model.state_space.*size : 0; };
}

// A size must be a multiple of a degree.
Messages split_faults(const NamedSize& size, const std::string& degree_key, int ranks) {
  return none_or(size.value % ranks == 0, "{} {} does not split over {} {}: remainder {}", size.name, size.value,
                 degree_key, ranks, size.value % ranks);
}
// The message calls the size `name`.
ConfigRule splits_over(const std::string& degree_key, int Degrees::*degree, const std::string& key,
                       const std::string& name, Size size) {
  return {{key, degree_key}, [=](const Config& c) {
            return split_faults({name, size(c)}, degree_key, c.parallelism.*degree);
          }};
}
// The same of all widths of blocks of a kind.
ConfigRule widths_split_over(const std::string& degree_key, int Degrees::*degree, BlockKind kind,
                             const std::string& key, const std::string& name) {
  return {{key, "model.layers", degree_key}, [=](const Config& c) {
            Messages faults;
            for (const NamedSize& width : block_widths(c, kind, name)) {
              for (std::string& fault : split_faults(width, degree_key, c.parallelism.*degree)) {
                faults.push_back(std::move(fault));
              }
            }
            return faults;
          }};
}
ConfigRule splits_over_tensor(const std::string& key, Size size) {
  return splits_over("parallelism.tensor", &Degrees::tensor, key, key, std::move(size));
}

// Keys that blocks with a mixer need. Where nothing reads them they are written as 0.
ConfigRule needed_by(Mixer mixer, const std::string& key, Size value) {
  return {{key, "model.layers"}, [=](const Config& c) {
            return none_or(!c.model.has(mixer) || value(c) > 0, "{} is required: model.layers \"{}\" has {}", key,
                           c.layers_text, blocks_of(mixer));
          }};
}

Rules attention_rules() {
  return {
      needed_by(Mixer::attention, "model.num_attention_heads", model_size(&ModelConfig::num_attention_heads)),
      needed_by(Mixer::attention, "model.num_key_value_heads", model_size(&ModelConfig::num_key_value_heads)),
      needed_by(Mixer::attention, "model.head_dim", model_size(&ModelConfig::head_dim)),
      {{"model.num_attention_heads", "model.num_key_value_heads"},
       [](const Config& c) {
         const auto heads = c.model.num_attention_heads, shared = c.model.num_key_value_heads;
         if (shared == 0) return Messages{};  // another rule reports that there are none where some are needed
         return none_or(heads % shared == 0,
                        "num_attention_heads {} is not a multiple of num_key_value_heads {}: remainder {}", heads,
                        shared, heads % shared);
       }},
      splits_over_tensor("model.num_attention_heads", model_size(&ModelConfig::num_attention_heads)),
      splits_over_tensor("model.num_key_value_heads", model_size(&ModelConfig::num_key_value_heads)),
      {{"model.head_dim"},
       [](const Config& c) {
         return none_or(c.model.head_dim % 2 == 0, "head_dim {} is odd; the rotary embedding turns pairs",
                        c.model.head_dim);
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
      {{"model.layers", "parallelism.context"},
       [](const Config& c) {
         const int context = c.parallelism.context;
         return none_or(!c.model.has(Mixer::state_space) || context == 1,
                        "context {} splits sequences, and model.layers \"{}\" has state spaces (M), which take whole "
                        "ones: write context = 1 and give the ranks to another axis, as in tensor = {}",
                        context, c.layers_text, context * c.parallelism.tensor);
       }},
  };
}

// Keys that blocks of a kind need; a width only if they have none of their own.
ConfigRule needed_by(BlockKind kind, const std::string& key, Size value, bool is_width = false) {
  return {{key, "model.layers"}, [=](const Config& c) {
            const bool needed = is_width ? c.model.uses_width_of(kind) : c.model.has(kind);
            return none_or(!needed || value(c) > 0, "{} is required: model.layers \"{}\" has {}", key, c.layers_text,
                           blocks_of(kind));
          }};
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
      needed_by(BlockKind::dense, width, model_size(&ModelConfig::intermediate_size), /*is_width=*/true),
      needed_by(BlockKind::moe, "model.moe.num_experts", model_size(&MoeConfig::num_experts)),
      needed_by(BlockKind::moe, "model.moe.num_experts_per_tok", model_size(&MoeConfig::num_experts_per_tok)),
      needed_by(BlockKind::moe, "model.moe.moe_intermediate_size", model_size(&MoeConfig::moe_intermediate_size),
                /*is_width=*/true),
      widths_split_over("parallelism.tensor", &Degrees::tensor, BlockKind::dense, width, width),
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
      splits_over("parallelism.expert", &Degrees::expert, "model.moe.num_experts", "num_experts",
                  model_size(&MoeConfig::num_experts)),
      widths_split_over("parallelism.expert_tensor", &Degrees::expert_tensor, BlockKind::moe,
                        "model.moe.moe_intermediate_size", "moe_intermediate_size"),
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

Rules mesh_rules() {
  return {
      {{"parallelism.expert", "parallelism.expert_tensor", "parallelism.pipeline", "parallelism.data_replicate",
        "parallelism.data_shard", "parallelism.context", "parallelism.tensor"},
       [](const Config& c) { return degree_errors(c.parallelism); }},
  };
}

// The multiples of `unit` on both sides of `value`, as "8 or 12".
std::string nearest_multiples(std::int64_t value, std::int64_t unit) {
  const std::int64_t below = value / unit * unit;
  if (below == 0) return fmt::format("{}", unit);
  return fmt::format("{} or {}", below, below + unit);
}

Rules batch_rules() {
  return {
      {{"training.global_batch_size", "training.microbatch_size", "parallelism.data_replicate",
        "parallelism.data_shard"},
       [](const Config& c) {
         const auto batch = c.training.global_batch_size, microbatch = c.training.microbatch_size;
         const std::int64_t replicas = c.parallelism.data_replicate, shards = c.parallelism.data_shard;
         const std::int64_t unit = microbatch * replicas * shards;
         return none_or(batch % unit == 0,
                        "global_batch_size {} is not a multiple of microbatch_size {} x data_replicate {} "
                        "x data_shard {} = {}; nearest: {}",
                        batch, microbatch, replicas, shards, unit, nearest_multiples(batch, unit));
       }},
      {{"training.sequence_length", "training.microbatch_size", "parallelism.tensor"},
       [](const Config& c) {
         const std::int64_t tokens = c.microbatch_tokens(), tensor = c.parallelism.tensor;
         return none_or(tokens % tensor == 0,
                        "microbatch_size {} x sequence_length {} = {} tokens do not split over "
                        "parallelism.tensor {}: remainder {}",
                        c.training.microbatch_size, c.training.sequence_length, tokens, tensor, tokens % tensor);
       }},
      {{"training.sequence_length", "parallelism.context", "parallelism.tensor", "training.microbatch_size"},
       [](const Config& c) {
         const std::int64_t length = c.training.sequence_length, context = c.parallelism.context;
         // Each context rank holds one run of positions from each half of the sequence.
         Messages messages = none_or(context == 1 || length % (2 * context) == 0,
                                     "sequence_length {} does not split into 2 runs for each of {} context "
                                     "ranks: remainder {}",
                                     length, context, length % (2 * context));
         if (context == 1 || !messages.empty()) return messages;
         const std::int64_t tokens = c.microbatch_tokens() / context, tensor = c.parallelism.tensor;
         return none_or(tokens % tensor == 0,
                        "microbatch_size {} x sequence_length {} / context {} = {} tokens do not split over "
                        "parallelism.tensor {}: remainder {}",
                        c.training.microbatch_size, length, context, tokens, tensor, tokens % tensor);
       }},
  };
}

Rules data_rules() {
  return {
      {{"validation.split", "data.split"},
       [](const Config& c) {
         return none_or(!c.validation.split || !c.data.split.empty(),
                        "validation.split is true, but data.split names no parts: write data.split = \"969,30,1\"");
       }},
      {{"validation.split", "validation.data"},
       [](const Config& c) {
         return none_or(!c.validation.split || c.validation.data.empty(),
                        "validation.split is true and validation.data names files: hold out one or the other");
       }},
      {{"data.order", "run.seed"},
       [](const Config& c) {
         return none_or(c.data.order == DataOrder::weft || c.run.seed <= std::numeric_limits<std::uint32_t>::max(),
                        "run.seed {} is above 4294967295, the largest of data.order \"megatron\"", c.run.seed);
       }},
      {{"data.documents", "data.order"},
       [](const Config& c) {
         return none_or(c.data.documents != Documents::pack || c.data.order == DataOrder::weft,
                        "data.documents is \"pack\", and data.order \"megatron\" reads through documents whatever "
                        "their lengths: take \"mask\" or data.order = \"weft\"");
       }},
  };
}

Rules device_rules() {
  return {
      {{"run.launch", "run.device"},
       [](const Config& c) {
         return none_or(c.run.launch == LaunchKind::threads || c.run.device == DeviceKind::cuda,
                        "ranks that are processes exchange tensors of GPUs: on the CPU ranks are \"threads\"");
       }},
      {{"run.ranks_per_device", "run.device"},
       [](const Config& c) {
         return none_or(c.run.ranks_per_device == 1 || c.run.device == DeviceKind::cuda,
                        "ranks_per_device {} speaks of GPUs, and ranks compute on \"cpu\"", c.run.ranks_per_device);
       }},
      {{"run.attention", "run.device"},
       [](const Config& c) {
         return none_or(c.run.attention == AttentionChoice{} || c.run.device == DeviceKind::cuda,
                        "attention chooses between kernels of a GPU, and ranks compute on \"cpu\"");
       }},
      {{"hardware.expert_load", "parallelism.expert"},
       [](const Config& c) {
         const double load = c.hardware.expert_load;
         return none_or(load <= c.parallelism.expert,
                        "expert_load {} is more than the parallelism.expert {} ranks can "
                        "differ by: one of them gets all tokens at most",
                        load, c.parallelism.expert);
       }},
      {{"hardware.expert_load", "model.moe.force_balance"},
       [](const Config& c) {
         return none_or(c.hardware.expert_load == 1.0 || !forces_balance(c.model),
                        "expert_load {} contradicts force_balance, which deals experts in turn",
                        c.hardware.expert_load);
       }},
      {{"hardware.expert_load", "model.moe.pad_to_capacity"},
       [](const Config& c) {
         return none_or(c.hardware.expert_load == 1.0 || !c.model.moe.pads(),
                        "expert_load {} contradicts pad_to_capacity, which gives every expert equally many rows",
                        c.hardware.expert_load);
       }},
      {{"run.registered_buffers", "run.device", "run.launch"},
       [](const Config& c) {
         const bool nccl = c.run.device == DeviceKind::cuda && c.run.launch == LaunchKind::processes;
         return none_or(!c.run.registered_buffers || nccl,
                        "registered_buffers speaks of NCCL, over which only ranks with device \"cuda\" and launch "
                        "\"processes\" exchange");
       }},
      {{"run.ranks_per_device", "run.launch", "parallelism.pipeline", "parallelism.data_replicate",
        "parallelism.data_shard", "parallelism.context", "parallelism.tensor"},
       [](const Config& c) {
         if (!degree_errors(c.parallelism).empty()) return Messages{};
         const int world = c.parallelism.world();
         return none_or(c.run.device == DeviceKind::cpu || c.run.launch == LaunchKind::processes ||
                            world <= c.run.ranks_per_device,
                        "threads of one process share one GPU, and {} ranks on it are more than "
                        "ranks_per_device {}: use launch \"processes\" and a GPU for each rank, or, for a "
                        "trial, ranks_per_device {}",
                        world, c.run.ranks_per_device, world);
       }},
  };
}

Rules run_rules() {
  return {
      {{"lr_scheduler.warmup_steps", "run.steps"},
       [](const Config& c) {
         return none_or(c.lr_scheduler.warmup_steps <= c.run.steps, "warmup_steps {} is more than run.steps {}",
                        c.lr_scheduler.warmup_steps, c.run.steps);
       }},
      {{"lr_scheduler.decay_steps", "lr_scheduler.warmup_steps", "run.steps"},
       [](const Config& c) {
         const auto warmup = c.lr_scheduler.warmup_steps, decay = c.lr_scheduler.decay_steps;
         // Another rule reports a warm-up that is too long by itself.
         return none_or(decay == 0 || warmup > c.run.steps || warmup + decay <= c.run.steps,
                        "warmup_steps {} + decay_steps {} = {} is more than run.steps {}", warmup, decay,
                        warmup + decay, c.run.steps);
       }},
      {{"model.vocab_size", "data.tokenizer"},
       [](const Config& c) {
         return none_or(c.data.tokenizer != "byte" || c.model.vocab_size >= 256,
                        "vocab_size {} is too small for the tokenizer \"byte\", which has 256 tokens",
                        c.model.vocab_size);
       }},
  };
}

// Muon orthogonalises matrices between hidden states; it needs float32 parameters.
Rules optimizer_rules() {
  Rules rules;
  for (const UpdateGroup group :
       {UpdateGroup::embedding, UpdateGroup::head, UpdateGroup::root, UpdateGroup::routing, UpdateGroup::vectors}) {
    rules.push_back({{fmt::format("optimizer.{}.name", name_of(group))}, [=](const Config& c) {
                       return none_or(resolved_groups(c)[static_cast<std::size_t>(group)].rule != UpdateRule::muon,
                                      "\"muon\" turns whole matrices between hidden states, which {} is "
                                      "not: use \"adamw\", \"sgd\", \"lion\" or \"lamb\"",
                                      name_of(group));
                     }});
  }
  for (const auto& [group, family] :
       {std::pair(UpdateGroup::dense, Family::dense), std::pair(UpdateGroup::experts, Family::experts)}) {
    const std::string section = fmt::format("optimizer.{}", name_of(group));
    rules.push_back(
        {{section + ".name", fmt::format("precision.{}.parameters", name_of(family))}, [=](const Config& c) {
           const OptimizerConfig options = resolved_groups(c)[static_cast<std::size_t>(group)];
           const DType stored = c.precision_of(family).parameters;
           return none_or(options.rule != UpdateRule::muon || stored == DType::float32,
                          "\"muon\" of {} keeps parameters in float32, but precision.parameters is \"{}\"",
                          name_of(group), name_of(stored));
         }});
  }
  return rules;
}

// A matrix of a single row cannot be stepped by muon, and no other rule steps it.
Rules muon_width_rules() {
  using Widths = std::function<std::vector<NamedSize>(const Config&)>;
  const auto rule = [](UpdateGroup group, Family family, const std::string& key, Widths widths) {
    return ConfigRule{{fmt::format("optimizer.{}.name", name_of(group)), key, "optimizer.name", "model.layers"},
                      [=](const Config& c) {
                        const bool muon =
                            resolved_groups(c)[static_cast<std::size_t>(group)].rule == UpdateRule::muon &&
                            !c.training.frozen.contains(family);
                        if (!muon || c.model.hidden_size == 1) return Messages{};
                        for (const NamedSize& width : widths(c)) {
                          if (width.value != 1) continue;
                          return Messages{
                              fmt::format("\"muon\" turns whole matrices, and those of {} have a single row "
                                          "where {} is 1: write a larger one, or another rule for {}",
                                          name_of(group), width.name, name_of(group))};
                        }
                        return Messages{};
                      }};
  };
  const auto of_blocks = [](BlockKind kind, const std::string& key) {
    return [=](const Config& c) { return block_widths(c, kind, key); };
  };
  const std::string dense = "model.intermediate_size", experts = "model.moe.moe_intermediate_size",
                    shared = "model.moe.shared_expert_intermediate_size";
  return {rule(UpdateGroup::dense, Family::dense, dense, of_blocks(BlockKind::dense, dense)),
          rule(UpdateGroup::dense, Family::dense, shared,
               [=](const Config& c) {
                 const bool exists = c.model.has(BlockKind::moe);
                 return exists ? std::vector<NamedSize>{{shared, c.model.moe.shared_expert_intermediate_size}}
                               : std::vector<NamedSize>{};
               }),
          rule(UpdateGroup::experts, Family::experts, experts, of_blocks(BlockKind::moe, experts))};
}

Rules profiling_rules() {
  const auto within_run = [](const std::string& name, std::int64_t ProfilingConfig::*step) {
    return ConfigRule{{"profiling." + name, "run.steps"}, [=](const Config& c) {
                        return none_or(c.profiling.*step <= c.run.steps, "{} {} is more than run.steps {}", name,
                                       c.profiling.*step, c.run.steps);
                      }};
  };
  return {
      within_run("first_step", &ProfilingConfig::first_step),
      within_run("last_step", &ProfilingConfig::last_step),
      {{"profiling.last_step", "profiling.first_step"},
       [](const Config& c) {
         const auto first = c.profiling.first_step, last = c.profiling.last_step;
         if (first == 0 && last > 0) {
           return Messages{fmt::format("last_step {} without a first_step records nothing: write first_step", last)};
         }
         return none_or(last == 0 || first <= last, "last_step {} is before first_step {}", last, first);
       }},
  };
}

// Factors of the mean of norms.
Rules spike_rules() {
  Rules rules;
  for (const auto& [name, factor] : {std::pair("grad_norm_warning", &SpikesConfig::grad_norm_warning),
                                     std::pair("grad_norm_spike", &SpikesConfig::grad_norm_spike)}) {
    rules.push_back({{fmt::format("spikes.{}", name)}, [=](const Config& c) {
                       const double times = c.spikes.*factor;
                       return none_or(times == 0.0 || times >= 1.0,
                                      "{} {} is below 1, so that usual norms are above the limit: write 1 or more, or "
                                      "0 for no limit",
                                      name, times);
                     }});
  }
  rules.push_back({{"spikes.grad_norm_warning", "spikes.grad_norm_spike"}, [](const Config& c) {
                     const double warning = c.spikes.grad_norm_warning, spike = c.spikes.grad_norm_spike;
                     return none_or(spike == 0.0 || warning <= spike,
                                    "grad_norm_warning {} is above grad_norm_spike {}: a norm above it is a spike "
                                    "already; write 0 for no warnings",
                                    warning, spike);
                   }});
  return rules;
}

}  // namespace

std::vector<NamedSize> block_widths(const Config& config, BlockKind kind, const std::string& name) {
  std::vector<NamedSize> widths;
  std::set<std::int64_t> own;
  for (const ModelBlock& block : config.model.blocks) {
    if (block == kind && block.width > 0) own.insert(block.width);
  }
  if (config.model.uses_width_of(kind)) widths.push_back({name, config.model.width(ModelBlock(kind))});
  for (const std::int64_t width : own) {
    widths.push_back({fmt::format("model.layers \"{}\": width", config.layers_text), width});
  }
  return widths;
}

std::vector<ConfigRule> config_rules() {
  Rules rules;
  for (auto group : {attention_rules(), state_space_rules(), block_rules(), mesh_rules(), pipeline_rules(),
                     batch_rules(), data_rules(), device_rules(), run_rules(), optimizer_rules(), muon_width_rules(),
                     tied_rules(), profiling_rules(), spike_rules(), shard_rules(), size_rules(), float8_rules()}) {
    for (ConfigRule& rule : group) rules.push_back(std::move(rule));
  }
  return rules;
}

Messages rule_faults(const Config& config) {
  Messages faults;
  for (const ConfigRule& rule : config_rules()) {
    for (std::string& fault : rule.check(config)) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace weft
