// The description of a checkpoint: manifest.json beside the safetensors files of its ranks. Tensors have global names,
// and the manifest lists the place of each box of rows. So any layout can read a checkpoint of any other layout.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/runtime/dtype.h"
#include "trainer/rank/run_hashes.h"
#include "trainer/rank/spikes.h"

namespace weft {

// Whole rows of a tensor, and the place of their bytes.
struct SavedBox {
  std::int64_t row_begin = 0, rows = 0;
  int file = 0;             // index in Manifest::files
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH64 of the bytes
  bool operator==(const SavedBox&) const = default;
};

// A parameter of the model, or an optimizer state with one element for each element of the parameter. Rows and columns
// are those of ParameterSpec: projections into the hidden width are transposed.
struct SavedTensor {
  std::string name;                    // global: "blocks.3.experts.5.gate_proj.weight"
  std::string state;                   // empty for the parameter itself, else state_name() (config/update_rules.h)
  std::int64_t rows = 0, columns = 0;  // of the whole tensor; a vector has one column
  DType dtype = DType::float32;
  std::vector<SavedBox> boxes;  // by row
  std::int64_t row_bytes() const { return columns * size_of(dtype); }
  bool operator==(const SavedTensor&) const = default;
};

struct SavedFile {
  std::string name;  // in the checkpoint's folder
  std::int64_t bytes = 0;
  std::int64_t prefix_bytes = 0;  // before the tensors; the whole file if it has no tensors
  std::uint64_t checksum = 0;     // XXH64 of the prefix
  bool operator==(const SavedFile&) const = default;
};

// The progress of a run; independent of the layout.
struct Progress {
  std::int64_t step = 0;     // steps taken
  std::int64_t samples = 0;  // sequences read
  std::int64_t tokens = 0;   // tokens trained on
  // State of the loss scaler (LossScaler); the learning rate schedule counts `good_steps`.
  std::int64_t good_steps = 0, good_in_a_row = 0;
  std::optional<double> loss_scale = {};     // if anything is computed in float16
  std::optional<LossTrend> loss_trend = {};  // if a loss may be a spike
  std::optional<NormTrend> norm_trend = {};  // if norms are held against their mean, from the first one on
  bool operator==(const Progress&) const = default;
};

struct Manifest {
  static constexpr int current_version = 1;
  int version = current_version;
  Progress progress;
  Degrees mesh;  // of the run that wrote it
  // Resolved values of the configuration keys that must be equal for a run to resume (keys.h).
  std::map<std::string, std::string> model, data;
  std::map<std::string, std::string> rules = {};  // of the optimizer by group; old checkpoints have none
  std::optional<RunHashes> hashes = {};           // of the run that wrote it; old checkpoints and parts have none
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;  // by name, then state

  const SavedTensor* find(std::string_view name, std::string_view state = {}) const;
  bool operator==(const Manifest&) const = default;
};

// The text ends with a checksum of everything before it. Throws Error (failure) for a manifest that no reader would
// accept: one with faults by find_manifest_faults(), or with texts that are not UTF-8.
std::string to_json(const Manifest& manifest);
// Throws Error (request) with `name` and the fault. Faults are no JSON, a value that is missing or has the wrong type,
// a wrong checksum, and those of find_manifest_faults(). Another format or version is an Error (unreadable).
Manifest parse_manifest(std::string_view text, const std::string& name);

// The same for the part of one rank, which need not have whole tensors. find_manifest_faults() is not applied.
std::string part_json(const Manifest& manifest);
Manifest parse_part(std::string_view text, const std::string& name);
// Joins the parts of all ranks. Throws Error (failure) if the parts are not of one save (progress, mesh and keys must
// be equal), or do not form whole tensors.
Manifest join_parts(const std::vector<Manifest>& parts);

// A sentence for each fault. Progress may be impossible, degrees may form no mesh, and a file may be listed twice or be
// outside the folder. Boxes of a tensor may overlap, leave out rows or be out of order. A box may be outside its file,
// or have a size other than that of its rows. Bytes of a file may be of two tensors or of none.
std::vector<std::string> find_manifest_faults(const Manifest& manifest);

}  // namespace weft
