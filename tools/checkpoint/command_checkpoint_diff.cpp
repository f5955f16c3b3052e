#include <fmt/format.h>

#include <memory>

#include "parallel/runtime/error.h"
#include "tools/checkpoint/checkpoint_difference.h"
#include "tools/command/commands.h"
#include "tools/report/bench_table.h"
#include "tools/report/progress_line.h"
#include "tools/report/report_parts.h"

namespace weft {
namespace {

constexpr int differing = 1;

struct DiffRequest {
  std::string first, second;
  bool json = false;
};

std::string shape_text(const SavedTensor& tensor) {
  return fmt::format("{} x {}", tensor.rows, tensor.columns);
}

// "only in A", "9 x 3 | 9 x 4", "float32 | bfloat16", "values"; both shape and dtype if both differ.
std::string what_differs(const TensorDifference& entry) {
  if (entry.second == nullptr) return "only in A";
  if (entry.first == nullptr) return "only in B";
  std::string text;
  if (!entry.comparable()) text = fmt::format("{} | {}", shape_text(*entry.first), shape_text(*entry.second));
  if (entry.first->dtype != entry.second->dtype) {
    text +=
        fmt::format("{}{} | {}", text.empty() ? "" : ", ", name_of(entry.first->dtype), name_of(entry.second->dtype));
  }
  return text.empty() ? "values" : text;
}

Json json_of(const SavedTensor* tensor) {
  if (tensor == nullptr) return nullptr;
  return {{"shape", {tensor->rows, tensor->columns}}, {"dtype", name_of(tensor->dtype)}};
}

Json json_of(const std::vector<ValueDifference>& values) {
  Json json = Json::array();
  for (const ValueDifference& value : values) {
    json.push_back({{"name", value.name}, {"a", or_null(value.first)}, {"b", or_null(value.second)}});
  }
  return json;
}

Json json_of(const CheckpointReader& a, const CheckpointReader& b, const CheckpointDifference& difference) {
  Json json = {{"a", a.folder().string()},         {"b", b.folder().string()},
               {"equal", difference.none()},       {"progress", json_of(difference.progress)},
               {"keys", json_of(difference.keys)}, {"equal_tensors", difference.equal_tensors},
               {"tensors", Json::array()}};
  for (const TensorDifference& entry : difference.tensors) {
    Json tensor = {
        {"name", entry.name}, {"state", entry.state}, {"a", json_of(entry.first)}, {"b", json_of(entry.second)}};
    if (entry.comparable()) {
      tensor["elements"] = entry.elements;
      tensor["largest_absolute"] = entry.largest_absolute;  // null if infinite
      tensor["largest_relative"] = entry.largest_relative;
    }
    json["tensors"].push_back(std::move(tensor));
  }
  return json;
}

std::string values_text(const char* title, const std::vector<ValueDifference>& values) {
  if (values.empty()) return "";
  BenchTable table{{title, "A", "B"}};
  for (const ValueDifference& value : values) {
    table.add(value.name, value.first.value_or("-"), value.second.value_or("-"));
  }
  return "\n" + aligned_text(table);
}

std::string text_of(const CheckpointReader& a, const CheckpointReader& b, const CheckpointDifference& difference) {
  std::string text = fmt::format("A  {}\nB  {}\n", a.folder().string(), b.folder().string());
  text += values_text("progress", difference.progress) + values_text("key", difference.keys);
  text += fmt::format("\n{} tensors equal, {} not\n", difference.equal_tensors, difference.tensors.size());
  if (difference.tensors.empty()) return text;
  BenchTable table{{"tensor", "state", "what differs", "elements", "largest absolute", "largest relative"}};
  for (const TensorDifference& entry : difference.tensors) {
    table.add(entry.name, entry.state, what_differs(entry));
    if (!entry.comparable()) {
      table.rows.back().resize(table.header.size());
      continue;
    }
    table.rows.back().push_back(fmt::format("{} of {}", entry.elements, entry.first->rows * entry.first->columns));
    table.rows.back().push_back(fmt::format("{:.3g}", entry.largest_absolute));
    table.rows.back().push_back(fmt::format("{:.3g}", entry.largest_relative));
  }
  return text + "\n" + aligned_text(table);
}

void compare_checkpoints(const DiffRequest& request) {
  const auto a = open_checkpoint(request.first), b = open_checkpoint(request.second);
  CheckpointDifference difference;
  try {
    ProgressLine progress;
    difference =
        find_difference(*a, *b, [&](std::int64_t done, std::int64_t all) { progress.bytes(done, all, "compared"); });
  } catch (const Error& error) {
    fail("{}", error.what());  // damage is found only while reading
  }
  fmt::print("{}", request.json ? json_of(*a, *b, difference).dump() + "\n" : text_of(*a, *b, difference));
  if (!difference.none()) throw CLI::RuntimeError(differing);
}

}  // namespace

void add_checkpoint_diff_command(CLI::App& checkpoint) {
  CLI::App* command = checkpoint.add_subcommand(
      "diff", "progress, keys and tensors that differ between two checkpoints, whatever layouts wrote them");
  const auto request = std::make_shared<DiffRequest>();
  add_checkpoint_argument(*command, "A", request->first);
  add_checkpoint_argument(*command, "B", request->second);
  command->add_flag("--json", request->json, "print one JSON document");
  command->footer(
      "Tensors are equal where shape, dtype and every byte are. Of others with equal shapes, values are compared in\n"
      "double precision; relative is |a - b| / max(|a|, |b|).\n"
      "Exit code: 0 equal, 1 differing, 2 A or B is no checkpoint, 3 one of them is damaged.");
  command->callback([request] { compare_checkpoints(*request); });
}

}  // namespace weft
