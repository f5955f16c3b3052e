#include "tests/trainer/tiny_run.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "parallel/runtime/random.h"
#include "parallel/runtime/staging.h"

namespace weft {
namespace {

// Text of few words, so that there is something to learn. Each process has one file, gone when it ends, so that
// parallel tests do not meet.
class TextFile {
 public:
  TextFile() : path_(std::filesystem::temp_directory_path() / fmt::format("weft-tiny-{}.txt", getpid())) {
    const char* words[] = {"warp ", "weft ", "loom ", "thread ", "shuttle ", "cloth\n"};
    const RandomStream random(7, "tiny text");
    std::string text;
    for (std::uint64_t i = 0; i < 2000; ++i) text += words[random.bits(i) % 6];
    std::ofstream(path_) << text;
  }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  ~TextFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string text_file() {
  static const TextFile file;
  return file.path();
}

// What is stored in bfloat16 is widened.
std::vector<float> read_values(Stream& stream, ConstTensorView values) {
  if (values.dtype() == DType::float32) return read<float>(stream, values);
  const std::vector<bfloat16> narrow = read<bfloat16>(stream, values);
  std::vector<float> wide;
  wide.reserve(narrow.size());
  for (const bfloat16 value : narrow) wide.push_back(static_cast<float>(value));
  return wide;
}

}  // namespace

Config tiny_config(const std::string& layers) {
  Config config;
  config.layers_text = layers;
  ModelConfig& model = config.model;
  const ModelLayers pattern = parse_layers(layers);
  model.blocks = pattern.blocks;
  model.mtp_depth = pattern.mtp_depth;
  model.vocab_size = 259;  // neither 2 nor 4 divides it
  model.hidden_size = 20;
  model.intermediate_size = 28;
  model.num_attention_heads = 4;
  model.num_key_value_heads = 4;
  model.head_dim = 6;
  model.state_space = {.num_heads = 8, .head_dim = 3, .state_size = 5, .n_groups = 4, .conv_kernel = 3};
  model.initializer_range = 0.1;
  model.moe.num_experts = 4;
  model.moe.num_experts_per_tok = 2;
  model.moe.moe_intermediate_size = 10;
  model.moe.router_aux_loss_coef = 0.02;
  model.moe.router_z_loss_coef = 0.001;
  config.training.sequence_length = 8;
  config.training.global_batch_size = 16;
  config.training.microbatch_size = 1;
  config.run.steps = 10;
  config.run.measured_products = false;  // of an emulated GPU there is nothing to learn
  config.optimizer.learning_rate = 1e-3;
  config.optimizer.weight_decay = 0.1;
  // Adam divides a gradient by its own size. The rounding noise of a gradient is about 1e-7 of its largest elements,
  // which are near 1e-1. With eps above it, no noise is blown up to whole steps, and runs compare element by element.
  config.optimizer.eps = 1e-4;
  config.training.max_grad_norm = 1.0;
  for (Family family : {Family::dense, Family::experts, Family::embedding, Family::head, Family::root}) {
    config.shard_by_family[family] = config.shard;
  }
  config.data.train = {text_file()};
  config.data.padded_vocab = true;
  config.checkpoint.at_end = false;  // runs share a directory
  return config;
}

void WeightCollector::add(Stream& stream, RankStages& stage) {
  for (std::size_t u = 0; u < stage.planned_units().size(); ++u) {
    for (const OwnedRows& rows : stage.owned_rows(u)) {
      const ParameterSpec& p = *rows.parameter;
      const std::vector<float> values = read_values(stream, rows.values);
      auto& whole = weights_[p.name];
      auto& seen = owned_[p.name];
      whole.resize(static_cast<std::size_t>(p.global_size()));
      seen.resize(whole.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto at = static_cast<std::size_t>(rows.row_begin * p.global_columns + p.column_begin) + i;
        if (seen[at] && std::memcmp(&whole[at], &values[i], sizeof(float)) != 0) {
          faults_.push_back(fmt::format("{}[{}] differs between its holders", p.name, at));
        }
        whole[at] = values[i];
        seen[at] = true;
      }
    }
  }
}

void WeightCollector::finish(LearnedRun& learned) {
  for (const auto& [name, seen] : owned_) {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      if (!seen[i]) faults_.push_back(fmt::format("{}[{}] is owned by no rank", name, i));
    }
  }
  learned.weights = std::move(weights_);
  learned.faults = std::move(faults_);
}

LearnedRun learn(const Config& config, const RunObserver& observer, const BackendFactory& make_backend) {
  LearnedRun learned;
  std::mutex mutex;
  WeightCollector collector;
  RunObserver all = observer;
  all.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (observer.after_step) observer.after_step(run, metrics);
    if (metrics.step != config.run.steps) return;
    const std::lock_guard lock(mutex);
    collector.add(run.stream(), run.stages());
  };
  learned.result = run_kept(config, all, make_backend);
  collector.finish(learned);
  for (const StepMetrics& metrics : learned.result.steps) {
    learned.losses.push_back(metrics.loss);
    learned.gradient_norms.push_back(metrics.gradient_norm);
  }
  return learned;
}

RunDifference difference(const LearnedRun& a, const LearnedRun& b) {
  RunDifference result;
  const auto relative = [](double x, double y) { return std::abs(x - y) / std::max(std::abs(y), 1e-30); };
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    result.loss = std::max(result.loss, relative(a.losses[i], b.losses[i]));
    result.gradient_norm = std::max(result.gradient_norm, relative(a.gradient_norms[i], b.gradient_norms[i]));
    result.bitwise_equal = result.bitwise_equal && a.losses[i] == b.losses[i];
  }
  if (a.weights.size() != b.weights.size() || a.losses.size() != b.losses.size()) {
    return {1.0, 1.0, 1.0, "another set of parameters or steps", false};
  }
  for (const auto& [name, whole] : a.weights) {
    const auto found = b.weights.find(name);
    if (found == b.weights.end() || found->second.size() != whole.size()) return {1.0, 1.0, 1.0, name, false};
    // A parameter that begins at zero is all update, and is measured by the size that matrices begin with.
    double gap = 0.0, size = 1e-2 * static_cast<double>(whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      gap += std::pow(static_cast<double>(whole[i]) - found->second[i], 2);
      size += std::pow(static_cast<double>(found->second[i]), 2);
      result.bitwise_equal = result.bitwise_equal && std::memcmp(&whole[i], &found->second[i], sizeof(float)) == 0;
    }
    if (const double error = std::sqrt(gap / size); error > result.weights) {
      result.weights = error;
      result.worst_parameter = name;
    }
  }
  return result;
}

}  // namespace weft
