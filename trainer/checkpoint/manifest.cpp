#include "trainer/checkpoint/manifest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <tuple>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::string full_name(const SavedTensor& tensor) {
  return tensor.state.empty() ? tensor.name : fmt::format("{} of {}", tensor.state, tensor.name);
}

// Refuses parts of different saves: two runs that write to one folder could leave parts that form whole tensors.
void require_same_save(const Manifest& first, const Manifest& part, std::size_t rank) {
  const char* differs = !(part.progress == first.progress) ? "progress"
                        : !(part.mesh == first.mesh)       ? "mesh"
                        : part.model != first.model        ? "model"
                        : part.data != first.data          ? "data"
                                                           : nullptr;
  if (differs) fail("the parts of ranks 0 and {} are of different saves: they differ in {}", rank, differs);
}

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

// Whether `rows` rows of the tensor take exactly `bytes` bytes; false if the product overflows 64 bits.
bool takes(const SavedTensor& tensor, std::int64_t rows, std::int64_t bytes) {
  std::int64_t product = 0;
  return !__builtin_mul_overflow(tensor.columns, size_of(tensor.dtype), &product) &&
         !__builtin_mul_overflow(product, rows, &product) && product == bytes;
}

void find_box_faults(const Manifest& manifest, const SavedTensor& tensor, std::vector<std::string>& faults) {
  const std::string name = full_name(tensor);
  std::int64_t next = 0;
  for (const SavedBox& box : tensor.boxes) {
    if (box.rows <= 0 || box.row_begin < 0 || box.row_begin > tensor.rows || box.rows > tensor.rows - box.row_begin) {
      faults.push_back(
          fmt::format("{}: {} rows from {} are not inside its {} rows", name, box.rows, box.row_begin, tensor.rows));
      return;
    }
    if (box.row_begin != next) {
      faults.push_back(box.row_begin < next
                           ? fmt::format("{}: rows {} to {} are saved twice", name, box.row_begin,
                                         std::min(next, box.row_begin + box.rows) - 1)
                           : fmt::format("{}: rows {} to {} are missing", name, next, box.row_begin - 1));
    }
    next = std::max(next, box.row_begin + box.rows);
    if (!takes(tensor, box.rows, box.bytes)) {
      faults.push_back(
          fmt::format("{}: {} bytes cannot be {} rows of {} columns", name, box.bytes, box.rows, tensor.columns));
    }
    if (box.file < 0 || box.file >= std::ssize(manifest.files)) {
      faults.push_back(fmt::format("{}: there is no file {}", name, box.file));
      continue;
    }
    const SavedFile& file = manifest.files[static_cast<std::size_t>(box.file)];
    if (box.offset < file.prefix_bytes || box.bytes < 0 || box.offset > file.bytes ||
        box.bytes > file.bytes - box.offset) {
      faults.push_back(fmt::format("{}: {} bytes from {} are not inside the tensors of {}, which has {}", name,
                                   box.bytes, box.offset, file.name, file.bytes));
    }
  }
  if (next != tensor.rows) faults.push_back(fmt::format("{}: rows {} to {} are missing", name, next, tensor.rows - 1));
}

// Each byte after the prefix of a file must belong to exactly one tensor. If two tensors share a byte, one of them is
// wrong. A byte of no tensor is covered by no checksum.
void find_span_faults(const Manifest& manifest, std::vector<std::string>& faults) {
  struct Span {
    int file;
    std::int64_t offset, bytes;
    const SavedTensor* tensor;
  };
  std::vector<Span> spans;
  for (const SavedTensor& tensor : manifest.tensors) {
    for (const SavedBox& box : tensor.boxes) spans.push_back({box.file, box.offset, box.bytes, &tensor});
  }
  std::ranges::stable_sort(spans, {}, [](const Span& span) { return std::pair(span.file, span.offset); });
  auto span = spans.begin();
  for (int f = 0; f < std::ssize(manifest.files); ++f) {
    const SavedFile& file = manifest.files[static_cast<std::size_t>(f)];
    std::int64_t end = file.prefix_bytes;
    const auto uncovered = [&](std::int64_t until) {
      if (end < until)
        faults.push_back(fmt::format("bytes {} to {} of {} belong to no tensor", end, until - 1, file.name));
    };
    for (; span != spans.end() && span->file == f; ++span) {
      if (span->offset < end) {
        faults.push_back(fmt::format("{} and {} share bytes of {}", full_name(*std::prev(span)->tensor),
                                     full_name(*span->tensor), file.name));
      }
      uncovered(span->offset);
      end = std::max(end, span->offset + span->bytes);
    }
    uncovered(file.bytes);
  }
}

// Checks the degrees of the mesh; each of them may have any value, so products are checked for overflow.
void find_mesh_faults(const Degrees& mesh, std::vector<std::string>& faults) {
  int dense = 1, expert = 1;
  bool fits = true;
  for (const int degree : {mesh.pipeline, mesh.data_replicate, mesh.data_shard, mesh.context, mesh.tensor}) {
    fits = fits && degree > 0 && !__builtin_mul_overflow(dense, degree, &dense);
  }
  for (const int degree : {mesh.expert, mesh.expert_tensor}) {
    fits = fits && degree > 0 && !__builtin_mul_overflow(expert, degree, &expert);
  }
  if (!fits) {
    faults.push_back("its degrees form no mesh");
    return;
  }
  for (const std::string& error : degree_errors(mesh)) faults.push_back(fmt::format("its mesh: {}", error));
}

}  // namespace

const SavedTensor* Manifest::find(std::string_view name, std::string_view state) const {
  const auto key = [](const SavedTensor& tensor) {
    return std::pair<std::string_view, std::string_view>(tensor.name, tensor.state);
  };
  const auto found = std::ranges::lower_bound(tensors, std::pair(name, state), {}, key);
  return found != tensors.end() && key(*found) == std::pair(name, state) ? &*found : nullptr;
}

std::vector<std::string> find_manifest_faults(const Manifest& manifest) {
  std::vector<std::string> faults;
  const Progress& progress = manifest.progress;
  const LossTrend trend = progress.loss_trend.value_or(LossTrend{});
  const NormTrend norms = progress.norm_trend.value_or(NormTrend{});
  if (trend.losses < 0 || !std::isfinite(trend.mean) || !(trend.variance >= 0.0) || !std::isfinite(trend.variance) ||
      norms.norms < 0 || !(norms.mean >= 0.0) || !std::isfinite(norms.mean) || progress.step < 0 ||
      progress.samples < 0 || progress.tokens < 0 || progress.good_steps < 0 || progress.good_in_a_row < 0 ||
      (progress.loss_scale && (!(*progress.loss_scale > 0.0) || !std::isfinite(*progress.loss_scale)))) {
    faults.push_back("its progress is not one of a run");
  }
  find_mesh_faults(manifest.mesh, faults);
  std::set<std::string> names;
  for (const SavedFile& file : manifest.files) {
    if (!is_plain_file_name(file.name)) faults.push_back(fmt::format("\"{}\" is not a file of its folder", file.name));
    if (!names.insert(file.name).second) faults.push_back(fmt::format("the file {} stands twice", file.name));
    if (file.bytes < 0 || file.prefix_bytes < 0 || file.prefix_bytes > file.bytes) {
      faults.push_back(
          fmt::format("{}: its first {} bytes are not inside {}", file.name, file.prefix_bytes, file.bytes));
    }
  }
  for (std::size_t t = 0; t < manifest.tensors.size(); ++t) {
    const SavedTensor& tensor = manifest.tensors[t];
    if (t > 0) {
      const SavedTensor& before = manifest.tensors[t - 1];
      if (std::tie(before.name, before.state) >= std::tie(tensor.name, tensor.state)) {
        faults.push_back(fmt::format("{} stands twice, or not in order", full_name(tensor)));
      }
    }
    if (tensor.rows <= 0 || tensor.columns <= 0) {
      faults.push_back(fmt::format("{}: {} x {} elements", full_name(tensor), tensor.rows, tensor.columns));
      continue;
    }
    find_box_faults(manifest, tensor, faults);
  }
  if (faults.empty()) find_span_faults(manifest, faults);
  return faults;
}

Manifest join_parts(const std::vector<Manifest>& parts) {
  Manifest all = parts.at(0);
  for (std::size_t rank = 1; rank < parts.size(); ++rank) require_same_save(all, parts[rank], rank);
  all.files.clear();
  all.tensors.clear();
  std::map<std::pair<std::string, std::string>, SavedTensor> tensors;
  for (const Manifest& part : parts) {
    const int first_file = static_cast<int>(all.files.size());
    all.files.insert(all.files.end(), part.files.begin(), part.files.end());
    for (const SavedTensor& tensor : part.tensors) {
      auto [found, fresh] = tensors.try_emplace({tensor.name, tensor.state}, tensor);
      SavedTensor& whole = found->second;
      if (fresh) whole.boxes.clear();
      if (whole.rows != tensor.rows || whole.columns != tensor.columns || whole.dtype != tensor.dtype) {
        fail("ranks have saved {} in different shapes or dtypes", full_name(tensor));
      }
      for (SavedBox box : tensor.boxes) {
        box.file += first_file;
        whole.boxes.push_back(box);
      }
    }
  }
  for (auto& [name, tensor] : tensors) {
    std::ranges::sort(tensor.boxes, {}, &SavedBox::row_begin);
    all.tensors.push_back(std::move(tensor));
  }
  const auto faults = find_manifest_faults(all);
  if (!faults.empty()) fail("what ranks have saved is not whole: {}", fmt::join(faults, "; "));
  return all;
}

}  // namespace weft
