// What differs between two checkpoints, whatever layouts wrote them: progress, keys of the configuration, tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trainer/checkpoint/reader.h"

namespace weft {

// A figure of the progress or a key, as text; nothing where one has no such key.
struct ValueDifference {
  std::string name;
  std::optional<std::string> first, second;
};

struct TensorDifference {
  std::string name, state;
  const SavedTensor* first = nullptr;  // of the readers' manifests; nothing where one has no such tensor
  const SavedTensor* second = nullptr;
  // Where the shapes are equal: elements whose values differ, and by how much at most, in double precision. Relative is
  // |a - b| / max(|a|, |b|). Infinite where just one of the two is no number, or one is infinite.
  std::int64_t elements = 0;
  double largest_absolute = 0.0, largest_relative = 0.0;

  bool comparable() const {
    return first != nullptr && second != nullptr && first->rows == second->rows && first->columns == second->columns;
  }
};

struct CheckpointDifference {
  std::vector<ValueDifference> progress, keys;
  std::vector<TensorDifference> tensors;  // that differ, by name and state
  std::int64_t equal_tensors = 0;         // of one dtype, byte for byte
  bool none() const { return progress.empty() && keys.empty() && tensors.empty(); }
};

// Reads both in pieces of a few MiB. The result refers to the readers' manifests. Throws Error (request) as
// CheckpointReader::read_rows.
CheckpointDifference find_difference(const CheckpointReader& first, const CheckpointReader& second,
                                     const CheckedBytes& compared = {});

}  // namespace weft
