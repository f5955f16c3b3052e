// `weft checkpoint diff`: differences between two checkpoints, for any layouts: progress, keys of the configuration,
// tensors.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/element_type.h"
#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "tools/report/progress_line.h"
#include "tools/report/report_parts.h"
#include "trainer/checkpoint/reader.h"

namespace weft {
namespace {

// A figure of the progress or a configuration key, as text; absent in a checkpoint without the key.
struct ValueDifference {
  std::string name;
  std::optional<std::string> first, second;
};

struct TensorDifference {
  std::string name, state;
  const SavedTensor* first = nullptr;  // in the readers' manifests; null if a checkpoint has no such tensor
  const SavedTensor* second = nullptr;
  // For equal shapes: the number of elements with different values, and the largest differences, in double precision.
  // Relative is |a - b| / max(|a|, |b|). Differences are infinite if exactly one value is NaN, or one is infinite.
  std::int64_t elements = 0;
  double largest_absolute = 0.0, largest_relative = 0.0;

  bool comparable() const {
    return first != nullptr && second != nullptr && first->rows == second->rows && first->columns == second->columns;
  }
};

struct CheckpointDifference {
  std::vector<ValueDifference> progress, keys;
  std::vector<TensorDifference> tensors;  // different tensors, by name and state
  std::int64_t equal_tensors = 0;         // same dtype and same bytes
  bool none() const { return progress.empty() && keys.empty() && tensors.empty(); }
};

constexpr std::int64_t piece_bytes = 4 << 20;

void compare_progress(const Progress& a, const Progress& b, std::vector<ValueDifference>& found) {
  const auto compare = [&](const char* name, auto first, auto second) {
    if (first != second) found.push_back({name, fmt::format("{}", first), fmt::format("{}", second)});
  };
  compare("step", a.step, b.step);
  compare("samples", a.samples, b.samples);
  compare("tokens", a.tokens, b.tokens);
  compare("good_steps", a.good_steps, b.good_steps);
  compare("good_in_a_row", a.good_in_a_row, b.good_in_a_row);
  compare("loss_scale", a.loss_scale.value_or(1.0), b.loss_scale.value_or(1.0));
  const auto losses = [](const std::optional<LossTrend>& trend) {
    return trend ? fmt::format("{} of mean {}, variance {}", trend->losses, trend->mean, trend->variance) : "none";
  };
  const auto norms = [](const std::optional<NormTrend>& trend) {
    return trend ? fmt::format("{} of mean {}", trend->norms, trend->mean) : "none";
  };
  compare("loss_trend", losses(a.loss_trend), losses(b.loss_trend));
  compare("norm_trend", norms(a.norm_trend), norms(b.norm_trend));
}

using Keys = std::map<std::string, std::string>;

void compare_keys(const Keys& a, const Keys& b, std::vector<ValueDifference>& found) {
  const auto value = [](const Keys& keys, const std::string& name) {
    const auto at = keys.find(name);
    return at == keys.end() ? std::nullopt : std::optional(at->second);
  };
  Keys all = a;
  all.insert(b.begin(), b.end());
  for (const auto& [name, text] : all) {
    if (value(a, name) != value(b, name)) found.push_back({name, value(a, name), value(b, name)});
  }
}

// Element `i` as double, which is exact for every dtype.
double element(DType dtype, const std::vector<std::uint8_t>& bytes, std::size_t i) {
  double exact = 0.0;
  with_stored_type(dtype, "saved", [&](auto saved) {
    std::memcpy(&saved, bytes.data() + i * sizeof saved, sizeof saved);
    if constexpr (sizeof saved == 2) {
      exact = static_cast<double>(static_cast<float>(saved));
    } else {
      exact = static_cast<double>(saved);
    }
  });
  return exact;
}

void read_piece(const CheckpointReader& reader, const SavedTensor& tensor, std::int64_t begin, std::int64_t rows,
                std::vector<std::uint8_t>& to) {
  to.resize(static_cast<std::size_t>(rows * tensor.row_bytes()));
  reader.read_rows(tensor, begin, rows, to);
}

void add_element(double a, double b, TensorDifference& difference) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return;
  ++difference.elements;
  double absolute = std::abs(a - b), relative = absolute / std::max(std::abs(a), std::abs(b));
  if (!std::isfinite(a) || !std::isfinite(b)) absolute = relative = std::numeric_limits<double>::infinity();
  difference.largest_absolute = std::max(difference.largest_absolute, absolute);
  difference.largest_relative = std::max(difference.largest_relative, relative);
}

// Compares two tensors, a few rows at a time: whether dtype and all bytes are equal. If not, `difference` gets the size
// of the difference.
bool are_equal(const CheckpointReader& first, const CheckpointReader& second, TensorDifference& difference,
               const std::function<void(std::int64_t bytes)>& compared) {
  const SavedTensor &a = *difference.first, &b = *difference.second;
  bool equal = a.dtype == b.dtype;
  std::vector<std::uint8_t> bytes_a, bytes_b;
  const std::int64_t most = std::max<std::int64_t>(1, piece_bytes / std::max(a.row_bytes(), b.row_bytes()));
  for (std::int64_t begin = 0; begin < a.rows; begin += most) {
    const std::int64_t rows = std::min(most, a.rows - begin);
    read_piece(first, a, begin, rows, bytes_a);
    read_piece(second, b, begin, rows, bytes_b);
    compared(std::ssize(bytes_a) + std::ssize(bytes_b));
    if (a.dtype == b.dtype && bytes_a == bytes_b) continue;
    equal = false;
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows * a.columns); ++i) {
      add_element(element(a.dtype, bytes_a, i), element(b.dtype, bytes_b, i), difference);
    }
  }
  return equal;
}

// The tensors of both manifests in one list, by name and state, each with its entry in either manifest.
std::vector<TensorDifference> matched(const Manifest& first, const Manifest& second) {
  std::vector<TensorDifference> all;
  for (const SavedTensor& tensor : first.tensors) {
    all.push_back({tensor.name, tensor.state, &tensor, second.find(tensor.name, tensor.state)});
  }
  for (const SavedTensor& tensor : second.tensors) {
    if (first.find(tensor.name, tensor.state) == nullptr) all.push_back({tensor.name, tensor.state, nullptr, &tensor});
  }
  std::ranges::sort(all, {}, [](const TensorDifference& entry) { return std::tie(entry.name, entry.state); });
  return all;
}

// The result refers to the readers' manifests. Throws Error (request) as CheckpointReader::read_rows.
CheckpointDifference find_difference(const CheckpointReader& first, const CheckpointReader& second) {
  CheckpointDifference difference;
  compare_progress(first.manifest().progress, second.manifest().progress, difference.progress);
  compare_keys(first.manifest().model, second.manifest().model, difference.keys);
  compare_keys(first.manifest().data, second.manifest().data, difference.keys);
  std::vector<TensorDifference> all = matched(first.manifest(), second.manifest());
  std::int64_t done = 0, of = 0;
  for (const TensorDifference& entry : all) {
    if (entry.comparable()) of += entry.first->rows * (entry.first->row_bytes() + entry.second->row_bytes());
  }
  ProgressLine progress;
  for (TensorDifference& entry : all) {
    const bool equal = entry.comparable() && are_equal(first, second, entry, [&](std::int64_t bytes) {
                         done += bytes;
                         progress.bytes(done, of, "compared");
                       });
    if (equal) {
      ++difference.equal_tensors;
    } else {
      difference.tensors.push_back(std::move(entry));
    }
  }
  return difference;
}

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
  return json_list(values, [](const ValueDifference& value) {
    return Json{{"name", value.name}, {"a", or_null(value.first)}, {"b", or_null(value.second)}};
  });
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
    if (entry.comparable()) {
      table.add(entry.name, entry.state, what_differs(entry),
                fmt::format("{} of {}", entry.elements, entry.first->rows * entry.first->columns),
                fmt::format("{:.3g}", entry.largest_absolute), fmt::format("{:.3g}", entry.largest_relative));
    } else {
      table.add(entry.name, entry.state, what_differs(entry), "", "", "");
    }
  }
  return text + "\n" + aligned_text(table);
}

void compare_checkpoints(const DiffRequest& request) {
  const auto a = open_checkpoint(request.first), b = open_checkpoint(request.second);
  CheckpointDifference difference;
  try {
    difference = find_difference(*a, *b);
  } catch (const Error& error) {
    fail("{}", error.what());  // damage is found only while reading
  }
  fmt::print("{}", request.json ? line_of(json_of(*a, *b, difference)) : text_of(*a, *b, difference));
  if (!difference.none()) throw CLI::RuntimeError(differing);
}

}  // namespace

void add_checkpoint_diff_command(CLI::App& checkpoint) {
  const auto [command, request] = add_command<DiffRequest>(
      checkpoint, "diff", "progress, keys and tensors that differ between two checkpoints, whatever layouts wrote them",
      compare_checkpoints);
  add_checkpoint_argument(command, "A", request.first);
  add_checkpoint_argument(command, "B", request.second);
  command.add_flag("--json", request.json, "print one JSON document");
  command.footer(
      "Tensors are equal where shape, dtype and every byte are. Of others with equal shapes, values are compared in\n"
      "double precision; relative is |a - b| / max(|a|, |b|).\n"
      "Exit code: 0 equal, 1 differing, 2 A or B is no checkpoint, 3 one of them is damaged.");
}

}  // namespace weft
