#include "trainer/resolve/config_rules.h"

#include <algorithm>
#include <limits>
#include <set>

#include "parallel/runtime/error.h"
#include "trainer/config/update_groups.h"

namespace weft {
namespace {

using Rules = std::vector<ConfigRule>;

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
      {{"run.captured_regions", "run.device"},
       [](const Config& c) {
         return none_or(!c.run.captured_regions || c.run.device == DeviceKind::cuda,
                        "captured_regions are CUDA graphs, and ranks compute on \"cpu\"");
       }},
      {{"run.captured_regions", "parallelism.tensor"},
       [](const Config& c) {
         return none_or(!c.run.captured_regions || c.parallelism.tensor == 1,
                        "captured_regions leave out segments that exchange with other ranks, which are all under "
                        "parallelism.tensor {}",
                        c.parallelism.tensor);
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
                       return none_or(resolved_groups(c)[group].rule != UpdateRule::muon,
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
           const OptimizerConfig options = resolved_groups(c)[group];
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
  const auto rule = [](UpdateGroup group, Family family, const std::string& key, const Sizes& widths) {
    return ConfigRule{{fmt::format("optimizer.{}.name", name_of(group)), key, "optimizer.name", "model.layers"},
                      [=](const Config& c) {
                        const bool muon =
                            resolved_groups(c)[group].rule == UpdateRule::muon && !c.training.frozen.contains(family);
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
  const std::string dense = "model.intermediate_size", experts = "model.moe.moe_intermediate_size",
                    shared = "model.moe.shared_expert_intermediate_size";
  return {rule(UpdateGroup::dense, Family::dense, dense, block_widths(BlockKind::dense, dense)),
          rule(UpdateGroup::dense, Family::dense, "model.state_space.num_heads",
               [](const Config& c) {
                 const StateSpaceConfig& space = c.model.state_space;
                 if (!c.model.has(Mixer::state_space)) return std::vector<NamedSize>{};
                 return std::vector<NamedSize>{
                     {"model.state_space.num_heads", space.num_heads},
                     {"state_space.n_groups x state_size", space.n_groups * space.state_size}};
               }),
          rule(UpdateGroup::dense, Family::dense, shared,
               one_size(shared,
                        [](const Config& c) {
                          return c.model.has(BlockKind::moe) ? c.model.moe.shared_expert_intermediate_size : 0;
                        })),
          rule(UpdateGroup::experts, Family::experts, experts, block_widths(BlockKind::moe, experts))};
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

std::vector<ConfigRule> config_rules() {
  Rules rules;
  for (auto group : {model_rules(), mesh_rules(), pipeline_rules(), batch_rules(), data_rules(), device_rules(),
                     run_rules(), optimizer_rules(), muon_width_rules(), tied_rules(), profiling_rules(), spike_rules(),
                     shard_rules(), size_rules(), float8_rules()}) {
    for (ConfigRule& rule : group) rules.push_back(std::move(rule));
  }
  return rules;
}

Messages rule_faults(const Config& config, const std::vector<ConfigRule>& rules) {
  Messages faults;
  for (const ConfigRule& rule : rules) {
    for (std::string& fault : rule.check(config)) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace weft
