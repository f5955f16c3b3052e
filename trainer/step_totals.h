// One all-reduce that makes every rank's measurements of a step everybody's: loss, auxiliary losses, expert load,
// communication counts and the memory of each rank travel as one vector of doubles (exact for counts below 2^53).
#pragma once

#include "layers/segment.h"
#include "parallel/comm/communicator.h"
#include "trainer/metrics.h"

namespace weft {

// What one rank brings.
struct RankMeasurements {
  const StepReport& report;
  const CommunicationCounters& communication;  // of this step
  const BucketBytes& at_peak;
  std::int64_t system_allocations = 0;
};

struct StepTotals {
  double loss_sum = 0.0;
  std::vector<MoeReport> moe;           // by block
  CommunicationCounters communication;  // summed over ranks
  std::vector<BucketBytes> at_peak_of_rank;
  std::int64_t system_allocations = 0;
};

// Collective over the world. `num_experts` is 0 for a dense model.
StepTotals total_over_ranks(Communicator& world, MemoryLedger& ledger, const RankMeasurements& own,
                            std::size_t num_experts);

}  // namespace weft
