// The optimizer of one rank: steps the rows the rank owns, whatever unit they come from, each group of parameters by
// its own rule and values. State lies beside the shard it belongs to.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/phase_clock.h"
#include "parallel/shard/unit.h"
#include "trainer/optimizer/groups.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/step_plan.h"

namespace weft {

class Optimizer {
 public:
  // `world` holds every rank of the model, on the lane of `stream`. Everything handed in outlives the optimizer. Throws
  // Error (request) for a rule that is not there.
  Optimizer(const Config& config, const OptimizerKernels& kernels, Communicator& world, Stream& stream,
            MemoryLedger& ledger, PhaseClock& clock);

  // Takes on the rows of one unit that `rank` of the mesh owns; they outlive the optimizer. Rows without gradients are
  // not trained: they are never stepped, and a unit of such rows gets no state. Before the first step only.
  void add(const PlannedUnit& unit, const std::vector<OwnedRows>& rows, const Mesh& mesh, int rank);
  // Collective over `world` if a rule needs norms of whole parameters. `step` counts from 1; the schedule multiplies
  // the rate of each group. Gradients are multiplied by gradient_scale [1, 1] float32 first (the clip factor); where it
  // is not finite nothing changes.
  void step(std::int64_t step, ConstTensorView gradient_scale);

 private:
  const Config& config_;
  ResolvedGroups groups_;
  const OptimizerKernels& kernels_;
  Communicator& world_;
  Stream& stream_;
  MemoryLedger& ledger_;
  PhaseClock& clock_;
  std::vector<Tensor> states_;
  std::vector<UpdateRows> rows_;
  std::map<std::string, std::int64_t>
      tensors_;                         // parameters of the model whose norms are needed, the same on all ranks
  Tensor norms_;                        // [2 * tensors, 1] float64, if there are any
  std::unique_ptr<RowsUpdate> update_;  // over rows_, made by the first step
};

}  // namespace weft
