// Ranks of a mesh that hold and do the same, and what the fullest of them takes: so that a world of thousands is walked
// through once for each kind of rank.
#pragma once

#include <functional>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "trainer/resolved_run.h"

namespace weft {

// Ranks of one pipeline position whose shares of the vocabulary are alike.
struct RankClass {
  int first = 0;  // the one that is planned
  int ranks = 1;  // how many there are
  Coordinates at;

  bool operator==(const RankClass&) const = default;
};
std::vector<RankClass> rank_classes(const Config& config, const Mesh& mesh);

// Calls `visit` with each class and its program until it says false.
void for_each_class(const ResolvedRun& run,
                    const std::function<bool(const RankClass& ranks, const Program& program)>& visit);

// The peak of the rank that takes most, by dry runs (dry_run.h). `enough` ends the walk over the classes with the fullest
// so far.
BucketBytes fullest_peak(const ResolvedRun& run,
                         const std::function<bool(const BucketBytes& peak)>& enough = [](const auto&) { return false; });

}  // namespace weft
