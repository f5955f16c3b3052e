// Differences between two checkpoints, for any layouts: progress, keys of the configuration, tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/reader.h"

namespace weft {

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

// Reads both checkpoints in pieces of a few MiB. The result refers to the readers' manifests. Throws Error (request) as
// CheckpointReader::read_rows.
CheckpointDifference find_difference(const CheckpointReader& first, const CheckpointReader& second,
                                     const CheckedBytes& compared = {});

}  // namespace weft
