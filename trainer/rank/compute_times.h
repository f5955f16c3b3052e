// The time that a rank computes in a step, measured so that ranks of a stage can be compared. In a synchronous step all
// ranks take equally long: fast ones wait for slow ones. So only work is timed that every rank of a stage does alike
// and without waiting for others. Each kind counts at its least time over microbatches and steps, because disturbances
// and waits for gathers only add time. `weft diagnose` judges traces in the same way.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/execute/execute.h"
#include "parallel/runtime/device.h"

namespace weft {

// Whether every rank of the stage does the same work in the segment and waits for no other: no collectives, no routed
// tokens.
bool is_comparable(const Program& program, const ProgramSegment& segment);

// An observer of a rank's steps. One microbatch of each step is timed, another one in each; that takes two records of
// the compute stream an action.
class ComputeTimes final : public ActionObserver {
 public:
  // The first steps of a process, in which caches, pools and threads get warm.
  static constexpr std::int64_t warm_up = 2;

  // The arguments outlive the observer. `actions`: the rank's list in the program.
  ComputeTimes(const Program& program, std::span<const Action> actions, Stream& compute);

  void begin_step();
  void begin(std::size_t action) override;
  void end(std::size_t action) override;
  // Waits for the timed actions.
  void end_step();

  // Of a step; 0 if nothing was timed: too few steps, or no comparable work.
  double seconds() const;

 private:
  // An operation on a segment.
  struct ComputeKind {
    int a_step = 0;
    std::optional<double> least = {};  // seconds
  };
  struct TimedCompute {
    std::size_t kind = 0;
    Fence begin, end;
  };
  bool times(std::size_t action) const;

  std::span<const Action> actions_;
  Stream& compute_;
  std::int64_t microbatches_;
  std::vector<std::optional<std::size_t>> kind_of_;  // by action; nothing for those that are not compared
  std::vector<ComputeKind> kinds_;
  std::int64_t steps_ = 0;
  std::vector<TimedCompute> timed_;  // of the step in progress
};

struct RankCompute {
  double seconds = 0.0;     // of a step (ComputeTimes::seconds)
  double over_peers = 1.0;  // those over the median of the other ranks of its stage

  static constexpr double slow = 1.05;
  bool is_slow() const { return over_peers > slow; }
};
// `seconds` by rank of the mesh. Empty if no rank was timed, or none has others in its stage.
std::vector<RankCompute> compare_ranks(const Mesh& mesh, std::span<const double> seconds);
// "rank 2 computes 33 % longer than the others of its stage"; empty if no rank is slow.
std::string slow_ranks_text(std::span<const RankCompute> ranks);

}  // namespace weft
