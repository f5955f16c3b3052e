#include "tests/trainer/saved_run.h"
#include "trainer/resolve/resolved_run.h"

#include <algorithm>

namespace weft {

Config saving_config(const TinyLayout& layout, const std::filesystem::path& directory, std::int64_t steps,
                     std::int64_t interval) {
  Config config = config_of(layout);
  config.run.steps = steps;
  config.checkpoint.directory = directory.string();
  config.checkpoint.interval = interval;
  config.checkpoint.at_end = true;
  return config;
}

int SaidLines::count(const std::string& part) const {
  return static_cast<int>(
      std::ranges::count_if(lines_, [&](const std::string& line) { return line.find(part) != std::string::npos; }));
}

std::string SaidLines::all() const {
  std::string text;
  for (const std::string& line : lines_) text += line + "\n";
  return text;
}

void resave(Config config, const std::filesystem::path& from, const std::filesystem::path& to) {
  config.checkpoint.directory = to.string();
  config.checkpoint.start_from = from.string();
  config.checkpoint.weights_only = false;
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  const KeyValues identity = data_keys(config, data);
  NvtxDomain domain;
  const CheckpointSetup setup;
  run_ranks(config, backend_of(config), [&](const RankContext& context) {
    RankRun run(resolved, data, domain, context);
    RankCheckpoints checkpoints(config, identity, run.checkpoint_rows(), run.world(), run.stream(), setup);
    run.resume(checkpoints.load());
    RunVotes asked;
    asked.save_requests = 1;
    checkpoints.end_step(run.progress(), asked);
    checkpoints.finish();
  });
}

std::vector<std::string> differing_tensors(const CheckpointReader& a, const CheckpointReader& b) {
  std::vector<std::string> differing;
  const auto bytes = [](const CheckpointReader& reader, const SavedTensor& tensor) {
    std::vector<std::uint8_t> all(static_cast<std::size_t>(tensor.rows * tensor.row_bytes()));
    reader.read_rows(tensor, 0, tensor.rows, all);
    return all;
  };
  for (const SavedTensor& tensor : a.manifest().tensors) {
    const SavedTensor* other = b.manifest().find(tensor.name, tensor.state);
    const bool same = other != nullptr && other->rows == tensor.rows && other->columns == tensor.columns &&
                      other->dtype == tensor.dtype && bytes(a, tensor) == bytes(b, *other);
    if (!same) differing.push_back(tensor.name + " " + tensor.state);
  }
  if (a.manifest().tensors.size() != b.manifest().tensors.size()) differing.push_back("the number of tensors");
  if (a.manifest().progress != b.manifest().progress) differing.push_back("progress");
  if (a.manifest().model != b.manifest().model || a.manifest().data != b.manifest().data) differing.push_back("keys");
  return differing;
}

std::vector<TinyLayout> saved_tied_layouts() {
  const std::string mixed = "d e d e";
  return {
      {.name = "tied_one", .layers = mixed, .tied = true},
      {.name = "tied_pp2_shard2", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .tied = true},
      {.name = "tied_tp2_ep2", .layers = mixed, .degrees = {.tensor = 2, .expert = 2}, .tied = true},
      {.name = "tied_zbv", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2, .tied = true},
  };
}

std::vector<TinyLayout> saved_layouts() {
  const std::string mixed = "d e d e";
  return {
      {.name = "one", .layers = mixed},
      {.name = "pp2", .layers = mixed, .degrees = {.pipeline = 2}},
      {.name = "pp4", .layers = mixed, .degrees = {.pipeline = 4}},
      {.name = "tp2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "cp2", .layers = mixed, .degrees = {.context = 2}},
      {.name = "shard4", .layers = mixed, .degrees = {.data_shard = 4}},
      {.name = "replicate2_shard2", .layers = mixed, .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "ep2", .layers = mixed, .degrees = {.data_shard = 2, .expert = 2}},
      {.name = "ep4_tp2", .layers = mixed, .degrees = {.data_shard = 2, .tensor = 2, .expert = 4}},
      {.name = "etp2", .layers = mixed, .degrees = {.data_shard = 2, .expert_tensor = 2}},
      {.name = "no_shard", .layers = mixed, .degrees = {.data_shard = 2}, .strategy = ShardStrategy::no_shard},
      {.name = "grad_op_pp2",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .strategy = ShardStrategy::shard_grad_op},
      {.name = "interleaved", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "interleaved", .chunks = 2},
      {.name = "zbv", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2},
      {.name = "root_wrap", .layers = mixed, .degrees = {.data_shard = 4}, .wrap = "root"},
      {.name = "mesh16",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 2, .expert_tensor = 2}},
  };
}

}  // namespace weft
