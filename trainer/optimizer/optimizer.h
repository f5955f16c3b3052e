// The optimizer of one rank: updates the rows that the rank owns, of all units. Each group of parameters has its own
// rule and settings. Optimizer state is sharded like the parameters.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/phase_clock.h"
#include "parallel/shard/unit.h"
#include "trainer/config/update_groups.h"
#include "trainer/optimizer/host_states.h"
#include "trainer/optimizer/muon_rows.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// Communicators on the optimizer's stream: `world` has all ranks, `stage` the ranks of this rank's stage.
struct OptimizerGroups {
  Communicator& world;
  Communicator& stage;
};

// The places of states: `host` counts those that stay in host memory.
struct OptimizerMemory {
  Lanes& lanes;
  MemoryLedger &device, &host;
};

// One optimizer state of a run of owned rows: one element for each element of the rows. The values lie in device memory
// or in host memory; copies queued on the compute lane read and write both.
struct StateRows {
  OwnedRows owned;
  std::string_view state;  // state_name() of its rule
  TensorView values;
};

class Optimizer {
 public:
  // Work is queued on the stream of the groups; `products` were made for this stream. All arguments outlive the
  // optimizer.
  Optimizer(const Config& config, const OptimizerKernels& kernels, const OptimizerGroups& groups,
            MatrixProducts& products, const OptimizerMemory& memory, PhaseClock& clock);

  // Adds the rows of one unit that `rank` of the mesh owns; they outlive the optimizer. Rows without gradients are not
  // trained: they are never updated, and a unit that has only such rows gets no state. Before the first step only.
  void add(const PlannedUnit& unit, const std::vector<OwnedRows>& rows, const Mesh& mesh, int rank);
  // Collective over the world if a rule needs norms of whole parameters, and over the stage if a rule needs whole
  // matrices. `step` counts from 1; the schedule multiplies the rate of each group. Gradients are first multiplied by
  // gradient_scale [1, 1] float32 (the clip factor). Parameters and states stay unchanged if it is not finite.
  void step(std::int64_t step, ConstTensorView gradient_scale);
  // States of trained rows, in the order in which the rows were added.
  std::span<const StateRows> states() const { return kept_; }

 private:
  // The matrices of one group that Muon updates.
  struct WholeMatrices {
    UpdateGroup group;
    MatrixPlan plan;
    std::vector<MuonRows> rows;
    std::unique_ptr<Muon> muon;  // over `rows`, made by the first step
  };
  void step_matrices(std::int64_t step, ConstTensorView gradient_scale);

  const Config& config_;
  ResolvedGroups groups_;
  const OptimizerKernels& kernels_;
  Communicator &world_, &stage_;
  MatrixProducts& products_;
  Stream& stream_;
  MemoryLedger &ledger_, &host_ledger_;
  PhaseClock& clock_;
  std::vector<Tensor> states_;
  std::vector<StateRows> kept_;  // views into states_
  std::vector<UpdateRows> rows_;
  HostStates host_states_;
  std::optional<std::vector<WholeMatrices>> matrices_;  // of the stage, planned by the first add()
  std::map<std::string, std::int64_t> tensors_;  // index of each parameter that needs norms, the same on all ranks
  Tensor norms_;                                 // [2 * tensors, 1] float64, if there are any
  std::unique_ptr<RowsUpdate> update_;           // over rows_, made by the first step
};

}  // namespace weft
