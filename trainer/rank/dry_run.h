// Memory and communication of a rank's step, found by a dry run. The run's own code (rank_step.h) executes the compiled
// list on a device without memory (runtime/dry_device.h), without peers. So every tensor of a run is counted, including
// workspace and activations between segments, and so is every call of a communicator.
//
// The routing of tokens is known only in the run, so the dry run takes it as an argument. For a GPU, the workspace of
// cuDNN and of the sums of kernels is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "layers/kernels/attention.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/execute/execute.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/runtime/kernel_log.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"

namespace weft {

// Tensors that are live at the peak, by the action of the rank's list that allocated them. Tensors allocated before the
// first action have no action; they stay live for the whole run.
struct LiveTensors {
  Bucket bucket = Bucket::workspace;
  std::optional<std::size_t> action = {};
  std::int64_t bytes = 0;

  bool operator==(const LiveTensors&) const = default;
};

// Finds them from allocations and releases without keeping all of them. A step may have millions of tensors, but only
// few are live at once.
class LiveLog {
 public:
  void came(const void* data, const LiveTensors& tensor) { came_.insert_or_assign(data, tensor); }
  // `data` may be unknown: a tensor allocated before the log began.
  void went(const void* data) {
    if (came_.erase(data) == 0) gone_.push_back(data);
  }
  // The live bytes are now the most so far.
  void mark_peak() {
    for (const void* data : gone_) peak_.erase(data);  // first, since later tensors may reuse their addresses
    for (const auto& [data, tensor] : came_) peak_.insert_or_assign(data, tensor);
    gone_.clear();
    came_.clear();
  }

  // The tensors that were live at the last mark_peak(), summed and sorted by bucket and action.
  std::vector<LiveTensors> at_peak() const {
    std::map<std::pair<Bucket, std::optional<std::size_t>>, std::int64_t> sums;
    for (const auto& [data, tensor] : peak_) sums[{tensor.bucket, tensor.action}] += tensor.bytes;
    std::vector<LiveTensors> result;
    for (const auto& [key, bytes] : sums) {
      if (bytes > 0) result.push_back({key.first, key.second, bytes});
    }
    return result;
  }
  // Number of tensors that the log keeps.
  std::size_t size() const { return peak_.size() + came_.size() + gone_.size(); }

 private:
  std::unordered_map<const void*, LiveTensors> peak_;
  // The difference between the live tensors and those of peak_. Clearing an unordered_map takes the time of the most
  // elements that it ever had.
  std::map<const void*, LiveTensors> came_;
  std::vector<const void*> gone_;
};

// The assumed distribution of routed tokens over the experts of a layer.
enum class Routing : std::uint8_t {
  even,   // equally many to each
  worst,  // as many as possible to the experts of the walking rank: no routing takes more memory
};

// Whether memory depends on the routing: it does if experts are spread over several ranks. A rank that holds all
// experts has the same number of rows under any routing, unless choices may go to no expert. Those are the choices of
// null slots, of tokens beyond a capacity without padding to it, and of the padding of packed documents.
bool routing_decides(const Config& config);

struct RoutedBytes {
  std::int64_t even = 0;                   // with tokens routed evenly
  std::optional<std::int64_t> worst = {};  // an upper bound for any routing; absent if routing_decides() is false
};

struct DryRun {
  LedgerWalk walk;                              // the ledger's bytes along the rank's list
  BucketBytes peak;                             // at the largest sum
  std::optional<std::size_t> peak_action = {};  // index in the rank's list: the first action with the largest sum
  std::vector<LiveTensors> live;                // at the peak, by bucket and action; their sum is `peak`
  // Peak bytes during each action of the rank's list, without the temporary tensors of units that are not replicated.
  // These are gathered parameters, unsharded gradients, and the copies and parts of their reductions.
  std::vector<std::int64_t> beside_units;
  CommunicationCounters communication;  // of the step, counted by the rank's communicators
  std::int64_t saved_bytes = 0;         // of the tensors that this rank writes to a checkpoint
  BucketBytes host;                     // kept in host memory: optimizer states and activations
};

// `program` is the rank's (step_program). Time is linear in the length of the rank's list.
DryRun dry_run(const Config& config, const Mesh& mesh, const Program& program, int rank,
               Routing routing = Routing::even);

// DryRun::peak alone, with less work than dry_run().
BucketBytes dry_peak(const Config& config, const Mesh& mesh, const Program& program, int rank,
                     Routing routing = Routing::even);

// The same of the largest sum during forwards between steps: those of `forward`, which is of without_training() and of
// no larger batch than a step's.
BucketBytes dry_forward_peak(const Config& config, const Mesh& mesh, const Program& program, int rank,
                             const Config& forward, Routing routing = Routing::even);

// Reports every kernel call in the rank's step to `kernels`, and the actions around the calls to `actions`.
void dry_walk(const Config& config, const Mesh& mesh, const Program& program, int rank, KernelObserver& kernels,
              ActionObserver& actions);

// What the rank's step asks of its device and its libraries. A device may make all of it ready before the first step.
struct StepCalls {
  std::map<ProductCall, std::int64_t> products;      // matrix products, and the number of calls of each
  std::vector<AttentionCall> attention;              // each once
  std::map<std::int64_t, std::int64_t> host_blocks;  // host memory for copies: by bytes, the most blocks at once
};
StepCalls dry_calls(const Config& config, const Mesh& mesh, const Program& program, int rank);

// Number of threads for dry runs on an idle host: the host's cores, at most eight. Each thread holds the action list
// and tensors of a rank.
std::size_t dry_threads();

// One dry run for each pipeline rank, with the other coordinates of `at`. `program` is the program of these ranks.
std::vector<DryRun> dry_runs(const Config& config, const Mesh& mesh, const Program& program, const Coordinates& at = {},
                             Routing routing = Routing::even);

}  // namespace weft
