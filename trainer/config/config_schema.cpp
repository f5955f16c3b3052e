#include "trainer/config/config_schema.h"

#include <fmt/format.h>

#include "layers/kernels/gpu_kernel_options.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"
#include "trainer/config/config_special_keys.h"

namespace weft {
namespace {

using namespace config_fields;

using Keys = std::vector<ConfigKey>;

ConfigKey required(ConfigKey key) {
  key.required = true;
  return key;
}

std::string anything(const std::string&) {
  return {};
}
std::string not_empty(const std::string& text) {
  return text.empty() ? "the text is empty" : "";
}
std::string names_attention(const std::string& text) {
  if (parse_attention_choice(text)) return {};
  return fmt::format("\"{}\" is none of \"auto\", \"own\", \"cudnn\" and \"cudnn:<engine>\"", text);
}

// In seconds, up to a day.
constexpr IntegerRange timeout_range{1, 86'400};
// The product with any pipeline degree fits into 32 bits.
constexpr IntegerRange chunks_range{1, 1024};

Keys run_keys() {
  return {
      string_key(
          "run.name", "shown in the banner", [](auto& c) -> auto& { return c.run.name; }, anything),
      string_key(
          "run.directory", "folder of the run's files", [](auto& c) -> auto& { return c.run.directory; }, not_empty),
      integer_key(
          "run.seed", "of initial values and data order", {0, std::numeric_limits<std::int64_t>::max()},
          [](auto& c) -> auto& { return c.run.seed; }),
      integer_key(
          "run.steps", "optimizer steps", size_range, [](auto& c) -> auto& { return c.run.steps; }),
      choice_key<DeviceKind>(
          "run.device", "where ranks compute", {{"cpu", DeviceKind::cpu}, {"cuda", DeviceKind::cuda}}, {},
          [](auto& c) -> auto& { return c.run.device; }),
      choice_key<LaunchKind>(
          "run.launch", "each rank is one of the threads of this process, or a process of its own",
          {{"threads", LaunchKind::threads}, {"processes", LaunchKind::processes}}, {},
          [](auto& c) -> auto& { return c.run.launch; }),
      integer_key(
          "run.ranks_per_device", "ranks that share one GPU; more than one is for trials", degree_range,
          [](auto& c) -> auto& { return c.run.ranks_per_device; }),
      boolean_key(
          "run.registered_buffers", "gather parameters into memory that NCCL reaches in place; takes some more of it",
          [](auto& c) -> auto& { return c.run.registered_buffers; }),
      string_key(
          "run.attention", "kernels of a GPU: \"auto\", \"own\", \"cudnn\" or \"cudnn:<engine>\"",
          [](auto& c) -> auto& { return c.run.attention; }, names_attention),
      boolean_key(
          "run.deterministic", "a GPU repeats a run bit for bit; attention then takes more memory and time",
          [](auto& c) -> auto& { return c.run.deterministic; }),
      boolean_key(
          "run.measured_products",
          "a GPU times algorithms of the step's matrix products at the start, keeps the fastest and remembers them; "
          "not where run.deterministic is asked for",
          [](auto& c) -> auto& { return c.run.measured_products; }),
      integer_key(
          "run.communication_timeout_seconds", "a rank that waits longer than this for others ends the run",
          timeout_range, [](auto& c) -> auto& { return c.run.communication_timeout_seconds; }),
      boolean_key(
          "run.ignore_plan", "start although the plan says that memory will not suffice",
          [](auto& c) -> auto& { return c.run.ignore_plan; }),
  };
}

Keys model_keys() {
  return {
      required(layers_key()),
      required(integer_key(
          "model.vocab_size", "tokens in the vocabulary", size_range,
          [](auto& c) -> auto& { return c.model.vocab_size; })),
      required(integer_key(
          "model.hidden_size", "width between blocks", size_range,
          [](auto& c) -> auto& { return c.model.hidden_size; })),
      only_where({has_blocks(BlockKind::dense)},
                 integer_key(
                     "model.intermediate_size", "width inside dense blocks (SwiGLU)", count_range,
                     [](auto& c) -> auto& { return c.model.intermediate_size; })),
      required(integer_key(
          "model.num_attention_heads", "query heads", size_range,
          [](auto& c) -> auto& { return c.model.num_attention_heads; })),
      required(integer_key(
          "model.num_key_value_heads", "key and value heads", size_range,
          [](auto& c) -> auto& { return c.model.num_key_value_heads; })),
      required(integer_key(
          "model.head_dim", "width of a head", size_range, [](auto& c) -> auto& { return c.model.head_dim; })),
      integer_key(
          "model.sliding_window", "positions that a token attends to, its own among them; 0: all up to its own",
          count_range, [](auto& c) -> auto& { return c.model.sliding_window; }),
      boolean_key(
          "model.qk_norm", "RMSNorm on each query and key head", [](auto& c) -> auto& { return c.model.qk_norm; }),
      number_key(
          "model.rope_theta", "base of the rotary embedding", positive,
          [](auto& c) -> auto& { return c.model.rope_theta; }),
      number_key(
          "model.rms_norm_eps", "added to the mean square in RMSNorm", positive,
          [](auto& c) -> auto& { return c.model.rms_norm_eps; }),
      boolean_key(
          "model.tie_word_embeddings", "one weight for embedding and head",
          [](auto& c) -> auto& { return c.model.tie_word_embeddings; }),
      number_key(
          "model.initializer_range", "standard deviation of initial weights", non_negative,
          [](auto& c) -> auto& { return c.model.initializer_range; }),
  };
}

Keys moe_keys() {
  return {
      integer_key(
          "model.moe.num_experts", "routed experts of an MoE block", count_range,
          [](auto& c) -> auto& { return c.model.moe.num_experts; }),
      integer_key(
          "model.moe.num_experts_per_tok", "experts a token goes to", count_range,
          [](auto& c) -> auto& { return c.model.moe.num_experts_per_tok; }),
      integer_key(
          "model.moe.moe_intermediate_size", "width inside a routed expert", count_range,
          [](auto& c) -> auto& { return c.model.moe.moe_intermediate_size; }),
      integer_key(
          "model.moe.shared_expert_intermediate_size", "width inside the shared expert; 0: none", count_range,
          [](auto& c) -> auto& { return c.model.moe.shared_expert_intermediate_size; }),
      boolean_key(
          "model.moe.norm_topk_prob", "weights of the chosen experts sum to one",
          [](auto& c) -> auto& { return c.model.moe.norm_topk_prob; }),
      choice_key<Scoring>(
          "model.moe.scoring", "how router logits become scores",
          {{"softmax", Scoring::softmax}, {"sigmoid", Scoring::sigmoid}}, {},
          [](auto& c) -> auto& { return c.model.moe.scoring; }),
      number_key(
          "model.moe.router_aux_loss_coef", "weight of the load-balancing loss", non_negative,
          [](auto& c) -> auto& { return c.model.moe.router_aux_loss_coef; }),
      choice_key<AuxiliaryLoss>(
          "model.moe.aux_loss",
          "load-balancing loss: num_experts x sum over experts of its part of the choices x its mean score, summed "
          "over MoE blocks; of each sequence, and the mean over the sequences of a step: every layout and microbatch "
          "size has the same losses; or of all tokens of a rank's microbatch, and the mean over microbatches: depends "
          "on microbatch_size and data ranks; or of the choices of all data ranks in all microbatches of the step so "
          "far and the scores of a microbatch, and the mean over microbatches",
          {{"sequence", AuxiliaryLoss::sequence}, {"batch", AuxiliaryLoss::batch}, {"global", AuxiliaryLoss::global}},
          {}, [](auto& c) -> auto& { return c.model.moe.aux_loss; }),
      number_key(
          "model.moe.router_z_loss_coef", "weight of the squared log-sum of router logits", non_negative,
          [](auto& c) -> auto& { return c.model.moe.router_z_loss_coef; }),
  };
}

Keys parallelism_keys() {
  return {
      integer_key(
          "parallelism.pipeline", "ranks that share the stages", degree_range,
          [](auto& c) -> auto& { return c.parallelism.pipeline; }),
      integer_key(
          "parallelism.tensor", "ranks that split heads, widths and sequence", degree_range,
          [](auto& c) -> auto& { return c.parallelism.tensor; }),
      integer_key(
          "parallelism.context", "ranks that split each sequence", degree_range,
          [](auto& c) -> auto& { return c.parallelism.context; }),
      integer_key(
          "parallelism.data_replicate", "replicas of the shards (hybrid sharding)", degree_range,
          [](auto& c) -> auto& { return c.parallelism.data_replicate; }),
      data_shard_key(),
      integer_key(
          "parallelism.expert", "ranks that share the experts", degree_range,
          [](auto& c) -> auto& { return c.parallelism.expert; }),
      integer_key(
          "parallelism.expert_tensor", "ranks that split an expert", degree_range,
          [](auto& c) -> auto& { return c.parallelism.expert_tensor; }),
  };
}

Keys pipeline_keys() {
  return {
      schedule_key(),
      layout_key(),
      integer_key(
          "pipeline.chunks", "stages a rank runs, each with a part of the model", chunks_range,
          [](auto& c) -> auto& { return c.pipeline.chunks; }),
      costs_key(),
      integer_key(
          "pipeline.microbatch_group",
          "microbatches that go through a chunk before the next one, where the schedule takes groups; 0: equal groups, "
          "as short as the ranks allow",
          count_range, [](auto& c) -> auto& { return c.pipeline.microbatch_group; }),
      stage_blocks_key("first"),
      stage_blocks_key("last"),
  };
}

Keys training_keys() {
  return {
      integer_key(
          "training.sequence_length", "tokens of a sequence", size_range,
          [](auto& c) -> auto& { return c.training.sequence_length; }),
      integer_key(
          "training.global_batch_size", "sequences per step, whole job", size_range,
          [](auto& c) -> auto& { return c.training.global_batch_size; }),
      integer_key(
          "training.microbatch_size", "sequences a rank takes at a time", size_range,
          [](auto& c) -> auto& { return c.training.microbatch_size; }),
      number_key(
          "training.max_grad_norm", "gradients are scaled down to this norm; 0: never", non_negative,
          [](auto& c) -> auto& { return c.training.max_grad_norm; }),
      frozen_key(),
      only_where({computes_in_float16()},
                 number_key(
                     "training.initial_loss_scale", "first factor of the loss where something is computed in float16",
                     positive, [](auto& c) -> auto& { return c.training.initial_loss_scale; })),
      only_where({computes_in_float16()},
                 integer_key(
                     "training.loss_scale_growth_steps", "good steps until that factor doubles", size_range,
                     [](auto& c) -> auto& { return c.training.loss_scale_growth_steps; })),
      choice_key<Recompute>(
          "training.recompute",
          "activations that backward recomputes instead of keeping them: none, those without a matrix product, or "
          "whole blocks",
          {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}}, {},
          [](auto& c) -> auto& { return c.training.recompute; }),
  };
}

Keys scheduler_keys() {
  const KeyCondition falls{"decay is not \"constant\"",
                           [](const Config& c) { return c.lr_scheduler.decay != Decay::constant; }};
  const KeyCondition falls_at_the_end{"decay is \"wsd\"",
                                      [](const Config& c) { return c.lr_scheduler.decay == Decay::wsd; }};
  return {
      integer_key(
          "lr_scheduler.warmup_steps", "linear rise from 0", count_range,
          [](auto& c) -> auto& { return c.lr_scheduler.warmup_steps; }),
      choice_key<Decay>(
          "lr_scheduler.decay", "shape after warm-up",
          {{"constant", Decay::constant}, {"linear", Decay::linear}, {"cosine", Decay::cosine}, {"wsd", Decay::wsd}},
          {}, [](auto& c) -> auto& { return c.lr_scheduler.decay; }),
      only_where({falls}, number_key(
                              "lr_scheduler.min_lr_ratio", "lowest rate as a part of learning_rate", up_to_one,
                              [](auto& c) -> auto& { return c.lr_scheduler.min_lr_ratio; })),
      only_where({falls_at_the_end},
                 integer_key(
                     "lr_scheduler.decay_steps", "length of the final decay of wsd; 0: a tenth of the run", count_range,
                     [](auto& c) -> auto& { return c.lr_scheduler.decay_steps; })),
  };
}

Keys data_keys() {
  return {
      train_key(),
      fixed_key<std::string>("data.tokenizer", "a string", "how text becomes tokens", "byte",
                             "text is read with the tokenizer \"byte\""),
      boolean_key(
          "data.padded_vocab", "tokens of the model above those of the tokenizer are padding, absent from every text",
          [](auto& c) -> auto& { return c.data.padded_vocab; }),
  };
}

Keys profiling_keys() {
  const KeyCondition records{"first_step names a step", [](const Config& c) { return c.profiling.first_step > 0; }};
  return {
      integer_key(
          "profiling.first_step", "first step that is recorded, counted from 1; 0: none", count_range,
          [](auto& c) -> auto& { return c.profiling.first_step; }),
      integer_key(
          "profiling.last_step", "last step that is recorded; 0: first_step alone", count_range,
          [](auto& c) -> auto& { return c.profiling.last_step; }),
      only_where({records},
                 boolean_key(
                     "profiling.trace",
                     "write trace_rank<R>.json to run.directory; false: only tell nsys and ncu when to record",
                     [](auto& c) -> auto& { return c.profiling.trace; })),
  };
}

}  // namespace

std::vector<ConfigKey> config_schema() {
  Keys schema;
  const auto add = [&](Keys keys) {
    for (ConfigKey& key : keys) schema.push_back(std::move(key));
  };
  add(run_keys());
  add(model_keys());
  add(only_where({has_blocks(BlockKind::moe)}, moe_keys()));
  add(parallelism_keys());
  add(pipeline_keys());
  add(shard_keys(std::nullopt));
  for (const Family family : shard_families) add(shard_keys(family));
  add(precision_keys(std::nullopt));
  for (const Family family : shard_families) add(precision_keys(family));
  add(training_keys());
  add(optimizer_keys(std::nullopt));
  for (const UpdateGroup group : update_groups) add(optimizer_keys(group));
  add(scheduler_keys());
  add(data_keys());
  add(checkpoint_keys());
  add(profiling_keys());
  add(hardware_keys());
  return schema;
}

std::vector<EmptySection> empty_sections() {
  return {{"metrics", "metrics.jsonl is always written to run.directory"}};
}

}  // namespace weft
