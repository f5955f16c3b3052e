// What a rank's step takes, found by walking through it: the run's own code (rank_step.h) goes through the compiled
// list on a device without memory (runtime/dry_device.h), with peers that are not there. So every tensor is counted
// that a run would have, workspace and what passes between segments included, and so is every call of a communicator.
//
// How tokens are routed is known only in the run, so the walk is told how to deal them. On a GPU, the workspace of
// cuDNN and of the sums of kernels is missing.
#pragma once

#include <optional>
#include <vector>

#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/execute/execute.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/runtime/kernel_log.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"
#include "trainer/rank/live_log.h"

namespace weft {

// How routed tokens are dealt over the experts of a layer.
enum class Routing : std::uint8_t {
  even,   // equally many to each
  worst,  // to the experts of the walking rank, as many as its router can send there: no routing takes more memory
};

// Whether memory depends on the routing: experts over several ranks. One rank that holds them all has as many rows
// whatever is chosen.
bool routing_decides(const Config& config);

struct RoutedBytes {
  std::int64_t even = 0;                   // with tokens routed evenly
  std::optional<std::int64_t> worst = {};  // whatever is routed where; absent where routing does not decide
};

struct DryRun {
  LedgerWalk walk;                              // what the ledger of a run counts along the rank's list
  BucketBytes peak;                             // at the largest sum
  std::optional<std::size_t> peak_action = {};  // in the rank's list: when the sum is largest first
  std::vector<LiveTensors> live;                // at the peak, by bucket and action; together they are `peak`
  // The most at once during each action of the rank's list, apart from the tensors that come and go with units that are
  // not replicated: gathered parameters, unsharded gradients, and the copies and parts of their reductions.
  std::vector<std::int64_t> beside_units;
  CommunicationCounters communication;  // of the step, as the rank's communicators count
  std::int64_t saved_bytes = 0;         // of a checkpoint, the tensors that this rank writes
};

// `program` is that of the rank (step_program). Linear in the length of the rank's list.
DryRun dry_run(const Config& config, const Mesh& mesh, const Program& program, int rank,
               Routing routing = Routing::even);

// Its peak alone, for less work.
BucketBytes dry_peak(const Config& config, const Mesh& mesh, const Program& program, int rank,
                     Routing routing = Routing::even);

// Tells `kernels` of every call of a kernel in the rank's step, and `actions` of what it is part of.
void dry_walk(const Config& config, const Mesh& mesh, const Program& program, int rank, KernelObserver& kernels,
              ActionObserver& actions);

// The products that the rank's step computes, each shape once.
std::vector<ProductCall> dry_products(const Config& config, const Mesh& mesh, const Program& program, int rank);

// As many threads as dry runs take where nothing else is to do: the host's cores, and no more than eight, each of which
// has a rank's action list and tensors.
std::size_t dry_threads();

// By pipeline rank, of those that otherwise stand where `at` does, whose program it is.
std::vector<DryRun> dry_runs(const Config& config, const Mesh& mesh, const Program& program, const Coordinates& at = {},
                             Routing routing = Routing::even);
// The largest of their peaks, for less work.
std::int64_t largest_dry_peak(const Config& config, const Mesh& mesh, const Program& program,
                              Routing routing = Routing::even);

}  // namespace weft
