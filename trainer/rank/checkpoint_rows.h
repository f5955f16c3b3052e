// The part of a checkpoint's tensors that a rank holds in memory. It has its rows of parameters and of optimizer
// states, under global names that do not depend on the layout.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/rank/rank_stages.h"

namespace weft {

struct CheckpointRows {
  std::string name, state;  // as SavedTensor
  std::int64_t tensor_rows = 0, columns = 0;
  std::int64_t row_begin = 0;
  TensorView values;   // [rows, columns] of the tensor, from row_begin on
  bool saved = false;  // this rank saves the rows; exactly one of the ranks that hold them does
  std::int64_t rows() const { return values.size() / columns; }
};

// The views are valid as long as stages and optimizer live. Together the ranks of a mesh save every row of every tensor
// once.
std::vector<CheckpointRows> checkpoint_rows(RankStages& stages, const Optimizer& optimizer, const Mesh& mesh, int rank);

// The parameters alone, for a model without an optimizer. No row is marked as saved.
std::vector<CheckpointRows> parameter_rows(RankStages& stages);

// A tensor of the whole model that a checkpoint must have if the run resumes from it.
struct ExpectedTensor {
  std::string name, state;
  std::int64_t rows = 0, columns = 0;
  auto operator<=>(const ExpectedTensor&) const = default;
};
// Sorted by name, then state.
std::vector<ExpectedTensor> expected_tensors(const Config& config, bool weights_only);
// The rule of the optimizer by the names of groups. States of two rules may have the same names.
std::map<std::string, std::string> rules_by_group(const Config& config);
// The parameters of groups with another rule than these; a group that is not named has no other.
std::set<std::string> parameters_of_other_rules(const Config& config, const std::map<std::string, std::string>& rules);

// Names of the routers' weights.
std::vector<std::string> router_weights(const ModelConfig& model);

}  // namespace weft
