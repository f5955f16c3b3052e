#include "trainer/checkpoint/load.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "parallel/runtime/element_type.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/outside_text.h"
#include "parallel/runtime/staging.h"

namespace weft {
namespace {

constexpr std::size_t most_listed = 20;
// Rows are copied to the device in pieces that fit into the cache of a core.
constexpr std::int64_t loaded_piece_bytes = std::int64_t{1} << 20;

std::string full_name(const std::string& name, const std::string& state) {
  return state.empty() ? name : fmt::format("{}.{}", name, state);
}

void list(std::string& text, const char* what, const std::vector<std::string>& names) {
  if (names.empty()) return;
  const std::size_t shown = std::min(names.size(), most_listed);
  text += fmt::format("{}{} {}: {}{}", text.empty() ? "" : "\n", names.size(), what,
                      fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      shown < names.size() ? ", ..." : "");
}

// Reads `rows` rows of a tensor from `row_begin` on into `staging`, converted to `dtype`.
void read_into(const CheckpointReader& reader, const SavedTensor& tensor, std::int64_t row_begin, DType dtype,
               std::int64_t rows, Staging& staging) {
  with_element_type(dtype, [&](auto held) {
    const std::span<decltype(held)> to = staging.as<decltype(held)>();
    if (tensor.dtype == dtype) {
      const auto bytes = std::as_writable_bytes(to);
      return reader.read_rows(tensor, row_begin, rows, {reinterpret_cast<std::uint8_t*>(bytes.data()), bytes.size()});
    }
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(rows * tensor.row_bytes()));
    reader.read_rows(tensor, row_begin, rows, bytes);
    if (!is_compute_type(tensor.dtype)) {
      fail_request("{}: {} is not saved in a floating point dtype", reader.folder().string(), tensor.name);
    }
    with_element_type(tensor.dtype, [&](auto saved) {
      const auto* from = reinterpret_cast<const decltype(saved)*>(bytes.data());
      for (std::size_t i = 0; i < to.size(); ++i) to[i] = decltype(held)(static_cast<float>(from[i]));
    });
  });
}

}  // namespace

LoadPlan plan_load(const Manifest& manifest, std::span<const ExpectedTensor> expected, const LoadRules& rules) {
  std::map<std::string, std::string> new_names(rules.renamed.begin(), rules.renamed.end());
  LoadPlan saved;
  std::vector<std::string> missing, unused, differing, of_other_rules;
  for (const SavedTensor& tensor : manifest.tensors) {
    if (rules.weights_only && !tensor.state.empty()) continue;
    if (!tensor.state.empty() && rules.other_rules.contains(tensor.name)) {
      const std::string name = full_name(tensor.name, tensor.state);
      if (!matches_any(rules.may_go_unused, name)) of_other_rules.push_back(name);
      continue;
    }
    const auto renamed = new_names.find(tensor.name);
    const std::string& name = renamed == new_names.end() ? tensor.name : renamed->second;
    if (!saved.emplace(std::pair(name, tensor.state), &tensor).second) {
      fail_request("two tensors of the checkpoint would be {}: {} is renamed to it", full_name(name, tensor.state),
                   tensor.name);
    }
  }
  std::vector<std::string> not_there;
  for (const auto& [name, new_name] : rules.renamed) {
    const auto named = [&](const SavedTensor& tensor) { return tensor.name == name || tensor.name == new_name; };
    if (std::ranges::none_of(manifest.tensors, named)) not_there.push_back(name);
  }
  LoadPlan plan;
  for (const ExpectedTensor& tensor : expected) {
    const std::string name = full_name(tensor.name, tensor.state);
    const auto found = saved.find({tensor.name, tensor.state});
    if (found == saved.end()) {
      if (!matches_any(rules.may_miss, name)) missing.push_back(name);
      continue;
    }
    const SavedTensor& there = *found->second;
    if (there.rows != tensor.rows || there.columns != tensor.columns) {
      differing.push_back(fmt::format("{} ({} x {} there, {} x {} here)", name, there.rows, there.columns, tensor.rows,
                                      tensor.columns));
    }
    plan.insert(*found);
    saved.erase(found);
  }
  for (const auto& [key, tensor] : saved) {
    const std::string name = full_name(key.first, key.second);
    if (!matches_any(rules.may_go_unused, name)) unused.push_back(name);
  }
  std::string faults;
  list(faults, "names of checkpoint.rename are not in the checkpoint, and their new names are not either", not_there);
  list(faults, "tensors are missing (checkpoint.allow_missing would start them anew)", missing);
  list(faults, "tensors of the checkpoint are unknown here (checkpoint.allow_unused would leave them out)", unused);
  list(faults, "states are of another rule of the optimizer (checkpoint.allow_unused would leave them out)",
       of_other_rules);
  list(faults, "tensors have another shape", differing);
  if (!faults.empty()) throw Error(ErrorKind::request, faults);
  return plan;
}

void load_rows(const CheckpointReader& reader, const LoadPlan& plan, std::span<const CheckpointRows> rows,
               Stream& stream) {
  for (const CheckpointRows& held : rows) {
    const auto found = plan.find({held.name, held.state});
    if (found == plan.end()) continue;
    const DType dtype = held.values.dtype();
    const TensorView values = held.values.reshaped(held.rows(), held.columns);
    const std::int64_t most = std::max<std::int64_t>(1, loaded_piece_bytes / (held.columns * size_of(dtype)));
    for (std::int64_t row = 0; row < held.rows(); row += most) {
      const std::int64_t rows_of_piece = std::min(most, held.rows() - row);
      Staging staging(stream.device(), dtype, rows_of_piece, held.columns);
      read_into(reader, *found->second, held.row_begin + row, dtype, rows_of_piece, staging);
      staging.upload(stream, values.rows_from(row, rows_of_piece));
    }
  }
  stream.synchronize();
}

}  // namespace weft
