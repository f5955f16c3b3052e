// Ranks of a mesh that hold and do the same, and what the fullest of them takes: so that a world of thousands is walked
// through once for each kind of rank.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
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

// Calls `visit` with the number of each class and its program, on so many threads.
void for_each_class(const ResolvedRun& run, std::span<const RankClass> classes, std::size_t threads,
                    const std::function<void(std::size_t number, const Program& program)>& visit);

// As many threads as walk through classes where nothing else is to do: the host's cores, and no more than eight, each
// of which has a rank's action list and tensors.
std::size_t class_threads();

// The peak of the rank that takes most, by dry runs (dry_run.h).
BucketBytes fullest_peak(const ResolvedRun& run, std::size_t threads = class_threads());
// Looks at one class after the other, until `enough` of the fullest so far.
BucketBytes fullest_peak_until(const ResolvedRun& run, const std::function<bool(const BucketBytes& peak)>& enough);

}  // namespace weft
