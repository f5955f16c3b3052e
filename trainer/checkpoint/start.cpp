#include "trainer/checkpoint/start.h"

#include <algorithm>
#include <optional>

#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/outside_text.h"
#include "trainer/config/config_schema.h"
#include "trainer/rank/checkpoint_rows.h"

namespace weft {
namespace {

// Whether the run renamed its parameters before it saved this checkpoint, by the same checkpoint.rename.
bool renamed_before(const Config& config, const CheckpointReader& reader) {
  if (!reader.lists(checkpoint_config_name)) return !config.checkpoint.start_from.empty();
  const std::string now = write_config(config, config_schema(), [](const ConfigKey&) { return ""; });
  const auto renames = [](const std::string& changed) { return changed.starts_with("checkpoint.rename "); };
  return std::ranges::none_of(changed_values(read_whole_file((reader.folder() / checkpoint_config_name).string()), now),
                              renames);
}

LoadRules rules_of(const Config& all, const CheckpointReader& reader, const StartingPoint& from) {
  const CheckpointConfig& config = all.checkpoint;
  LoadRules rules{from.weights_only, {}, config.allow_missing, config.allow_unused};
  if (config.rename.empty() || (from.own && renamed_before(all, reader))) return rules;
  for (const std::string& renaming : config.rename) {
    const std::size_t sign = renaming.find('=');
    rules.renamed.emplace_back(renaming.substr(0, sign), renaming.substr(sign + 1));
  }
  return rules;
}

// A line for each data key that differs between checkpoint and run. Throws Error (request) if there are any and
// checkpoint.allow_new_data is not set.
std::string new_data(const Config& config, const KeyValues& data, const Manifest& manifest) {
  const std::string differing = differing_data(manifest.data, data);
  if (differing.empty() || config.checkpoint.allow_new_data) return differing;
  fail_request(
      "its data is not that of this run, which could not go on at the same sample:\n{}\nTo go on with its weights and "
      "optimizer and read the new data from their first sample, set checkpoint.allow_new_data = true. To take its "
      "weights alone and begin anew, name it in checkpoint.start_from with another checkpoint.directory",
      differing);
}

// Megatron's order has the samples of the run's steps, whatever was read before.
void require_samples(const Config& config, const Progress& progress) {
  const std::int64_t batch = config.training.global_batch_size, steps = config.run.steps;
  const bool goes_on = progress.step > 0 && progress.step < steps;
  if (config.data.order != DataOrder::megatron || !goes_on || progress.samples <= progress.step * batch) return;
  fail_request(
      "data.order \"megatron\" makes an order of {} samples (run.steps x training.global_batch_size), and the {} "
      "samples "
      "read by step {} leave too few of them: set training.global_batch_size to {} or more",
      steps * batch, progress.samples, progress.step, (progress.samples + progress.step - 1) / progress.step);
}

// Whether checkpoint.allow_missing names the weight of every router.
bool routers_may_begin_anew(const Config& config) {
  return std::ranges::all_of(router_weights(config.model), [&](const std::string& name) {
    return matches_any(config.checkpoint.allow_missing, name);
  });
}

// Keys in which the model of a run may differ from that of the weights it begins with. A difference in the first three
// shows in tensors, which plan_load() compares. One of the scoring shows in none.
std::vector<const char*> keys_compared_as_tensors(const Config& config) {
  std::vector<const char*> keys = {"model.moe.selection_bias", "model.moe.shared_expert_intermediate_size",
                                   "model.moe.shared_expert_gate"};
  if (routers_may_begin_anew(config)) keys.push_back("model.moe.scoring");
  return keys;
}

}  // namespace

StartingPoint starting_point(const Config& config) {
  const std::string directory = config.checkpoint_directory();
  StartingPoint start;
  start.candidates = find_checkpoints(directory);
  if (const std::string lost = find_lost_checkpoint(directory, start.candidates); !lost.empty()) {
    throw Error(ErrorKind::request, lost);
  }
  start.own = !start.candidates.empty();
  start.weights_only = !start.own && config.checkpoint.weights_only;
  if (start.own && !config.checkpoint.resume) {
    fail_request(
        "checkpoint.resume is false, but {} has checkpoints, the newest {}: those of a run that begins anew "
        "would pass for older ones. Move them, or choose another checkpoint.directory",
        directory, checkpoint_name(start.candidates.front().step));
  }
  if (!start.own && !config.checkpoint.start_from.empty()) {
    start.candidates.push_back(resolve_checkpoint(config.checkpoint.start_from));
  }
  return start;
}

PlannedStart plan_start(const Config& config, const KeyValues& data, const CheckpointReader& reader,
                        const StartingPoint& from) {
  const bool weights_only = from.weights_only;
  try {
    const Manifest& manifest = reader.manifest();
    // Later saves would be older than this one by their names, and every start would come back to it.
    if (const std::string fault = reader.step_fault(); from.own && !fault.empty()) fail_request("{}", fault);
    KeyValues saved = manifest.model, own = model_keys(config);
    for (const char* key : weights_only ? keys_compared_as_tensors(config) : std::vector<const char*>()) {
      saved.erase(key);
      own.erase(key);
    }
    if (const std::string differing = differing_model(std::move(saved), own); !differing.empty()) {
      const bool goes_on = config.checkpoint.start_from.empty();
      fail_request("it is of another model:\n{}{}", differing,
                   goes_on ? "\nTo begin anew name another run.directory or checkpoint.directory" : "");
    }
    PlannedStart start;
    if (!weights_only) {
      start.new_data = new_data(config, data, manifest);
      start.progress = manifest.progress;
      if (!start.new_data.empty()) start.progress.samples = 0;
      require_samples(config, start.progress);
    }
    LoadRules rules = rules_of(config, reader, from);
    rules.other_rules = parameters_of_other_rules(config, manifest.rules);
    start.load = plan_load(manifest, expected_tensors(config, weights_only), rules);
    return start;
  } catch (const Error& error) {
    fail_request("{}: {}", reader.folder().string(), error.what());
  }
}

void fail_unreadable(const StartingPoint& from) {
  const std::filesystem::path& newest = from.candidates.front().path;
  if (!from.own) {
    fail_request(
        "{} (checkpoint.start_from) cannot be read; weft checkpoint verify says why. Name another checkpoint there",
        newest.string());
  }
  fail_request("none of the {} checkpoints of {} can be read. To begin anew, choose another checkpoint.directory",
               from.candidates.size(), newest.parent_path().string());
}

void require_usable_start(const Config& config, const TokenDataset& data) {
  const StartingPoint start = starting_point(config);
  for (const CheckpointFolder& candidate : start.candidates) {
    std::optional<CheckpointReader> reader;
    try {
      reader.emplace(candidate.path);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::request) throw;
      continue;  // it is damaged: the ranks will skip it too, and report it
    }
    plan_start(config, data_keys(config, data), *reader, start);
    return;
  }
  if (!start.candidates.empty()) fail_unreadable(start);
}

}  // namespace weft
