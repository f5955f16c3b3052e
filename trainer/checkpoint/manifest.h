// What a checkpoint says of itself: manifest.json beside the safetensors files that its ranks wrote. Tensors go by
// global names, and which rows of a tensor stand where is written down box by box, so that any layout can read what any
// other wrote.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/runtime/dtype.h"

namespace weft {

// Whole rows of a tensor, and where their bytes are.
struct SavedBox {
  std::int64_t row_begin = 0, rows = 0;
  int file = 0;             // of Manifest::files
  std::int64_t offset = 0;  // in the file
  std::int64_t bytes = 0;
  std::uint64_t checksum = 0;  // XXH64 of the bytes
  bool operator==(const SavedBox&) const = default;
};

// A parameter of the model, or a state that its optimizer keeps beside each element. Rows and columns are those of
// ParameterSpec: projections into the hidden width are transposed.
struct SavedTensor {
  std::string name;                    // global: "blocks.3.experts.5.gate_proj.weight"
  std::string state;                   // empty for the parameter itself, else as state_name() in config/update_rules.h
  std::int64_t rows = 0, columns = 0;  // of the whole tensor; a vector has one column
  DType dtype = DType::float32;
  std::vector<SavedBox> boxes;  // by row
  std::int64_t row_bytes() const { return columns * size_of(dtype); }
  bool operator==(const SavedTensor&) const = default;
};

struct SavedFile {
  std::string name;  // in the checkpoint's folder
  std::int64_t bytes = 0;
  std::int64_t prefix_bytes = 0;  // up to where tensors begin; all of a file without tensors
  std::uint64_t checksum = 0;     // XXH64 of these
  bool operator==(const SavedFile&) const = default;
};

// How far a run has come. Nothing of it depends on the layout.
struct Progress {
  std::int64_t step = 0;     // steps taken
  std::int64_t samples = 0;  // sequences read
  std::int64_t tokens = 0;   // trained on
  // Of the loss scaler (loss_scaler.h); the schedule of the learning rate goes by `good_steps`.
  std::int64_t good_steps = 0, good_in_a_row = 0;
  std::optional<double> loss_scale = {};  // where something is computed in float16
  bool operator==(const Progress&) const = default;
};

struct Manifest {
  static constexpr int current_version = 1;
  int version = current_version;
  Progress progress;
  Degrees mesh;  // of the run that wrote it
  // Keys of the configuration and their values as resolved (config_keys.h): what must be equal to go on.
  std::map<std::string, std::string> model, data;
  std::vector<SavedFile> files;
  std::vector<SavedTensor> tensors;  // by name, then state

  const SavedTensor* find(std::string_view name, std::string_view state = {}) const;
  bool operator==(const Manifest&) const = default;
};

// Ends with a checksum of all that stands before it. Throws Error (failure) for what no reader would take: what
// find_manifest_faults finds, and texts that are not UTF-8.
std::string to_json(const Manifest& manifest);
// Throws Error (request) naming `name` and what is wrong: no JSON, another format or version, a value that is missing
// or of another kind, a checksum that differs, and everything that find_manifest_faults finds.
Manifest parse_manifest(std::string_view text, const std::string& name);

// The same of what one rank has written, which need not be all of a tensor; nothing is looked for but that it can be
// read.
std::string part_json(const Manifest& part);
Manifest parse_part(std::string_view text, const std::string& name);
// Puts the parts of all ranks together. Throws Error (failure) where they are not of one save (progress, mesh and keys
// must be equal), and where they do not make whole tensors.
Manifest join_parts(const std::vector<Manifest>& parts);

// Progress that no run makes, degrees that form no mesh, files named twice or outside the folder, tensors whose boxes
// overlap, leave rows out or are not in order, boxes outside their file or of another size than their rows, bytes of a
// file that two tensors share or that belong to none: a sentence for each.
std::vector<std::string> find_manifest_faults(const Manifest& manifest);

// A checksum as it is written.
std::string checksum_text(std::uint64_t checksum);

}  // namespace weft
