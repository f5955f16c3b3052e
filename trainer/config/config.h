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

#include "layers/model_config.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/passes/order_csv.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/dtype.h"
#include "trainer/config/update_rules.h"

namespace weft {

enum class DeviceKind : std::uint8_t { cpu, cuda };
// What a rank is: a thread of one process, or a process.
enum class LaunchKind : std::uint8_t { threads, processes };

struct RunConfig {
  std::string name = "run";
  std::string directory = "runs/run";
  std::uint64_t seed = 1234;
  std::int64_t steps = 100;
  DeviceKind device = DeviceKind::cpu;
  LaunchKind launch = LaunchKind::threads;
  int ranks_per_device = 1;         // on one GPU, for trials
  bool registered_buffers = false;  // gathered parameters lie where NCCL reaches them in place
  std::string attention = "auto";   // which kernels compute it on a GPU (gpu_kernel_options.h)
  bool deterministic = false;       // a GPU takes what repeats bit for bit, also where that is slower
  bool measured_products = true;    // a GPU times algorithms of products at the start (gpu_kernel_options.h)
  int communication_timeout_seconds = 300;
  bool ignore_plan = false;  // starts although the plan says that it will not fit

  bool operator==(const RunConfig&) const = default;
};

struct PipelineConfig {
  std::string schedule = "1f1b";            // a name of orders.h, or a file of its own form
  std::optional<UserOrder> own_order = {};  // what the file says
  std::string costs = "modelled";           // or the file of a cost table (cost_table.h)
  bool has_cost_table() const { return costs != "modelled"; }
  // What each stage holds, as written: "auto" or a layout in one text, one text a stage, or the blocks of each stage
  // (stage_layout.h).
  std::variant<std::string, std::vector<std::string>, std::vector<std::int64_t>> layout = std::string("auto");
  int chunks = 1;            // stages a rank runs
  int microbatch_group = 0;  // of schedules that take one; 0: equal groups (order_groups.h)
  // Of layout "auto": blocks of the first and the last stage, the others getting equally many.
  std::optional<std::int64_t> first_stage_blocks = {}, last_stage_blocks = {};

  bool operator==(const PipelineConfig&) const = default;
};

// What is sharded over the shard group, as a choice for the three inputs of a policy (unit_policy.h): with full_shard
// (ZeRO-3) parameters, gradients and optimizer state, with shard_grad_op (ZeRO-2) parameters are gathered once a step,
// with `optimizer` (ZeRO-1) gradients too stay whole until the last microbatch, with no_shard nothing is.
enum class ShardStrategy : std::uint8_t { full_shard, shard_grad_op, optimizer, no_shard };
std::string_view name_of(ShardStrategy strategy);

// A residency as written: nothing lets Weft choose by stage and schedule. `amount` is the ranks of an island or the
// stages of a window.
struct ResidencyChoice {
  std::optional<Residency> residency;
  int amount = 0;
  bool operator==(const ResidencyChoice&) const = default;
};
// "stage", the name of a Residency, "window K", or the ranks of an island. Throws Error (request) listing the choices.
ResidencyChoice parse_residency(const std::string& text);

// Values as written.
struct ShardPolicy {
  ShardStrategy strategy = ShardStrategy::full_shard;
  std::string residency = "stage";
  int lookahead = 1;
  std::string reduction = "auto";
  bool accumulate_sharded = false;
  std::string wrap = "block";
  std::vector<std::string> residency_by_stage = {};  // in place of `residency` where one was written for each stage
  std::string why = {};  // of a residency that Weft has chosen (chosen_timing.h), not the file

  const std::string& residency_of(int stage) const {
    return residency_by_stage.empty() ? residency : residency_by_stage.at(static_cast<std::size_t>(stage));
  }
  // reduction as a period: 0 for the last microbatch only.
  int reduce_every() const;
  bool operator==(const ShardPolicy&) const = default;
};

struct PrecisionConfig {
  DType parameters = DType::float32;
  DType compute = DType::float32;
  DType reduction = DType::float32;

  bool operator==(const PrecisionConfig&) const = default;
};

// What a forward does not keep for its backward, which makes it again. `selective`: what costs no matrix product
// (norms, rotary, SwiGLU). `full`: all but the input of each block.
enum class Recompute : std::uint8_t { none, selective, full };
std::string_view name_of(Recompute recompute);

struct TrainingConfig {
  std::int64_t sequence_length = 128;
  std::int64_t global_batch_size = 8;
  std::int64_t microbatch_size = 1;
  double max_grad_norm = 1.0;    // 0: no clipping
  std::set<Family> frozen = {};  // families that are not trained
  Recompute recompute = Recompute::none;
  // Of the dynamic scale of the loss, where something is computed in float16: its first value, a power of two, and the
  // good steps after which it doubles.
  double initial_loss_scale = 65536.0;
  std::int64_t loss_scale_growth_steps = 2000;

  bool operator==(const TrainingConfig&) const = default;
};

// How parameters are stepped; the rules' words are explained in update_rules.h.
struct OptimizerConfig {
  UpdateRule rule = UpdateRule::adamw;
  double learning_rate = 1e-3;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double momentum = 0.9;
  DType state = DType::float32;  // float32 or bfloat16
  // Of muon: what the orthogonal matrix is multiplied by (optimizer/muon.h), and what the iteration computes in.
  MuonScale muon_scale = MuonScale::match_adamw;
  DType newton_schulz = DType::float32;

  bool operator==(const OptimizerConfig&) const = default;
};

// Parameters that may be stepped in ways of their own: the matrices of a family, and the vectors (norm weights:
// parameters of one column) of all families.
enum class UpdateGroup : std::uint8_t { dense, experts, embedding, head, root, routing, vectors };
inline constexpr std::array update_groups = {UpdateGroup::dense,  UpdateGroup::experts, UpdateGroup::embedding,
                                             UpdateGroup::head,   UpdateGroup::root,    UpdateGroup::routing,
                                             UpdateGroup::vectors};
constexpr std::string_view name_of(UpdateGroup group) {
  constexpr std::string_view names[] = {"dense", "experts", "embedding", "head", "root", "routing", "vectors"};
  return names[static_cast<std::size_t>(group)];
}

enum class Decay : std::uint8_t { constant, linear, cosine, wsd };

struct SchedulerConfig {
  std::int64_t warmup_steps = 0;
  Decay decay = Decay::constant;
  double min_lr_ratio = 0.1;
  std::int64_t decay_steps = 0;  // wsd: the length of the final decay; 0 means a tenth of the run

  bool operator==(const SchedulerConfig&) const = default;
};

struct DataConfig {
  std::vector<std::string> train;  // may be empty where nothing is trained
  std::string tokenizer = "byte";
  bool padded_vocab = false;  // the model may have more tokens than the tokenizer (text_file.h)

  bool operator==(const DataConfig&) const = default;
};

// When a run is saved and what it goes on with; the words are explained in config_checkpoint_keys.cpp.
struct CheckpointConfig {
  std::string directory = {};  // empty: in run.directory
  std::int64_t interval = 0;   // steps; 0: never, but when a signal asks for it
  bool at_first_step = false, at_end = true;
  std::int64_t keep_latest = 3, keep_every = 0;  // 0: all of them, none
  bool asynchronous = true;
  std::int64_t host_memory = std::int64_t{16} << 30;  // bytes that a rank copies to at most before they are written
  bool resume = true;
  bool allow_new_data = false;
  std::string start_from = {};
  bool weights_only = true;  // of start_from
  std::vector<std::string> rename = {}, allow_missing = {}, allow_unused = {};

  bool operator==(const CheckpointConfig&) const = default;
};

// Which steps are recorded.
struct ProfilingConfig {
  std::int64_t first_step = 0;  // counted from 1; 0: none
  std::int64_t last_step = 0;   // 0: first_step alone
  bool trace = true;

  std::int64_t last() const { return last_step == 0 ? first_step : last_step; }
  bool includes(std::int64_t step) const { return first_step > 0 && first_step <= step && step <= last(); }
  bool operator==(const ProfilingConfig&) const = default;
};

// What a step is planned and simulated for (trainer/costs/hardware.h): a name of its table, the one like run.device
// where there is none, and figures that replace those of the table.
struct HardwareConfig {
  std::string name = {};
  std::optional<int> ranks_per_node = {};
  std::optional<std::int64_t> memory = {};           // bytes of a card
  std::optional<double> node_bytes_per_second = {};  // out of a node, all its adapters together
  std::optional<double> link_bytes_per_second = {};  // of one rank inside a node
  std::optional<double> flops_per_second = {};       // peak of a card, in the dtype of dense parts
  std::optional<double> reached = {};                // of the peak, by the products of a step

  bool operator==(const HardwareConfig&) const = default;
};

// The values given here are the defaults of a run file; there is no other list of them. What is solved from them is in
// ResolvedRun (trainer/resolve/resolved_run.h).
struct Config {
  RunConfig run;
  ModelConfig model;
  std::string layers_text;  // model.layers as written
  Degrees parallelism;
  PipelineConfig pipeline;
  ShardPolicy shard;                                      // the default
  std::map<Family, ShardPolicy> shard_by_family;          // every family of units, resolved
  std::optional<std::int64_t> memory_budget = {};         // of residency "auto": bytes of a rank, all in all
  int reduce_inputs = 1;                                  // in flight beside the accumulator that is being filled
  PrecisionConfig precision;                              // the default
  std::map<Family, PrecisionConfig> precision_by_family;  // families with one of their own
  TrainingConfig training;
  OptimizerConfig optimizer;                                  // the default
  std::map<UpdateGroup, OptimizerConfig> optimizer_by_group;  // every group, resolved (update_groups.h)
  SchedulerConfig lr_scheduler;
  DataConfig data;
  CheckpointConfig checkpoint;
  ProfilingConfig profiling;
  HardwareConfig hardware;

  // Where this run's checkpoints stand.
  std::string checkpoint_directory() const {
    return checkpoint.directory.empty() ? run.directory + "/checkpoints" : checkpoint.directory;
  }

  std::int64_t microbatches() const {
    return training.global_batch_size / (training.microbatch_size * parallelism.data());
  }
  // Of the whole pipeline.
  int stages() const {
    if (pipeline.own_order) return static_cast<int>(pipeline.own_order->stage_ranks.size());
    return parallelism.pipeline * pipeline.chunks;
  }
  const PrecisionConfig& precision_of(Family family) const {
    const auto own = precision_by_family.find(family);
    return own == precision_by_family.end() ? precision : own->second;
  }
  std::int64_t microbatch_tokens() const { return training.microbatch_size * training.sequence_length; }
  bool operator==(const Config&) const = default;
};

// Whether a family that is in use is computed or reduced in float16.
bool uses_float16(const Config& config);

}  // namespace weft
