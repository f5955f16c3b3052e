// From a checkpoint into the rows that a rank holds, whatever layout wrote it.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoint/reader.h"
#include "trainer/rank/checkpoint_rows.h"

namespace weft {

// How names of the checkpoint are understood. A pattern may have `*`, which stands for any characters; it is matched
// against the name of a tensor, a state's being that of its parameter, a dot and the state's own.
struct LoadRules {
  bool weights_only = false;                                 // states and progress are left alone
  std::vector<std::pair<std::string, std::string>> renamed;  // parameter in the checkpoint, parameter in the model
  std::vector<std::string> may_miss;                         // these keep their initial values
  std::vector<std::string> may_go_unused;
};
bool matches_pattern(std::string_view pattern, std::string_view text);

// By name and state in the model: where it is found. Tensors that may be missing and are, are absent.
using LoadPlan = std::map<std::pair<std::string, std::string>, const SavedTensor*>;
// Compares in both directions. Throws Error (request) with everything that is missing, unused, or of another shape.
// The manifest outlives the plan.
LoadPlan plan_load(const Manifest& manifest, std::span<const ExpectedTensor> expected, const LoadRules& rules);

// Fills the rows, in their own dtypes: floating point values are rounded to nearest. Reads only what they need of the
// checkpoint. Waits for the device. Throws Error (request) where the checkpoint is damaged.
void load_rows(const CheckpointReader& reader, const LoadPlan& plan, std::span<const CheckpointRows> rows,
               Stream& stream);

}  // namespace weft
