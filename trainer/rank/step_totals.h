// Measurements of a step, summed over all ranks. Kernels add up losses, auxiliary losses and expert load in device
// memory; the host knows communication counts and memory of its rank. Both are summed as one vector of float64 (exact
// for counts below 2^53). An all-reduce before the update sums its first two elements, the squared gradient norm and
// the loss: the update may depend on both. Another one at the end of the step sums the rest. The vector has two
// elements for each rank of the world, the sum of its memory buckets and its time of reading. A third all-reduce
// distributes the buckets of the fullest rank. It happens if the buckets of any rank or the fullest rank have changed
// since the last step. In a step the host waits for the device only here and for expert counts
// (layers/expert_exchange.h).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "layers/segment.h"
#include "parallel/comm/communicator.h"
#include "parallel/runtime/staging.h"
#include "trainer/rank/metrics.h"

namespace weft {

// Requests and results that ranks exchange at the end of a step, summed over the ranks, so that all act alike.
struct RunVotes {
  std::int64_t save_requests = 0, stop_requests = 0;  // requests for a checkpoint, and for the end of the run
  std::int64_t saves_written = 0, saves_failed = 0;   // ranks that have written, or failed to write, their part
  std::int64_t saves_unpublished = 0;                 // of rank 0: it could not publish what all had written
};

// Of the text of a batch: targets that count, and tokens that are no padding.
struct TextCounts {
  std::int64_t targets = 0, tokens = 0;
};

// Measurements from the host of one rank.
struct RankMeasurements {
  const CommunicationCounters& communication;  // of this step
  const BucketBytes& at_peak;
  std::int64_t system_allocations = 0;
  TextCounts next = {};       // of this rank in the batch of the next step
  double data_seconds = 0.0;  // of the host for reading text during the step
  RunVotes votes = {};
};

struct MoeTotals {
  double auxiliary_loss = 0.0, z_loss = 0.0, bias_norm = 0.0;
  std::int64_t dropped = 0;                 // choices that no expert took
  std::int64_t null_choices = 0;            // choices of null slots
  std::vector<std::int64_t> expert_tokens;  // number of choices that were taken, by expert
};

struct StepTotals {
  double loss_sum = 0.0;
  double gradient_square_sum = 0.0;
  std::vector<MoeTotals> moe;                // by block
  std::vector<double> prediction_loss_sums;  // by block; 0 for those of the model
  CommunicationCounters communication;       // summed over ranks
  BucketBytes at_peak;                       // of the rank with the largest sum, the lowest of several
  std::int64_t system_allocations = 0;
  TextCounts next;            // summed over ranks
  double data_seconds = 0.0;  // of the rank that took longest
  RunVotes votes;
};

// The vector of one rank, allocated once for the whole run. Work is queued on `stream`.
class StepSums {
 public:
  // `num_experts` is 0 for a dense model. Stream and ledger outlive the sums.
  StepSums(Stream& stream, MemoryLedger& ledger, std::size_t blocks, std::size_t num_experts, std::size_t ranks);

  void begin_step();
  // The elements that kernels add to.
  StepReport report();
  // [1, 1] float64: the squared norm of this rank's share of the gradient.
  TensorView gradient_square_sum();
  // Sums the squared norm and the loss over the world, whose communicator uses the same stream. Returns both, [2, 1]
  // float64. Once in a step with an update, after the last loss was added.
  ConstTensorView sum_for_update(Communicator& world);

  // Collective over the world, whose communicator uses the same stream. Blocks until the totals are on the host. The
  // squared norm is that of sum_for_update().
  StepTotals total(Communicator& world, const RankMeasurements& own);

 private:
  // Distributes the buckets of rank `fullest` to all ranks.
  void exchange_peak(Communicator& world, const BucketBytes& own, std::size_t fullest);

  std::size_t blocks_, experts_, ranks_;
  bool loss_is_summed_ = false;            // by sum_for_update(), in this step
  std::optional<BucketBytes> own_before_;  // this rank's buckets at the peak of the last step
  std::size_t fullest_ = 0;                // fullest rank of the last step
  BucketBytes at_peak_;                    // buckets of rank fullest_
  Stream& stream_;
  Tensor sums_;
  Staging own_, totals_;
  Tensor peak_on_device_;  // buckets of the fullest rank
  Staging peak_;
};

// Each of the numbers, summed over all ranks; integers are exact if the sum is below 2^53. Collective over the world;
// blocks. For set-up, not inside a step.
std::vector<double> sum_numbers(Communicator& world, std::span<const double> own);
// The numbers of every rank, as many of each, by rank. Collective over the world; blocks.
std::vector<double> gather_numbers(Communicator& world, std::span<const double> own);
// The buckets of every rank. Collective over the world; blocks.
std::vector<BucketBytes> gather_buckets(Communicator& world, const BucketBytes& own);

}  // namespace weft
