#include "trainer/planning/first_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "parallel/runtime/error.h"
#include "parallel/runtime/quantities.h"
#include "trainer/config/config_schema.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

constexpr double tokens_a_parameter = 20.0, most_passes = 4.0;

std::int64_t rounded_to(double value, std::int64_t unit) {
  return std::max<std::int64_t>(1, std::llround(value / static_cast<double>(unit))) * unit;
}

// Key heads: a quarter of the query heads, or the next larger part that divides them; two at least, for tensor ranks.
std::int64_t key_heads(std::int64_t heads) {
  for (const std::int64_t shared : {4, 3, 2}) {
    if (heads % shared == 0 && heads / shared > 1) return heads / shared;
  }
  return heads;
}

// Widths that many ranks can share.
std::int64_t next_width(std::int64_t width) {
  return width + (width < 512 ? 64 : width < 2048 ? 128 : width < 4096 ? 512 : 1024);
}

ModelConfig shaped(const FirstRunRequest& request, std::int64_t width, std::int64_t blocks) {
  ModelConfig model;
  const std::int64_t unit = width < 2048 ? 64 : 256;
  model.vocab_size = request.vocab_size;
  model.hidden_size = width;
  model.head_dim = width < 256 ? 32 : width < 2048 ? 64 : 128;
  model.num_attention_heads = width / model.head_dim;
  model.num_key_value_heads = key_heads(model.num_attention_heads);
  model.intermediate_size = rounded_to(static_cast<double>(width) * 8.0 / 3.0, unit);
  model.blocks.assign(static_cast<std::size_t>(blocks), request.experts > 0 ? BlockKind::moe : BlockKind::dense);
  if (request.experts > 0) {
    model.blocks.front() = BlockKind::dense;
    model.moe.num_experts = request.experts;
    model.moe.num_experts_per_tok = request.experts_per_token;
    model.moe.moe_intermediate_size =
        rounded_to(static_cast<double>(model.intermediate_size) / static_cast<double>(request.experts_per_token), unit);
    model.moe.router_aux_loss_coef = 0.01;
  }
  // Two such tables would be more than a third of the model.
  const double table = static_cast<double>(request.vocab_size) * static_cast<double>(width);
  model.tie_word_embeddings = 6.0 * table > request.parameters;
  return model;
}

// The distance of a model from usual proportions, as a logarithm: width over depth is 64 to a width of 1024, 128 from
// 4096.
double unusual(std::int64_t width, std::int64_t blocks) {
  const double usual = std::clamp(static_cast<double>(width) / 32.0 + 32.0, 64.0, 128.0);
  return std::abs(std::log(static_cast<double>(width) / static_cast<double>(blocks) / usual));
}

double power_of_two_near(double value) {
  return std::exp2(std::round(std::log2(value)));
}

}  // namespace

std::int64_t usual_length(double parameters) {
  if (parameters < 5e6) return 128;
  if (parameters < 50e6) return 256;
  if (parameters < 500e6) return 1024;
  return parameters < 3e9 ? 2048 : 4096;
}

ModelConfig sized_model(const FirstRunRequest& request) {
  struct Shape {
    std::int64_t width = 0, blocks = 0;
    double off = std::numeric_limits<double>::infinity(), score = off;
    double parameters = 0.0;
  } best;
  for (std::int64_t width = 64; width <= 16384; width = next_width(width)) {
    // Every block has as many parameters, so two stacks give the number of any.
    const auto total = [&](std::int64_t blocks) {
      return static_cast<double>(count_parameters(shaped(request, width, blocks)).total);
    };
    const double two = total(2), block = total(3) - two;
    const std::int64_t least = request.experts > 0 ? 2 : 1;
    const std::int64_t blocks = std::max<std::int64_t>(least, 2 + std::llround((request.parameters - two) / block));
    const double parameters = two + static_cast<double>(blocks - 2) * block;
    const double off = std::abs(std::log(parameters / request.parameters));
    const double score = 8.0 * off + unusual(width, blocks);
    if (score < best.score) best = {width, blocks, off, score, parameters};
  }
  const double most_off = std::log(1.25), most_unusual = std::log(8.0);
  if (best.off > most_off || unusual(best.width, best.blocks) > most_unusual) {
    fail_request(
        "no model of usual proportions has about {:.3g} parameters with {} tokens in the vocabulary{}; the nearest has "
        "{} "
        "blocks of width {}, and {:.3g} parameters",
        request.parameters, request.vocab_size,
        request.experts > 0 ? fmt::format(" and {} experts a block", request.experts) : "", best.blocks, best.width,
        best.parameters);
  }
  return shaped(request, best.width, best.blocks);
}

Config first_run(const FirstRunRequest& request) {
  Config config;
  config.model = sized_model(request);
  const auto blocks = std::ssize(config.model.blocks);
  config.layers_text = request.experts == 0 ? fmt::format("d*{}", blocks) : fmt::format("d e*{}", blocks - 1);
  config.run.name = request.name;
  config.run.directory = "runs/" + request.name;
  config.run.device = request.device;
  if (request.device == DeviceKind::cuda) {
    if (request.ranks > 1) config.run.launch = LaunchKind::processes;
    config.precision.compute = DType::bfloat16;
  }
  config.hardware.name = request.hardware;
  config.hardware.memory = request.memory;
  config.parallelism.data_shard = request.ranks;

  TrainingConfig& training = config.training;
  training.sequence_length = request.sequence_length;
  const auto active = static_cast<double>(count_parameters(config.model).active);
  const double tokens = request.tokens > 0.0 ? request.tokens
                                             : std::min(tokens_a_parameter * active,
                                                        most_passes * static_cast<double>(request.data_tokens));
  const double compute = 6.0 * active * tokens;
  const auto length = static_cast<double>(training.sequence_length);
  const double sequences = power_of_two_near(0.2920 * std::pow(compute, 0.3271) / length);
  // Every rank has a sequence, and a run has some steps to learn in.
  training.global_batch_size =
      std::max(rounded_to(std::min(sequences, tokens / length / 100.0), request.ranks), std::int64_t{request.ranks});
  const double step = length * static_cast<double>(training.global_batch_size);
  if (request.tokens > 0.0 && request.tokens < step) {
    fail_request("{:.15g} tokens to train on are fewer than those of a step: {} sequences of {} tokens", request.tokens,
                 training.global_batch_size, training.sequence_length);
  }
  config.run.steps = std::max<std::int64_t>(1, static_cast<std::int64_t>(tokens / step));

  config.optimizer.learning_rate = std::stod(fmt::format("{:.1e}", 0.3118 * std::pow(compute, -0.1250)));
  config.lr_scheduler.warmup_steps = std::min<std::int64_t>(2000, config.run.steps / 20);
  config.lr_scheduler.decay = Decay::cosine;
  config.data = request.data;
  config.validation = request.validation;
  if (config.validation.takes_place()) {
    config.validation.interval = std::max<std::int64_t>(1, config.run.steps / 20);
    config.validation.batches = 4;
  }
  config.checkpoint.interval = std::max<std::int64_t>(1, config.run.steps / 10);
  return config;
}

std::string first_run_toml(const Config& config, std::string_view head,
                           const std::map<std::string, std::string>& reasons) {
  // The keys that a reader would look for, even where they have the default.
  const std::set<std::string_view> shown = {"run.device",
                                            "run.steps",
                                            "run.seed",
                                            "model.tie_word_embeddings",
                                            "parallelism.pipeline",
                                            "parallelism.tensor",
                                            "parallelism.context",
                                            "parallelism.data_shard",
                                            "shard.strategy",
                                            "precision.compute",
                                            "training.microbatch_size",
                                            "optimizer.learning_rate",
                                            "optimizer.name",
                                            "data.tokenizer"};
  const std::map<std::string_view, std::string_view> short_texts = {
      {"shard.reduction", "when gradients are reduced"},
      {"precision.compute", "parameters are gathered and computed in"},
      {"data.train", "files to train on"},
      {"data.tokenizer", "how text becomes tokens"},
      {"data.padded_vocab", "the model has more tokens than the tokenizer, which ranks share evenly"},
      {"validation.batches", "global batches of a validation"},
      {"checkpoint.interval", "steps between checkpoints"},
      {"hardware.name", "card that steps are planned for"},
      {"hardware.memory", "of this machine, for each rank"}};
  const Config defaults;
  std::string text(head), section;
  for (const ConfigKey& key : config_schema()) {
    const std::string path = key.path(), value = key.write(config);
    const bool differs = key.inherits.empty() && value != key.write(defaults);
    if (!differs && !shown.contains(path)) continue;
    if (section != key.section) text += fmt::format("\n[{}]\n", section = key.section);
    const auto reason = reasons.find(path);
    const auto brief = short_texts.find(path);
    const std::string_view comment = reason != reasons.end()      ? std::string_view(reason->second)
                                     : brief != short_texts.end() ? brief->second
                                                                  : std::string_view(key.help);
    text += fmt::format("{:<40} # {}\n", fmt::format("{} = {}", key.name, value), comment);
  }
  return text;
}

}  // namespace weft
