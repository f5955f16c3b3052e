// `weft checkpoint inspect`: what a checkpoint holds, from its manifest. `weft checkpoint verify`: every byte against
// its checksum.
#include <fmt/format.h>

#include <map>

#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/quantities.h"
#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "tools/report/report_parts.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/reader.h"

namespace weft {
namespace {

struct InspectRequest {
  std::string path, filter;
  bool tensors = false, json = false;
};

struct Total {
  std::int64_t tensors = 0, elements = 0, bytes = 0;
};
// Helpers of routers are saved as parameters are, without a state; their names tell.
struct TensorKind {
  std::string state;  // empty for parameters and helpers
  bool helpers = false;
  std::string_view dtype;
  auto operator<=>(const TensorKind&) const = default;
};
using Totals = std::map<TensorKind, Total>;

Totals totals_of(const Manifest& manifest) {
  Totals totals;
  for (const SavedTensor& tensor : manifest.tensors) {
    const bool helpers = tensor.state.empty() && tensor.name.ends_with(".router.selection_bias");
    Total& total = totals[{tensor.state, helpers, name_of(tensor.dtype)}];
    ++total.tensors;
    total.elements += tensor.rows * tensor.columns;
    total.bytes += tensor.rows * tensor.row_bytes();
  }
  return totals;
}

std::vector<const SavedTensor*> chosen_tensors(const Manifest& manifest, const InspectRequest& request) {
  std::vector<const SavedTensor*> chosen;
  for (const SavedTensor& tensor : manifest.tensors) {
    if (request.filter.empty() || matches_pattern(request.filter, tensor.name)) chosen.push_back(&tensor);
  }
  return chosen;
}

std::vector<std::int64_t> boxes_by_file(const Manifest& manifest) {
  std::vector<std::int64_t> boxes(manifest.files.size());
  for (const SavedTensor& tensor : manifest.tensors) {
    for (const SavedBox& box : tensor.boxes) ++boxes[static_cast<std::size_t>(box.file)];
  }
  return boxes;
}

Json json_of(const CheckpointReader& reader, const InspectRequest& request) {
  const Manifest& manifest = reader.manifest();
  const Progress& progress = manifest.progress;
  const Degrees& mesh = manifest.mesh;
  Json json = {{"path", reader.folder().string()},
               {"version", manifest.version},
               {"step", progress.step},
               {"samples", progress.samples},
               {"tokens", progress.tokens},
               {"good_steps", progress.good_steps},
               {"good_in_a_row", progress.good_in_a_row},
               {"loss_scale", progress.loss_scale.value_or(1.0)},
               {"mesh", {{"world", mesh.world()}}},
               {"model", manifest.model},
               {"data", manifest.data},
               {"files", Json::array()},
               {"totals", Json::array()}};
  for (const auto& [name, degree] : named_degrees) json["mesh"][name] = mesh.*degree;
  if (manifest.hashes) json["hashes"] = manifest.hashes->named();
  const auto boxes = boxes_by_file(manifest);
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    json["files"].push_back(
        {{"name", manifest.files[f].name}, {"bytes", manifest.files[f].bytes}, {"boxes", boxes[f]}});
  }
  for (const auto& [key, total] : totals_of(manifest)) {
    json["totals"].push_back({{"state", key.state},
                              {"dtype", key.dtype},
                              {"tensors", total.tensors},
                              {"elements", total.elements},
                              {"bytes", total.bytes}});
    if (key.helpers) json["totals"].back()["helpers"] = true;
  }
  if (!request.tensors && request.filter.empty()) return json;
  json["tensors"] = Json::array();
  for (const SavedTensor* tensor : chosen_tensors(manifest, request)) {
    json["tensors"].push_back({{"name", tensor->name},
                               {"state", tensor->state},
                               {"shape", {tensor->rows, tensor->columns}},
                               {"dtype", name_of(tensor->dtype)},
                               {"bytes", tensor->rows * tensor->row_bytes()},
                               {"boxes", tensor->boxes.size()}});
  }
  return json;
}

std::string keys_text(const char* title, const std::map<std::string, std::string>& keys) {
  std::string text = fmt::format("\n{}\n", title);
  for (const auto& [name, value] : keys) text += fmt::format("  {} = {}\n", name, value);
  return text;
}

std::string text_of(const CheckpointReader& reader, const InspectRequest& request) {
  const Manifest& manifest = reader.manifest();
  const Progress& progress = manifest.progress;
  const Degrees& mesh = manifest.mesh;
  std::int64_t bytes = 0;
  for (const SavedFile& file : manifest.files) bytes += file.bytes;
  std::string text = fmt::format(
      "{}\n\n"
      "step     {}, {} of them taken ({} in a row)\nsamples  {}\ntokens   {}\nscale    {} of the loss\n"
      "mesh     pipeline {} x data_replicate {} x data_shard {} x context {} x tensor {} = {} ranks, "
      "expert {} x expert_tensor {}\n"
      "holds    {} in {} files\n",
      reader.folder().string(), progress.step, progress.good_steps, progress.good_in_a_row, progress.samples,
      progress.tokens, progress.loss_scale.value_or(1.0), mesh.pipeline, mesh.data_replicate, mesh.data_shard,
      mesh.context, mesh.tensor, mesh.world(), mesh.expert, mesh.expert_tensor, format_bytes(bytes),
      manifest.files.size());
  if (manifest.hashes) text += keys_text("hashes", manifest.hashes->named());
  text += keys_text("model", manifest.model) + keys_text("data", manifest.data);
  BenchTable table{{"state", "dtype", "tensors", "elements", "bytes"}};
  for (const auto& [key, total] : totals_of(manifest)) {
    const std::string unnamed = key.helpers ? "(helpers)" : "(parameters)";
    table.add(key.state.empty() ? unnamed : key.state, key.dtype, total.tensors, total.elements, total.bytes);
  }
  text += "\n" + aligned_text(table);
  table = {{"file", "bytes", "boxes"}};
  const auto boxes = boxes_by_file(manifest);
  for (std::size_t f = 0; f < manifest.files.size(); ++f) {
    table.add(manifest.files[f].name, manifest.files[f].bytes, boxes[f]);
  }
  text += "\n" + aligned_text(table);
  if (!request.tensors && request.filter.empty()) return text;
  table = {{"tensor", "state", "shape", "dtype", "bytes", "boxes"}};
  for (const SavedTensor* tensor : chosen_tensors(manifest, request)) {
    table.add(tensor->name, tensor->state, fmt::format("{} x {}", tensor->rows, tensor->columns),
              name_of(tensor->dtype), tensor->rows * tensor->row_bytes(), tensor->boxes.size());
  }
  return text + "\n" + aligned_text(table);
}

void inspect_checkpoint(const InspectRequest& request) {
  const auto reader = open_checkpoint(request.path);
  fmt::print("{}", request.json ? line_of(json_of(*reader, request)) : text_of(*reader, request));
}

struct VerifyRequest {
  std::string path;
  bool json = false;
};

void verify_checkpoint(const VerifyRequest& request) {
  const std::string path = resolve_checkpoint(request.path).path.string();
  std::vector<std::string> faults;
  {
    ProgressLine progress;
    faults = find_checkpoint_faults(path,
                                    [&](std::int64_t done, std::int64_t all) { progress.bytes(done, all, "checked"); });
  }
  if (request.json) {
    fmt::print("{}", line_of({{"path", path}, {"sound", faults.empty()}, {"faults", faults}}));
  } else if (faults.empty()) {
    fmt::print("{}: every byte is as it was written\n", path);
  } else {
    for (const std::string& fault : faults) fmt::print("{}\n", fault);
  }
  if (!faults.empty()) throw CLI::RuntimeError(failed_run);
}

}  // namespace

void add_checkpoint_inspect_command(CLI::App& checkpoint) {
  const auto [command, request] = add_command<InspectRequest>(
      checkpoint, "inspect", "progress and saved tensors of a run, from the manifest", inspect_checkpoint);
  add_checkpoint_argument(command, "PATH", request.path);
  command.add_flag("--tensors", request.tensors, "list the tensors, too");
  command.add_option("--filter", request.filter, "list tensors with a matching name: \"blocks.0.*\"");
  command.add_flag("--json", request.json, "print one JSON document");
}

void add_checkpoint_verify_command(CLI::App& checkpoint) {
  const auto [command, request] = add_command<VerifyRequest>(
      checkpoint, "verify", "hold every byte against its checksum: everything that is missing or damaged",
      verify_checkpoint);
  add_checkpoint_argument(command, "PATH", request.path);
  command.add_flag("--json", request.json, "print one JSON document");
  command.footer("Exit code: 0 sound, 3 damaged, 2 PATH is no checkpoint.");
}

}  // namespace weft
