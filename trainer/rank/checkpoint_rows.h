// What a rank has of the tensors of a checkpoint, in its memory: the rows it owns of parameters and of what the
// optimizer keeps beside them, under the global names that any layout understands.
#pragma once

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
  bool saved = false;  // of all ranks with these rows, this one saves them
  std::int64_t rows() const { return values.size() / columns; }
};

// The tensors live as long as stages and optimizer. Together, the ranks of a mesh save every row of every tensor once.
std::vector<CheckpointRows> checkpoint_rows(RankStages& stages, const Optimizer& optimizer, const Mesh& mesh, int rank);

// The parameters alone, of a model without an optimizer, which saves nothing.
std::vector<CheckpointRows> parameter_rows(RankStages& stages);

// A tensor of a whole run: what must be found in a checkpoint that goes on with it.
struct ExpectedTensor {
  std::string name, state;
  std::int64_t rows = 0, columns = 0;
  auto operator<=>(const ExpectedTensor&) const = default;
};
// By name, then state.
std::vector<ExpectedTensor> expected_tensors(const Config& config, bool weights_only);

}  // namespace weft
