// The selection biases of a rank's routers: state that no gradient changes. After a step each bias moves against the
// load of its expert. It counts the choices of the whole step on all ranks that saw other tokens (Wang et al. 2024,
// arXiv:2408.15664). All ranks have these counts from the step's totals, so they move all copies alike, without a
// message of their own.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "parallel/runtime/staging.h"
#include "trainer/config/config.h"
#include "trainer/rank/rank_stages.h"
#include "trainer/rank/step_totals.h"

namespace weft {

// The step of every expert's bias after `choices` of a step, by expert, not all zero. With n the choices of the expert
// and m their mean:
//   sign          rate, 0 or -rate for n below m, at m or above it
//   proportional  rate (m - n) / m
// The last number is that of `copies` null slots together, each of which counts in m.
std::vector<float> bias_steps(BiasUpdate update, double rate, std::span<const std::int64_t> choices,
                              std::int64_t copies = 1);

class RouterHelpers {
 public:
  // Work is queued on the stages' compute stream. All arguments outlive the helpers.
  RouterHelpers(const Config& config, RankStages& stages, Stream& stream);

  // Moves the biases after a step that changed the parameters. `update` is the number of this change, from 1. Nothing
  // moves if the routers are frozen.
  void move(const StepTotals& totals, std::int64_t update);
  // Throws Error (failure) naming block and expert of a bias that is not finite, as a checkpoint may have it.
  void require_finite();
  // Adds the squares of the biases that the step uses to its report, on one rank of those with the same routers. It is
  // the rank that `stage`, all ranks of the stage, has first.
  void report(const Communicator& stage, StepReport report);

 private:
  struct Bias {
    int block = 0;
    TensorView values;                // [router_rows, 1] float32
    std::vector<float> on_host = {};  // empty until the first move
    std::unique_ptr<Staging> staging;
  };

  const Config& config_;
  Stream& stream_;
  std::vector<Bias> biases_;
};

// Compares every parameter that all ranks of a stage have whole, bit for bit, with that of the stage's first rank. Such
// copies are changed alike on every rank; once they differ, they stay so and route tokens apart. Collective over
// `stage`, on its stream, which the compute stream of the stages is; blocks. Throws Error (failure) naming the
// parameter and its first differing row: of a router, a row is an expert.
void require_same_copies(RankStages& stages, MemoryLedger& ledger, Communicator& stage);

}  // namespace weft
