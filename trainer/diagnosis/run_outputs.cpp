#include "trainer/diagnosis/run_outputs.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "parallel/runtime/checksum.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/config/config_sources.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

// Non-finite numbers were written as null.
double number_of(const SortedJson& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

// A run of an older version lacks the buckets that came later: zero bytes.
BucketBytes buckets_of(const SortedJson& buckets, const char* field) {
  BucketBytes bytes;
  for (const Bucket bucket : all_values<Bucket>) {
    const auto entry = buckets.find(std::string(name_of(bucket)));
    if (entry == buckets.end()) continue;
    bytes[bucket] = (field == nullptr ? *entry : entry->at(field)).get<std::int64_t>();
  }
  return bytes;
}

Spike parsed_spike(const SortedJson& json, const std::string& place) {
  const auto action = value_named<SpikeAction>(json.at("action").get<std::string>());
  if (!action) fail_request("{}: {} is no action at a spike", place, json.at("action").dump());
  Spike spike{json.at("what") == "loss" ? "loss" : "grad_norm", number_of(json.at("value")),
              number_of(json.at("limit")), *action};
  if (json.contains("mean")) spike.mean = number_of(json.at("mean"));
  return spike;
}

std::vector<StepMetrics> read_metrics(const std::filesystem::path& file) {
  const std::string text = read_text(file);
  const std::vector<std::string_view> lines = parts_between(text, '\n');
  std::vector<StepMetrics> steps;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const std::string place = fmt::format("{}:{}", file.string(), i + 1);
    steps.push_back(parse_step_metrics(lines[i], place));
    if (i > 0 && steps[i - 1].step >= steps[i].step) {
      fail_request("{}: step {} comes after step {}", place, steps[i].step, steps[i - 1].step);
    }
  }
  if (!lines.back().empty()) {
    fail_request(
        "{}:{}: the line is cut off: the run was killed, or is writing; ask again when it stands still, or remove the "
        "line",
        file.string(), lines.size());
  }
  if (steps.empty()) fail_request("{} holds no step: the run has not ended its first one", file.string());
  return steps;
}

// Fills in memory, unless the summary is of an earlier part of the run, which had another configuration.
void read_summary(const std::filesystem::path& file, const std::string& configuration, RunOutputs& run) {
  std::vector<RankMemory>& memory = run.memory;
  try {
    const SortedJson summary = SortedJson::parse(read_text(file));
    run.earlier_summary = summary.value("configuration", configuration) != configuration;
    if (run.earlier_summary) return;
    for (const SortedJson& entry : summary.at("ranks")) {
      const SortedJson& buckets = entry.at("buckets");
      memory.push_back({entry.at("rank"), buckets_of(buckets, "predicted"), buckets_of(buckets, "measured")});
    }
  } catch (const SortedJson::exception& error) {
    fail_request("{} is no summary of a run: {}", file.string(), error.what());
  }
  const int world = run.config.parallelism.world();
  if (std::ssize(memory) != world) {
    fail_request("{} has {} ranks; those of config.toml are {}", file.string(), memory.size(), world);
  }
}

// Rates as to_json() writes them. A single number has no group name.
std::vector<GroupRate> rates_of(const SortedJson& json) {
  std::vector<GroupRate> rates;
  if (json.is_number()) rates.push_back({{}, json.get<double>()});
  if (!json.is_object()) return rates;
  for (const UpdateGroup group : update_groups) {
    const auto own = json.find(name_of(group));
    if (own == json.end()) continue;
    const auto same = std::ranges::find(rates, own->get<double>(), &GroupRate::rate);
    (same == rates.end() ? rates.emplace_back(GroupRate{{}, own->get<double>()}) : *same).groups.push_back(group);
  }
  return rates;
}

}  // namespace

StepMetrics parse_step_metrics(std::string_view line, const std::string& place) {
  StepMetrics metrics;
  try {
    const SortedJson json = SortedJson::parse(line);
    metrics.step = json.at("step");
    metrics.loss = number_of(json.at("loss"));
    metrics.gradient_norm = number_of(json.at("grad_norm"));
    metrics.learning_rates = rates_of(json.at("lr"));
    if (json.contains("loss_scale")) metrics.loss_scale = json.at("loss_scale").get<double>();
    metrics.skipped = json.value("skipped", false);
    // Older versions wrote a boolean.
    const auto spike = json.find("spike");
    if (spike != json.end() && spike->is_object()) metrics.spike = parsed_spike(*spike, place);
    metrics.forced_balance = json.value("forced_balance", false);
    metrics.tokens = json.at("tokens");
    metrics.targets = json.value("targets", metrics.tokens);
    metrics.seconds = json.at("seconds");
    metrics.data_seconds = json.value("data_seconds", 0.0);
    metrics.peak_bytes = json.at("peak_bytes");
    metrics.memory = buckets_of(json.at("memory"), nullptr);
    for (const auto& [group, operations] : json.at("communication").items()) {
      for (const auto& [name, count] : operations.items()) {
        const auto op = value_named<CollectiveOp>(name);
        if (!op) fail_request("{}: \"{}\" is no operation that a run counts", place, name);
        metrics.communication[{group, *op}] = {count.at("count"), count.at("bytes")};
      }
    }
    metrics.system_allocations = json.at("system_allocations");
    metrics.model_flops = 1e12 * json.value("tflops", 0.0) * metrics.seconds;
    if (json.contains("mfu")) metrics.peak_flops_per_second = metrics.flops_per_second() / number_of(json.at("mfu"));
    if (json.contains("hashes")) {
      const SortedJson& hashes = json.at("hashes");
      metrics.hashes = {hashes.at("configuration"), hashes.at("program"), hashes.at("layout")};
    }
    if (json.contains("moe")) {
      for (const SortedJson& moe : json.at("moe")) {
        MoeMetrics& read = metrics.moe.emplace_back();
        read.block = moe.at("block");
        read.auxiliary_loss = number_of(moe.at("auxiliary_loss"));
        read.z_loss = number_of(moe.at("z_loss"));
        read.max_over_mean = moe.at("max_over_mean");
        read.entropy = moe.value("entropy", 1.0);
        read.dropped = moe.value("dropped", 0.0);
        read.unused = moe.value("unused", std::int64_t{0});
        read.unused_experts = moe.value("unused_experts", std::vector<std::int64_t>());
        read.busiest_rank = moe.value("busiest_rank", 1.0);
        read.idlest_rank = moe.value("idlest_rank", 1.0);
        if (moe.contains("idlest_place")) read.idlest_place = moe.at("idlest_place").get<int>();
        if (moe.contains("null_share")) read.null_share = number_of(moe.at("null_share"));
        if (moe.contains("bias_norm")) read.bias_norm = number_of(moe.at("bias_norm"));
      }
    }
  } catch (const SortedJson::exception& error) {
    fail_request("{}: not the metrics of a step: {}", place, error.what());
  }
  return metrics;
}

void require_run(const std::filesystem::path& directory, std::string_view before) {
  if (!std::filesystem::is_directory(directory)) {
    fail_request("{}{} is no directory; name the run.directory of a run", before, directory.string());
  }
  for (const char* needed : {"config.toml", metrics_file}) {
    if (std::filesystem::exists(directory / needed)) continue;
    fail_request("{}{} is not the directory of a run: it has no {}", before, directory.string(), needed);
  }
}

RunOutputs read_run(const std::filesystem::path& directory) {
  require_run(directory);
  RunOutputs run;
  run.directory = directory;
  const std::string text = read_text(directory / "config.toml");
  ResolvedConfig resolved = read_config_text(text, (directory / "config.toml").string());
  run.config = std::move(resolved.config);
  run.said = std::move(resolved.said);
  run.steps = read_metrics(directory / metrics_file);
  const auto summary = directory / summary_file;
  if (std::filesystem::exists(summary)) read_summary(summary, checksum_text(checksum(text)), run);
  run.traces = traces_in(directory, run.config.parallelism.world());
  return run;
}

}  // namespace weft
