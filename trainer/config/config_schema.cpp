#include "trainer/config/config_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "layers/kernels/gpu_kernel_options.h"
#include "layers/kernels/state_space.h"
#include "trainer/config/config_conditions.h"
#include "trainer/config/config_fields.h"

namespace weft {
namespace {

using namespace config_fields;

using Keys = std::vector<ConfigKey>;

ConfigKey required(ConfigKey key) {
  key.required = true;
  return key;
}

// In seconds, up to a day.
constexpr IntegerRange timeout_range{1, 86'400};
// The product with any pipeline degree fits into 32 bits.
constexpr IntegerRange chunks_range{1, 1024};

Keys run_keys() {
  const auto field = fields_of("run", &Config::run);
  const KeyCondition on_gpu{"device is \"cuda\"", [](const Config& c) { return c.run.device == DeviceKind::cuda; }};
  // Plans for a card read it too.
  const KeyCondition for_gpu{"device is \"cuda\" or hardware.name a card", [](const Config& c) {
                               const std::string& name = c.hardware.name;
                               return c.run.device == DeviceKind::cuda || (!name.empty() && name != "cpu");
                             }};
  return {
      string_key(field("name", &RunConfig::name), "shown in the banner", any_text),
      string_key(field("directory", &RunConfig::directory), "folder of the run's files",
                 not_empty("the text is empty")),
      integer_key(field("seed", &RunConfig::seed), "of initial values and data order",
                  {0, std::numeric_limits<std::int64_t>::max()}),
      integer_key(field("steps", &RunConfig::steps), "optimizer steps", size_range),
      choice_key(field("device", &RunConfig::device), "where ranks compute"),
      choice_key(field("launch", &RunConfig::launch),
                 "each rank is one of the threads of this process, or a process of its own"),
      integer_key(field("ranks_per_device", &RunConfig::ranks_per_device),
                  "ranks that share one GPU; more than one is for trials", degree_range),
      boolean_key(field("registered_buffers", &RunConfig::registered_buffers),
                  "gather parameters into memory that NCCL reaches in place; takes some more of it"),
      parsed_key(field("attention", &RunConfig::attention, {has_blocks(Mixer::attention)}),
                 "kernels of a GPU: \"auto\", \"own\", \"cudnn\" or \"cudnn:<engine>\"", parse_attention_choice),
      boolean_key(field("deterministic", &RunConfig::deterministic, {for_gpu}),
                  "a GPU repeats a run bit for bit; attention then takes more memory and time"),
      boolean_key(field("measured_products", &RunConfig::measured_products, {on_gpu}),
                  "a GPU times algorithms of the step's matrix products at the start, keeps the fastest and remembers "
                  "them; not where run.deterministic is asked for or ranks share a GPU"),
      boolean_key(
          field("captured_regions", &RunConfig::captured_regions),
          "a GPU takes each action of a segment as one CUDA graph, where experts and messages have no part in it"),
      integer_key(field("communication_timeout_seconds", &RunConfig::communication_timeout_seconds),
                  "a rank that waits longer than this for others ends the run", timeout_range),
      boolean_key(field("ignore_plan", &RunConfig::ignore_plan),
                  "start although the plan says that memory will not suffice"),
  };
}

Keys model_keys() {
  const auto field = fields_of("model", &Config::model);
  const KeyConditions for_attention = {has_blocks(Mixer::attention)};
  return {
      required(layers_key()),
      number_key(field("mtp_loss_coef", &ModelConfig::mtp_loss_coef,
                       {{"model.layers has m", [](const Config& c) { return c.model.mtp_depth > 0; }}}),
                 "of the mean loss of the predictors (m)", non_negative),
      required(integer_key(field("vocab_size", &ModelConfig::vocab_size), "tokens in the vocabulary", size_range)),
      required(integer_key(field("hidden_size", &ModelConfig::hidden_size), "width between blocks", size_range)),
      integer_key(field("intermediate_size", &ModelConfig::intermediate_size, {has_blocks(BlockKind::dense)}),
                  "width inside dense blocks (SwiGLU)", count_range),
      required(integer_key(field("num_attention_heads", &ModelConfig::num_attention_heads, for_attention),
                           "query heads", count_range)),
      required(integer_key(field("num_key_value_heads", &ModelConfig::num_key_value_heads, for_attention),
                           "key and value heads", count_range)),
      required(integer_key(field("head_dim", &ModelConfig::head_dim, for_attention), "width of a head", count_range)),
      integer_key(field("sliding_window", &ModelConfig::sliding_window, for_attention),
                  "positions that a token attends to, its own among them; 0: all up to its own", count_range),
      boolean_key(field("qk_norm", &ModelConfig::qk_norm, for_attention), "RMSNorm on each query and key head"),
      number_key(field("rope_theta", &ModelConfig::rope_theta, for_attention), "base of the rotary embedding",
                 positive),
      number_key(field("rms_norm_eps", &ModelConfig::rms_norm_eps), "added to the mean square in RMSNorm", positive),
      boolean_key(field("tie_word_embeddings", &ModelConfig::tie_word_embeddings), "one weight for embedding and head"),
      number_key(field("initializer_range", &ModelConfig::initializer_range), "standard deviation of initial weights",
                 non_negative),
  };
}

Keys state_space_keys() {
  const auto field = fields_of(
      "model.state_space", [](auto& config) -> auto& { return config.model.state_space; });
  return {
      required(integer_key(field("num_heads", &StateSpaceConfig::num_heads),
                           "heads, each with a step, a decay and a state", count_range)),
      integer_key(field("head_dim", &StateSpaceConfig::head_dim), "width of a head", size_range),
      integer_key(field("state_size", &StateSpaceConfig::state_size), "elements of the state for each column of a head",
                  size_range),
      integer_key(field("n_groups", &StateSpaceConfig::n_groups),
                  "groups of heads that share the ways into and out of the state", size_range),
      integer_key(field("conv_kernel", &StateSpaceConfig::conv_kernel),
                  "tokens that the convolution sees, its own among them", IntegerRange{1, most_filter_taps}),
  };
}

Keys parallelism_keys() {
  const auto field = fields_of("parallelism", &Config::parallelism);
  const KeyCondition spreads_experts{"expert is more than 1", [](const Config& c) { return c.parallelism.expert > 1; }};
  const KeyCondition is_hierarchical{"expert_dispatch is \"hierarchical\"", [](const Config& c) {
                                       return c.parallelism.expert_dispatch == ExpertDispatch::hierarchical;
                                     }};
  return {
      integer_key(field("pipeline", &Degrees::pipeline), "ranks that share the stages", degree_range),
      integer_key(field("tensor", &Degrees::tensor), "ranks that split heads, widths and sequence", degree_range),
      integer_key(field("context", &Degrees::context), "ranks that split each sequence", degree_range),
      integer_key(field("data_replicate", &Degrees::data_replicate), "replicas of the shards (hybrid sharding)",
                  degree_range),
      data_shard_key(),
      integer_key(field("expert", &Degrees::expert), "ranks that share the experts", degree_range),
      integer_key(field("expert_tensor", &Degrees::expert_tensor), "ranks that split an expert", degree_range),
      choice_key(field("expert_dispatch", &Degrees::expert_dispatch, {spreads_experts}),
                 "way of tokens to the ranks of their experts: rows of choices to those ranks, all tokens to all of "
                 "them, or a copy to each node and from there on as rows"),
      integer_key(field("expert_nodes", &Degrees::expert_nodes, {spreads_experts, is_hierarchical}),
                  "nodes that the ranks of \"expert\" stand on, as many on each", degree_range),
  };
}

Keys pipeline_keys() {
  const auto field = fields_of("pipeline", &Config::pipeline);
  return {
      schedule_key(),
      layout_key(),
      integer_key(field("chunks", &PipelineConfig::chunks), "stages a rank runs, each with a part of the model",
                  chunks_range),
      string_key(field("costs", &PipelineConfig::costs),
                 "costs of actions, to deal layouts and solve timing by: modelled, or the file of a table",
                 not_empty("write modelled, or the name of a file")),
      integer_key(field("microbatch_group", &PipelineConfig::microbatch_group),
                  "microbatches that go through a chunk before the next one, where the schedule takes groups; 0: equal "
                  "groups, as short as the ranks allow",
                  count_range),
      stage_blocks_key("first"),
      stage_blocks_key("last"),
  };
}

Keys training_keys() {
  const KeyCondition recomputes{"recompute is \"full\" or \"keep_dispatch\"",
                                [](const Config& c) { return recomputes_blocks(c.training.recompute); }};
  const auto field = fields_of("training", &Config::training);
  return {
      integer_key(field("sequence_length", &TrainingConfig::sequence_length), "tokens of a sequence", size_range),
      integer_key(field("global_batch_size", &TrainingConfig::global_batch_size), "sequences per step, whole job",
                  size_range),
      integer_key(field("microbatch_size", &TrainingConfig::microbatch_size), "sequences a rank takes at a time",
                  size_range),
      number_key(field("max_grad_norm", &TrainingConfig::max_grad_norm),
                 "gradients are scaled down to this norm; 0: never", positive_or_zero),
      frozen_key(),
      number_key(field("initial_loss_scale", &TrainingConfig::initial_loss_scale, {computes_in_float16()}),
                 "first factor of the loss where something is computed in float16", positive),
      integer_key(field("loss_scale_growth_steps", &TrainingConfig::loss_scale_growth_steps, {computes_in_float16()}),
                  "good steps until that factor doubles", size_range),
      choice_key(field("recompute", &TrainingConfig::recompute),
                 "activations that backward recomputes instead of keeping them: none; those without a matrix product; "
                 "those inside routed experts; whole blocks except the rows that experts exchange; whole blocks"),
      boolean_key(field("weights_at_experts", &TrainingConfig::weights_at_experts, {has_blocks(BlockKind::moe)}),
                  "the router's weights multiply inside experts, not their outputs, which then are neither kept nor "
                  "recomputed"),
      integer_key(field("recompute_every", &TrainingConfig::recompute_every, {recomputes}),
                  "every how many blocks one is recomputed, from the first", size_range),
      boolean_key(field("recompute_last_block", &TrainingConfig::recompute_last_block, {recomputes}),
                  "the model's last block too; on one stage its backward follows its forward at once"),
      number_key(field("offload", &TrainingConfig::offload),
                 "part of the activations that each stage keeps in fixed sizes which waits in host memory for the "
                 "backward, the longest kept first",
                 up_to_one),
  };
}

Keys scheduler_keys() {
  const auto field = fields_of("lr_scheduler", &Config::lr_scheduler);
  const KeyCondition falls{"decay is not \"constant\"",
                           [](const Config& c) { return c.lr_scheduler.decay != Decay::constant; }};
  const KeyCondition falls_at_the_end{"decay is \"wsd\"",
                                      [](const Config& c) { return c.lr_scheduler.decay == Decay::wsd; }};
  return {
      integer_key(field("warmup_steps", &SchedulerConfig::warmup_steps), "linear rise from 0", count_range),
      choice_key(field("decay", &SchedulerConfig::decay), "shape after warm-up"),
      number_key(field("min_lr_ratio", &SchedulerConfig::min_lr_ratio, {falls}),
                 "lowest rate as a part of learning_rate", up_to_one),
      integer_key(field("decay_steps", &SchedulerConfig::decay_steps, {falls_at_the_end}),
                  "length of the final decay of wsd; 0: a tenth of the run", count_range),
  };
}

Keys data_keys() {
  const auto field = fields_of("data", &Config::data);
  const KeyCondition has_tables{"order is \"megatron\" or documents is \"pack\"", [](const Config& c) {
                                  return c.data.order == DataOrder::megatron || c.data.documents == Documents::pack;
                                }};
  return {
      sources_key(),
      string_key(field("tokenizer", &DataConfig::tokenizer),
                 "how text becomes tokens: byte, a tokenizer.json, a rank file of tiktoken, a .model; none: ids alone",
                 not_empty("write byte, none, or the name of a tokenizer's file")),
      boolean_key(field("padded_vocab", &DataConfig::padded_vocab),
                  "tokens of the model above those of the tokenizer are padding, absent from every text"),
      choice_key(field("order", &DataConfig::order),
                 "order of samples: Weft's own, or that of Megatron's GPTDataset for the same seed"),
      choice_key(field("documents", &DataConfig::documents),
                 "documents of a sequence are joined, or masked: they neither see nor predict each other; or packed: "
                 "masked, and none is cut that fits into a sequence"),
      string_key(field("split", &DataConfig::split),
                 "parts of each file's documents for training, validation and test, as 969,30,1; empty: all train",
                 any_text),
      string_key(field("index_cache", &DataConfig::index_cache, {has_tables}),
                 "folder for the tables of the order, made once for all processes and runs; empty: each process makes "
                 "its own in memory",
                 any_text),
  };
}

Keys validation_keys() {
  const auto field = fields_of("validation", &Config::validation);
  const KeyCondition validates{"data names a file or split is true",
                               [](const Config& c) { return c.validation.takes_place(); }};
  return {
      texts_key(field("data", &ValidationConfig::data),
                "held-out files, of the kinds that data.train takes; none: no validation",
                not_empty("the name of a file is empty")),
      boolean_key(field("split", &ValidationConfig::split),
                  "the second part of data.split is held out, in place of files"),
      integer_key(field("interval", &ValidationConfig::interval, {validates}),
                  "steps between validations; 0: after the last step only", count_range),
      integer_key(field("batches", &ValidationConfig::batches, {validates}),
                  "global batches of windows to read, of each file its part; 0: all", count_range),
      boolean_key(field("keep_best", &ValidationConfig::keep_best, {validates}),
                  "save where the loss is the least so far, and keep that checkpoint"),
  };
}

Keys metrics_keys() {
  const auto field = fields_of("metrics", &Config::metrics);
  return {
      integer_key(field("interval", &MetricsConfig::interval),
                  "steps between two lines on the console, and between two records for TensorBoard; metrics.jsonl has "
                  "every step",
                  size_range),
      boolean_key(field("tensorboard", &MetricsConfig::tensorboard),
                  "write event files to tensorboard in run.directory"),
  };
}

Keys spikes_keys() {
  const auto field = fields_of("spikes", &Config::spikes);
  const KeyCondition by_mean{"loss_deviations, grad_norm_warning or grad_norm_spike is not 0", [](const Config& c) {
                               return c.spikes.loss_deviations > 0.0 || c.spikes.watches_mean_norm();
                             }};
  const KeyCondition watched{"loss_deviations, grad_norm or grad_norm_spike is not 0",
                             [](const Config& c) { return c.spikes.watched(); }};
  return {
      number_key(
          field("loss_deviations", &SpikesConfig::loss_deviations),
          "a loss above the mean of recent losses by more than so many standard deviations is a spike; 0: none is",
          non_negative),
      integer_key(field("window", &SpikesConfig::window, {by_mean}),
                  "span of the means of losses and norms in steps, at least 2; so many first ones are neither spike "
                  "nor warning",
                  {2, size_range.high}),
      number_key(field("grad_norm", &SpikesConfig::grad_norm),
                 "a larger norm of the gradient, before clipping, is a spike; 0: none is", non_negative),
      number_key(field("grad_norm_warning", &SpikesConfig::grad_norm_warning),
                 "a norm above so many times the mean of earlier ones is told; 0: none is", non_negative),
      number_key(field("grad_norm_spike", &SpikesConfig::grad_norm_spike),
                 "a norm above so many times that mean is a spike; 0: none is", non_negative),
      choice_key(field("action", &SpikesConfig::action, {watched}),
                 "at a spike: log it, skip the update of its step, or stop before it with a checkpoint"),
  };
}

Keys profiling_keys() {
  const auto field = fields_of("profiling", &Config::profiling);
  const KeyCondition records{"first_step names a step", [](const Config& c) { return c.profiling.first_step > 0; }};
  return {
      integer_key(field("first_step", &ProfilingConfig::first_step),
                  "first step that is recorded, counted from 1; 0: none", count_range),
      integer_key(field("last_step", &ProfilingConfig::last_step), "last step that is recorded; 0: first_step alone",
                  count_range),
      boolean_key(field("trace", &ProfilingConfig::trace, {records}),
                  "write trace_rank<R>.json to run.directory; false: only tell nsys and ncu when to record"),
  };
}

// A line of write_config().
struct WrittenKey {
  std::string path, value;
  bool follows = false;  // a comment
};

std::vector<WrittenKey> written_keys(const std::string& text) {
  std::vector<WrittenKey> keys;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('[')) section = line.substr(1, line.size() - 2);
    const bool follows = line.starts_with("# ");
    if (follows) line.erase(0, 2);
    const std::size_t sign = line.find(" = ");
    if (sign != std::string::npos)
      keys.push_back({section + "." + line.substr(0, sign), line.substr(sign + 3), follows});
  }
  return keys;
}

}  // namespace

std::vector<ConfigKey> config_schema() {
  Keys schema;
  const auto add = [&](Keys keys) {
    for (ConfigKey& key : keys) schema.push_back(std::move(key));
  };
  add(run_keys());
  add(model_keys());
  add(only_where({has_blocks(Mixer::state_space)}, state_space_keys()));
  add(only_where({has_blocks(BlockKind::moe)}, moe_keys()));
  add(only_where({has_blocks(BlockKind::moe)}, balance_keys()));
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
  add(validation_keys());
  add(checkpoint_keys());
  add(metrics_keys());
  add(spikes_keys());
  add(profiling_keys());
  add(hardware_keys());
  return schema;
}

std::vector<std::string> changed_values(const std::string& before, const std::string& now) {
  const std::vector<WrittenKey> earlier = written_keys(before);
  std::vector<std::string> changed;
  for (const WrittenKey& key : written_keys(now)) {
    const auto found = std::ranges::find(earlier, key.path, &WrittenKey::path);
    if (found == earlier.end() || found->value == key.value || (found->follows && key.follows)) continue;
    changed.push_back(fmt::format("{} {} -> {}", key.path, found->value, key.value));
  }
  return changed;
}

std::string write_config(const Config& config, const std::vector<ConfigKey>& schema,
                         const std::function<std::string(const ConfigKey&)>& comment,
                         const std::function<bool(const ConfigKey&)>& follows) {
  constexpr std::size_t comment_column = 40;
  std::string text, section;
  for (const ConfigKey& key : schema) {
    if (key.section != section) {
      text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", key.section);
      section = key.section;
    }
    const std::string line = fmt::format("{}{} = {}", follows(key) ? "# " : "", key.name, key.write(config));
    const std::string behind = comment(key);
    text += behind.empty() ? line : fmt::format("{:<{}} # {}", line, comment_column, behind);
    text += '\n';
  }
  return text;
}

}  // namespace weft
