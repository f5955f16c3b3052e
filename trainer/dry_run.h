// What a rank's step takes, found by walking through it: the run's own code (rank_step.h) goes through the compiled
// list on a device without memory (runtime/dry_device.h), with peers that are not there. So every tensor is counted
// that a run would have, workspace and what passes between segments included, and so is every call of a communicator.
//
// Routed tokens are what nobody knows before: they are dealt evenly over the experts. On a GPU, what cuDNN and the sums
// of kernels take as workspace is missing.
#pragma once

#include <optional>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"

namespace weft {

// Tensors that are there at the peak, by the action of the rank's list that allocated them; of those without one, which
// are there before the first action, the run keeps all.
struct LiveBytes {
  Bucket bucket = Bucket::workspace;
  std::optional<std::size_t> action = {};
  std::int64_t bytes = 0;

  bool operator==(const LiveBytes&) const = default;
};

struct DryRun {
  BucketBytes kept;                             // before the first action
  BucketBytes peak;                             // at the largest sum, as the ledger of a run counts
  std::optional<std::size_t> peak_action = {};  // in the rank's list: when the sum is largest first
  std::vector<LiveBytes> live;                  // at the peak, by bucket and action; together they are `peak`
  CommunicationCounters communication;          // of the step, as the rank's communicators count
};

// `program` is that of the rank (step_program). Linear in its length.
DryRun dry_run(const Config& config, const Mesh& mesh, Program program, int rank);

}  // namespace weft
