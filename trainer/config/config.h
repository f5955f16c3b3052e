// A run as its TOML file describes it, resolved and typed. Plain values; reading and checking are in config_reader.h.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "layers/kernels/gpu_kernel_options.h"
#include "layers/model_config.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/dtype.h"
#include "parallel/runtime/enum_names.h"
#include "parallel/shard/wrap.h"
#include "trainer/config/update_rules.h"

namespace weft {

enum class DeviceKind : std::uint8_t { cpu, cuda };
constexpr auto enum_names(DeviceKind) {
  return name_list("cpu", "cuda");
}
// Whether each rank is a thread of one process or a process of its own.
enum class LaunchKind : std::uint8_t { threads, processes };
constexpr auto enum_names(LaunchKind) {
  return name_list("threads", "processes");
}

struct RunConfig {
  std::string name = "run";
  std::string directory = "runs/run";
  std::uint64_t seed = 1234;
  std::int64_t steps = 100;
  DeviceKind device = DeviceKind::cpu;
  LaunchKind launch = LaunchKind::threads;
  int ranks_per_device = 1;         // on one GPU, for trials
  bool registered_buffers = false;  // gather parameters into memory registered with NCCL
  AttentionChoice attention = {};   // kernels of attention on a GPU
  bool deterministic = false;       // a GPU repeats a run bit for bit, even if that is slower
  bool measured_products = true;    // a GPU times algorithms of matrix products at the start (gpu_kernel_options.h)
  bool captured_regions = false;    // a GPU takes actions of segments as CUDA graphs (gpu_kernel_options.h)
  int communication_timeout_seconds = 300;
  bool ignore_plan = false;  // start although the plan predicts that memory will not suffice

  bool operator==(const RunConfig&) const = default;
};

struct PipelineConfig {
  std::string schedule = "1f1b";            // a name of orders.h, a .csv file (order_csv.h), or "own": lines of one
  std::optional<UserOrder> own_order = {};  // the order in that file
  std::string order_lines = {};             // and its text
  std::string costs = "modelled";           // or the file of a cost table (cost_table.h)
  bool has_cost_table() const { return costs != "modelled"; }
  // The contents of the stages as written (stage_layout.h). They are "auto" or a layout in one text, one text a stage,
  // or a block count for each stage.
  std::variant<std::string, std::vector<std::string>, std::vector<std::int64_t>> layout = std::string("auto");
  int chunks = 1;            // stages a rank runs
  int microbatch_group = 0;  // for schedules with groups of microbatches; 0: equal groups (order_1f1b.cpp)
  // For layout "auto": block counts of the first and the last stage. All other stages get equally many blocks.
  std::optional<std::int64_t> first_stage_blocks = {}, last_stage_blocks = {};

  bool operator==(const PipelineConfig&) const = default;
};

// A preset for the three inputs of a policy (unit_policy.h). full_shard (ZeRO-3) shards parameters, gradients and
// optimizer state. With shard_grad_op (ZeRO-2) parameters are gathered once a step. With `optimizer` (ZeRO-1) gradients
// also stay whole until the last microbatch. With no_shard nothing is sharded.
enum class ShardStrategy : std::uint8_t { full_shard, shard_grad_op, optimizer, no_shard };
constexpr auto enum_names(ShardStrategy) {
  return name_list("full_shard", "shard_grad_op", "optimizer", "no_shard");
}

// A residency as written. Without a kind (text "stage") the strategy decides; for full_shard, chosen_timing.h may.
// `amount`: ranks of an island, or stages of a window.
struct ResidencyChoice {
  std::optional<Residency> kind = {};
  int amount = 0;
  bool operator==(const ResidencyChoice&) const = default;
};
// "stage", the name of a Residency, "window K", or the ranks of an island. Throws Error (request) listing the choices.
ResidencyChoice parse_residency(const std::string& text);
std::string to_string(const ResidencyChoice& choice);

// When gradients are reduced, as written; ShardPolicy::reduce_every() has the number.
enum class ReductionKind : std::uint8_t { by_strategy, each_microbatch, last_microbatch, every };
constexpr auto enum_names(ReductionKind) {
  return name_list("auto", "each_microbatch", "last_microbatch", "every");
}
struct ReductionChoice {
  ReductionKind kind = ReductionKind::by_strategy;
  int period = 0;  // of `every`, in microbatches; 0 for the others
  bool operator==(const ReductionChoice&) const = default;
};
// The name of a kind, or "every N". Throws Error (request) listing the choices.
ReductionChoice parse_reduction(const std::string& text);
std::string to_string(const ReductionChoice& choice);

// How gradients are kept between reductions, as written. by_strategy: in shards where full_shard promises it
// (unit_policy.h), otherwise whole.
enum class Accumulation : std::uint8_t { by_strategy, unsharded, sharded };
constexpr auto enum_names(Accumulation) {
  return name_list("auto", "unsharded", "sharded");
}

// Values as written, each parsed where its key is read.
struct ShardPolicy {
  ShardStrategy strategy = ShardStrategy::full_shard;
  ResidencyChoice residency = {};
  int lookahead = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool prefetch_within_stage = false;
  ReductionChoice reduction = {};
  Accumulation accumulation = Accumulation::by_strategy;
  WrapPolicy wrap = {};
  std::vector<ResidencyChoice> residency_by_stage = {};  // one for each stage, instead of `residency`; may be empty
  std::string why = {};  // reason of a residency that Weft chose (chosen_timing.h), not the file

  const ResidencyChoice& residency_of(int stage) const {
    return residency_by_stage.empty() ? residency : residency_by_stage.at(static_cast<std::size_t>(stage));
  }
  // The period of `reduction` in microbatches; 0: after the last microbatch only.
  int reduce_every() const;
  bool operator==(const ShardPolicy&) const = default;
};

// The type that a family computes in: the dtype of its tensors. In float8 and float8_blocks that is bfloat16, and
// matrix products round their factors to 8 bits (layers/kernels/float8.h).
struct ComputeType {
  DType dtype = DType::float32;
  ProductFormat products = ProductFormat::as_stored;

  constexpr ComputeType() = default;
  constexpr ComputeType(DType tensors) : dtype(tensors) {}  // NOLINT(google-explicit-constructor)
  constexpr ComputeType(ProductFormat format)               // NOLINT(google-explicit-constructor)
      : dtype(DType::bfloat16), products(format) {}
  constexpr operator DType() const { return dtype; }  // NOLINT(google-explicit-constructor)
  bool operator==(const ComputeType&) const = default;
  bool operator==(DType tensors) const { return dtype == tensors; }
};
std::string_view name_of(const ComputeType& type);
// Whether products of this family can be in float8: dense and experts, whose weights lie between hidden states.
constexpr bool offers_float8(Family family) {
  return family == Family::dense || family == Family::experts;
}

struct PrecisionConfig {
  DType parameters = DType::float32;
  ComputeType compute;
  DType reduction = DType::float32;

  bool operator==(const PrecisionConfig&) const = default;
};

// Activations that a forward does not keep and its backward recomputes. `selective`: those that need no matrix product
// (norms, rotary, SwiGLU). `experts`: those inside routed experts. `full`: all except the input of each block and
// Segment::remembered(). `keep_dispatch`: as full, but the rows that routed experts got and gave are kept, so that
// nothing is exchanged again.
enum class Recompute : std::uint8_t { none, selective, experts, keep_dispatch, full };
constexpr auto enum_names(Recompute) {
  return name_list("none", "selective", "experts", "keep_dispatch", "full");
}
// Whether a block's forward runs again.
constexpr bool recomputes_blocks(Recompute recompute) {
  return recompute == Recompute::keep_dispatch || recompute == Recompute::full;
}

struct TrainingConfig {
  std::int64_t sequence_length = 128;
  std::int64_t global_batch_size = 8;
  std::int64_t microbatch_size = 1;
  double max_grad_norm = 1.0;    // 0: no clipping
  std::set<Family> frozen = {};  // families that are not trained; nor are helpers, which nobody names here
  bool trains(Family family) const { return family != Family::helpers && !frozen.contains(family); }
  Recompute recompute = Recompute::none;
  // Where whole blocks are recomputed: every how many, from the first, and whether the model's last one is.
  std::int64_t recompute_every = 1;
  bool recompute_last_block = true;
  double offload = 0.0;             // fraction of the kept activations of fixed sizes that wait in host memory
  bool weights_at_experts = false;  // SegmentSetup::weights_at_experts
  bool spares_blocks() const { return recompute_every > 1 || !recompute_last_block; }
  // For the dynamic loss scale, used if anything is computed or reduced in float16. The first value is a power of two;
  // the scale doubles after the number of good steps.
  double initial_loss_scale = 65536.0;
  std::int64_t loss_scale_growth_steps = 2000;

  bool operator==(const TrainingConfig&) const = default;
};

// Settings of the parameter update; update_rules.h has the formulas of the rules.
struct OptimizerConfig {
  UpdateRule rule = UpdateRule::adamw;
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.9;
  DType state = DType::float32;  // float32 or bfloat16
  // For muon: the factor of the orthogonal matrix (optimizer/muon.h), and the dtype of the Newton-Schulz iteration.
  MuonScale muon_scale = MuonScale::match_adamw;
  DType newton_schulz = DType::float32;

  bool operator==(const OptimizerConfig&) const = default;
};

// Groups of parameters that may have their own optimizer settings. They are the matrices of each family, and the
// vectors (norm weights: parameters of one column) of all families. The groups of matrices are numbered as the
// families.
enum class UpdateGroup : std::uint8_t { dense, experts, embedding, head, root, routing, vectors };
constexpr auto enum_names(UpdateGroup) {
  return name_list("dense", "experts", "embedding", "head", "root", "routing", "vectors");
}
inline constexpr auto update_groups = all_values<UpdateGroup>;
static_assert(static_cast<int>(UpdateGroup::routing) == static_cast<int>(Family::routing));

enum class Decay : std::uint8_t { constant, linear, cosine, wsd };
constexpr auto enum_names(Decay) {
  return name_list("constant", "linear", "cosine", "wsd");
}

struct SchedulerConfig {
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::constant;
  double min_lr_ratio = 0.1;
  std::int64_t decay_steps = 0;  // wsd: steps of the final decay; 0: a tenth of the run

  bool operator==(const SchedulerConfig&) const = default;
};

// The order in which samples are read: Weft's own or that of Megatron's GPTDataset (sample_order.h).
enum class DataOrder : std::uint8_t { weft, megatron };
constexpr auto enum_names(DataOrder) {
  return name_list("weft", "megatron");
}
// Whether the documents of a sequence see each other. If not (mask, pack), a document's last token predicts nothing.
// With `pack` sequences are of whole documents (packed_documents.cpp).
enum class Documents : std::uint8_t { join, mask, pack };
constexpr auto enum_names(Documents) {
  return name_list("join", "mask", "pack");
}
// Numbers of a text for each token: its id, its target, and a number to draw noise from. Where documents are masked it
// has the place at which its document begins. Each predictor adds an id and a target.
struct TextParts {
  bool document_begins = false;
  int predictors = 0;
  std::optional<std::uint64_t> noise_seed = {};  // of the noise, if there is any

  std::int64_t count() const { return 2 + (document_begins ? 1 : 0) + 2 * predictors + (noise_seed ? 1 : 0); }
  // A text of these parts, which `next` gives in the order of the fields.
  template <typename Text, typename Next>
  Text filled(const Next& next) const {
    Text text{.tokens = next(), .targets = next()};
    if (document_begins) text.document_begins = next();
    for (int k = 0; k < predictors; ++k) text.following.push_back({.tokens = next(), .targets = next()});
    if (noise_seed) text.noise_keys = next();
    return text;
  }
};

// A file to train on. As soon as one has a weight, files are drawn by weight, and one without has 1.
struct DataSource {
  DataSource() = default;
  // Implicit: most files have no weight.
  DataSource(std::string file, std::optional<double> part = {}) : path(std::move(file)), weight(part) {}

  std::string path;
  std::optional<double> weight = {};  // at least 0 and finite

  bool operator==(const DataSource&) const = default;
};

struct DataConfig {
  std::vector<DataSource> train;  // may be empty if nothing is trained
  std::string tokenizer = "byte";
  bool padded_vocab = false;  // the model may have more tokens than the tokenizer (text_vocabulary.h)
  DataOrder order = DataOrder::weft;
  Documents documents = Documents::join;
  // Parts for training, validation and test, as "969,30,1" (split_sequences); empty: all trains.
  std::string split = {};
  std::string index_cache = {};  // folder of the tables of orders (order_cache.h); empty: in memory

  bool operator==(const DataConfig&) const = default;
};

// Held-out text whose loss is measured between the steps of a run.
struct ValidationConfig {
  std::vector<std::string> data = {};  // files; none: no validation, unless `split`
  bool split = false;                  // the validation part of data.split in place of files
  std::int64_t interval = 100;         // steps; 0: after the last step only
  std::int64_t batches = 0;            // global batches of windows, from the beginning of the files; 0: all
  bool keep_best = false;              // keep the checkpoint with the least loss

  bool takes_place() const { return split || !data.empty(); }

  bool operator==(const ValidationConfig&) const = default;
};

// When checkpoints are saved and which one a run starts from; config_checkpoint_keys.cpp explains the keys.
struct CheckpointConfig {
  std::string directory = {};  // empty: in run.directory
  std::int64_t interval = 0;   // steps; 0: none before the last step, unless a signal asks for one
  bool at_first_step = false, at_end = true;
  std::int64_t keep_latest = 3, keep_every = 0;  // keep_latest 0: all; keep_every 0: none
  bool asynchronous = true;
  std::int64_t host_memory = std::int64_t{16} << 30;  // bytes; limit of a rank's host copies before they are written
  bool resume = true;
  bool allow_new_data = false;
  std::string start_from = {};
  bool weights_only = true;  // load only the weights of start_from
  std::vector<std::string> rename = {}, allow_missing = {}, allow_unused = {};

  bool operator==(const CheckpointConfig&) const = default;
};

// How often a run tells of its steps; metrics.jsonl has every step.
struct MetricsConfig {
  std::int64_t interval = 1;  // steps between lines of the console and records of event files
  bool tensorboard = true;    // write event files

  bool operator==(const MetricsConfig&) const = default;
};

// The action of a run at a step with a spike, a loss or gradient norm far above the usual (trainer/rank/spikes.h).
// log says so, skip leaves the parameters as they are and goes on, stop does the same and ends.
enum class SpikeAction : std::uint8_t { log, skip, stop };
constexpr auto enum_names(SpikeAction) {
  return name_list("log", "skip", "stop");
}

struct SpikesConfig {
  double loss_deviations = 0.0;  // standard deviations above the mean of recent losses; 0: any loss is usual
  std::int64_t window = 128;     // steps; the span of that mean, and of the mean of norms
  double grad_norm = 0.0;        // largest usual norm, before clipping; 0: any norm is usual
  // Times the mean of earlier norms: above the first a norm is told, above the second it is a spike; 0: never.
  double grad_norm_warning = 10.0, grad_norm_spike = 100.0;
  SpikeAction action = SpikeAction::log;

  bool watches_mean_norm() const { return grad_norm_warning > 0.0 || grad_norm_spike > 0.0; }
  bool watched() const { return loss_deviations > 0.0 || grad_norm > 0.0 || grad_norm_spike > 0.0; }
  bool operator==(const SpikesConfig&) const = default;
};

// The recorded steps.
struct ProfilingConfig {
  std::int64_t first_step = 0;  // counted from 1; 0: none
  std::int64_t last_step = 0;   // 0: first_step alone
  bool trace = true;

  std::int64_t last() const { return last_step == 0 ? first_step : last_step; }
  bool includes(std::int64_t step) const { return first_step > 0 && first_step <= step && step <= last(); }
  bool operator==(const ProfilingConfig&) const = default;
};

// The hardware that a step is planned and simulated for (trainer/costs/hardware.h). It is a row of the hardware table
// by name, by default that of run.device, and figures that replace those of the row.
struct HardwareConfig {
  std::string name = {};
  std::optional<int> ranks_per_node = {};
  std::optional<std::int64_t> memory = {};           // bytes of a card
  std::optional<double> node_bytes_per_second = {};  // out of a node, all its adapters together
  std::optional<double> link_bytes_per_second = {};  // of one rank inside a node
  std::optional<double> host_bytes_per_second = {};  // between a card and its host's memory, in each direction
  std::optional<std::int64_t> host_memory = {};      // bytes of a host for each of its cards
  std::optional<double> flops_per_second = {};       // peak of a card, in the dtype of dense parts
  std::optional<double> reached = {};                // fraction of the peak that the products of a step reach
  // Load of the busiest rank's experts over the mean, for modelled times: their products and the rows that they get.
  double expert_load = 1.0;

  bool operator==(const HardwareConfig&) const = default;
};

// The values given here are the defaults of a run file; there is no other list of them. Values solved from a Config are
// in ResolvedRun (trainer/resolve/resolved_run.h).
struct Config {
  RunConfig run;
  ModelConfig model;
  std::string layers_text;  // model.layers as written
  Degrees parallelism;
  PipelineConfig pipeline;
  ShardPolicy shard;                                      // the default
  std::map<Family, ShardPolicy> shard_by_family;          // every family of units, resolved
  std::optional<std::int64_t> memory_budget = {};         // for residency "auto": bytes of a rank in total
  std::vector<std::string> replicate = {};                // globs of parameters that every rank of a stage has whole
  std::int64_t replicate_below = 0;                       // vectors of fewer elements likewise
  int reduce_inputs = 1;                                  // reductions in flight beside the accumulator being filled
  PrecisionConfig precision;                              // the default
  std::map<Family, PrecisionConfig> precision_by_family;  // families with one of their own
  TrainingConfig training;
  OptimizerConfig optimizer;                                  // the default
  double state_offload = 0.0;                                 // fraction of adamw's states in host memory
  std::map<UpdateGroup, OptimizerConfig> optimizer_by_group;  // every group, resolved (update_groups.h)
  SchedulerConfig lr_scheduler;
  DataConfig data;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  MetricsConfig metrics;
  SpikesConfig spikes;
  ProfilingConfig profiling;
  HardwareConfig hardware;

  // Directory of this run's checkpoints.
  std::string checkpoint_directory() const {
    return checkpoint.directory.empty() ? run.directory + "/checkpoints" : checkpoint.directory;
  }

  std::int64_t microbatches() const {
    return training.global_batch_size / (training.microbatch_size * parallelism.data());
  }
  // Stages of the whole pipeline.
  int stages() const {
    if (pipeline.own_order) return static_cast<int>(pipeline.own_order->stage_ranks.size());
    return parallelism.pipeline * pipeline.chunks;
  }
  // The default's, for a family without one of its own.
  PrecisionConfig inherited_precision(Family family) const {
    PrecisionConfig inherited = precision;
    if (!offers_float8(family)) inherited.compute = inherited.compute.dtype;
    return inherited;
  }
  const PrecisionConfig& precision_of(Family family) const {
    const auto own = precision_by_family.find(family);
    return own == precision_by_family.end() ? precision : own->second;
  }
  // Of a training step, and of forwards that measure a loss, without predictors.
  TextParts text_parts() const {
    TextParts parts{data.documents != Documents::join, model.mtp_depth};
    if (model.has(BlockKind::moe) && model.moe.router_jitter_noise > 0.0) parts.noise_seed = run.seed;
    return parts;
  }
  TextParts held_out_parts() const { return {data.documents != Documents::join}; }
  // Rows that experts compute for each that a router chose: on the rank with the most, or with padding on all.
  double expert_rows_per_choice() const;
  std::int64_t microbatch_tokens() const { return training.microbatch_size * training.sequence_length; }
  // Of the text that a rank reads for a step.
  std::int64_t rank_tokens() const { return microbatches() * microbatch_tokens() / parallelism.context; }
  // Whether the forward of this block runs again in its backward.
  bool recomputes(int block) const {
    return recomputes_blocks(training.recompute) && block % training.recompute_every == 0 &&
           (training.recompute_last_block || block + 1 < static_cast<int>(model.blocks.size()));
  }
  bool operator==(const Config&) const = default;
};

// Whether experts are dealt in turn, whatever their scores (model.moe.force_balance): times of such a step tell
// something, weights and losses nothing. Everything that a run leaves or prints says so.
inline bool forces_balance(const ModelConfig& model) {
  return model.has(BlockKind::moe) && model.moe.force_balance;
}

inline constexpr std::string_view forced_balance_text =
    "model.moe.force_balance is true: experts are dealt in turn. Speed can be measured so; what is learned is of no "
    "use";

// Whether a family that is in use is computed or reduced in float16.
bool uses_float16(const Config& config);
// How the products of a family read their factors; as_stored if the family is not in use.
ProductFormat product_format(const Config& config, Family family);
// Whether the products of a family that is in use are in this format.
bool uses_format(const Config& config, ProductFormat format);

}  // namespace weft
