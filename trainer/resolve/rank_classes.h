// Classes of ranks that hold and do the same, so that a world of thousands of ranks is planned once for each class.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "trainer/config/config.h"

namespace weft {

// Ranks of one pipeline position with equal shares of the vocabulary, and under muon equal costs of its step.
struct RankClass {
  int first = 0;  // the rank that is planned
  int ranks = 1;  // number of ranks in the class
  Coordinates at;
};
std::vector<RankClass> rank_classes(const Config& config, const Mesh& mesh);
// On the tensor rank of these coordinates.
std::int64_t vocabulary_rows(const Config& config, const Coordinates& at);

}  // namespace weft
