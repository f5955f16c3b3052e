// Classes of ranks that hold and do the same, so that a world of thousands of ranks is planned once for each class.
// Their programs, and the memory of the fullest rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <type_traits>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/ledger.h"
#include "parallel/runtime/spread_work.h"
#include "trainer/config/config.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/resolved_run.h"

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

// The programs of a run, which outlives them. Ranks with equal shares of the vocabulary see the same sizes and share
// one program. Each program is compiled when it is first asked for, and keeps its address.
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

// result_of(class, program) of each class, computed on dry_threads() threads.
template <typename ResultOf>
auto of_each_class(StepPrograms& programs, const ResultOf& result_of) {
  const std::vector<RankClass> classes = rank_classes(programs.run().config(), programs.run().mesh());
  std::vector<const Program*> program_of;
  for (const RankClass& ranks : classes) program_of.push_back(&programs.of(ranks.at));
  std::vector<std::invoke_result_t<ResultOf, const RankClass&, const Program&>> results(classes.size());
  spread_work(classes.size(), dry_threads(),
              [&](std::size_t i) { results[i] = result_of(classes[i], *program_of[i]); });
  return results;
}

// The peak of each class, by dry runs (dry_run.h).
struct ClassPeak {
  RankClass ranks;
  BucketBytes peak;
};
std::vector<ClassPeak> class_peaks(StepPrograms& programs, Routing routing = Routing::even);
// That of the fullest class.
BucketBytes fullest_peak(StepPrograms& programs, Routing routing = Routing::even);
BucketBytes fullest_peak(const ResolvedRun& run, Routing routing = Routing::even);
// The largest peak of the forwards of [validation]; requires that it takes place.
BucketBytes fullest_validation_peak(StepPrograms& programs, Routing routing = Routing::even);
// Bytes that the rank with most keeps in host memory: optimizer states and activations.
std::int64_t host_need(StepPrograms& programs);

}  // namespace weft
