// Ranks of a mesh that hold and do the same, and what the fullest of them takes: so that a world of thousands is walked
// through once for each kind of rank.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {

// Ranks of one pipeline position whose shares of the vocabulary are alike.
struct RankClass {
  int first = 0;  // the one that is planned
  int ranks = 1;  // how many there are
  Coordinates at;

  bool operator==(const RankClass&) const = default;
};
std::vector<RankClass> rank_classes(const Config& config, const Mesh& mesh);

// The programs of a run, which outlives them. One serves the ranks that see the same sizes: those of equal shares of
// the vocabulary. Each is compiled where it is first asked for, and stays where it is.
class StepPrograms {
 public:
  explicit StepPrograms(const ResolvedRun& run) : run_(run) {}

  const ResolvedRun& run() const { return run_; }
  const Program& of(const Coordinates& at);
  const Program& of_first_rank() { return of(run_.mesh().coordinates(0)); }

 private:
  const ResolvedRun& run_;
  std::map<std::int64_t, Program> programs_;  // by rows of the vocabulary
};

// Calls `visit` with the number of each class and its program, on so many threads.
void for_each_class(StepPrograms& programs, std::span<const RankClass> classes, std::size_t threads,
                    const std::function<void(std::size_t number, const Program& program)>& visit);

// The peak of the rank that takes most, by dry runs (dry_run.h).
BucketBytes fullest_peak(StepPrograms& programs);
BucketBytes fullest_peak(const ResolvedRun& run);
// Looks at one class after the other, until `enough` of the fullest so far.
BucketBytes fullest_peak_until(const ResolvedRun& run, const std::function<bool(const BucketBytes& peak)>& enough);

}  // namespace weft
