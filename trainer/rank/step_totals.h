// What a step measured, on its way to everybody: losses, auxiliary losses and expert load, which kernels add up in
// device memory, and communication counts and memory of each rank, which the host knows, travel as one vector of
// float64 (exact for counts below 2^53) in one all-reduce. A rank of the world adds one number to it, the sum of its
// memory; the buckets of the rank with most follow in a second one, where they are not those of the step before. It is
// the only place of a step where the host waits for the device.
#pragma once

#include <optional>
#include <vector>

#include "layers/segment.h"
#include "parallel/comm/communicator.h"
#include "parallel/runtime/staging.h"
#include "trainer/rank/metrics.h"

namespace weft {

// What ranks tell each other at the end of a step, summed over them, so that all do the same next.
struct RunVotes {
  std::int64_t save_requests = 0, stop_requests = 0;  // somebody asked for a checkpoint, or for the end of the run
  std::int64_t saves_written = 0, saves_failed = 0;  // of the checkpoint under way: ranks that are done with their part
};

// What one rank's host brings.
struct RankMeasurements {
  const CommunicationCounters& communication;  // of this step
  const BucketBytes& at_peak;
  std::int64_t system_allocations = 0;
  RunVotes votes = {};
};

struct MoeTotals {
  double auxiliary_loss = 0.0, z_loss = 0.0;
  std::vector<std::int64_t> expert_tokens;  // choices by expert
};

struct StepTotals {
  double loss_sum = 0.0;
  double gradient_square_sum = 0.0;
  std::vector<MoeTotals> moe;           // by block
  CommunicationCounters communication;  // summed over ranks
  BucketBytes at_peak;                  // of the rank with the largest sum, the first of several
  std::int64_t system_allocations = 0;
  RunVotes votes;
};

// The vector of one rank, kept for the whole run. Its work is queued on `stream`.
class StepSums {
 public:
  // `num_experts` is 0 for a dense model. Stream and ledger outlive the sums.
  StepSums(Stream& stream, MemoryLedger& ledger, std::size_t blocks, std::size_t num_experts, std::size_t ranks);

  void begin_step();
  // Where kernels add.
  StepReport report();
  // [1, 1] float64: the squared norm of the whole gradient, once it has been summed over the world.
  TensorView gradient_square_sum();

  // Collective over the world, whose communicator works on the same stream. Blocks until the totals are here.
  StepTotals total(Communicator& world, const RankMeasurements& own);

 private:
  // Brings the buckets of `fullest` to all ranks, where a rank's have changed.
  void exchange_peak(Communicator& world, const BucketBytes& own, std::size_t fullest);

  std::size_t blocks_, experts_, ranks_;
  std::optional<BucketBytes> own_before_;  // at the peak of the step before
  std::size_t fullest_ = 0;                // of the step before
  BucketBytes at_peak_;                    // of that rank
  Stream& stream_;
  Tensor sums_;
  Staging own_, totals_;
  Tensor peak_on_device_;  // buckets of the fullest rank
  Staging peak_;
};

// Collective over the world: the buckets of every rank. Blocks.
std::vector<BucketBytes> gather_buckets(Communicator& world, const BucketBytes& own);

}  // namespace weft
