// Loads a checkpoint, written by any layout, into the rows that a rank holds.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoint/reader.h"
#include "trainer/rank/checkpoint_rows.h"

namespace weft {

// The rules that map names of the checkpoint to the model. A pattern, with `*` and `?`, is matched against the name of
// a tensor; the name of a state is parameter name, dot, state name.
struct LoadRules {
  bool weights_only = false;                                 // states and progress are not loaded
  std::vector<std::pair<std::string, std::string>> renamed;  // parameter in the checkpoint, parameter in the model
  std::vector<std::string> may_miss;                         // these tensors keep their initial values
  std::vector<std::string> may_go_unused;
  std::set<std::string> other_rules = {};  // parameters with states of another rule of the optimizer in the checkpoint
};

// Saved tensors by name and state in the model. Tensors that are missing by LoadRules::may_miss have no entry.
using LoadPlan = std::map<std::pair<std::string, std::string>, const SavedTensor*>;
// Compares in both directions. Throws Error (request) with all tensors that are missing, unused, or of another shape.
// The manifest outlives the plan.
LoadPlan plan_load(const Manifest& manifest, std::span<const ExpectedTensor> expected, const LoadRules& rules);

// Fills the rows, in their own dtypes: floating point values are rounded to nearest. Reads only the parts of the
// checkpoint that the rows need. Waits for the device. Throws Error (request) if the checkpoint is damaged.
void load_rows(const CheckpointReader& reader, const LoadPlan& plan, std::span<const CheckpointRows> rows,
               Stream& stream);

}  // namespace weft
