// The optimizer of one rank: steps the rows the rank owns, whatever unit they come from, each group of parameters by
// its own rule and values. State lies beside the shard it belongs to.
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
#include "trainer/optimizer/muon_rows.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/plan/stage_plan.h"

namespace weft {

// Who shares an optimizer's work, on the lane of its stream: every rank of the model, and those of the stage.
struct OptimizerGroups {
  Communicator& world;
  Communicator& stage;
};

// One state of rows that a rank owns, an element for each of theirs.
struct StateRows {
  OwnedRows owned;
  std::string_view state;  // state_name() of its rule
  TensorView values;
};

class Optimizer {
 public:
  // Work is queued on the stream of the groups, for which the products were made. Everything handed in outlives the
  // optimizer.
  Optimizer(const Config& config, const OptimizerKernels& kernels, const OptimizerGroups& groups,
            MatrixProducts& products, MemoryLedger& ledger, PhaseClock& clock);

  // Takes on the rows of one unit that `rank` of the mesh owns; they outlive the optimizer. Rows without gradients are
  // not trained: they are never stepped, and a unit of such rows gets no state. Before the first step only.
  void add(const PlannedUnit& unit, const std::vector<OwnedRows>& rows, const Mesh& mesh, int rank);
  // Collective over the world if a rule needs norms of whole parameters, and over the stage if one needs whole
  // matrices. `step` counts from 1; the schedule multiplies
  // the rate of each group. Gradients are multiplied by gradient_scale [1, 1] float32 first (the clip factor); where it
  // is not finite nothing changes.
  void step(std::int64_t step, ConstTensorView gradient_scale);
  // Of rows that are trained, in the order in which they were added.
  std::span<const StateRows> states() const { return kept_; }

 private:
  // The matrices of one group that are stepped as wholes.
  struct WholeMatrices {
    UpdateGroup group;
    MatrixPlan plan;
    std::vector<MuonRows> rows;
    std::unique_ptr<Muon> muon;  // over `rows`, made by the first step
  };
  // Plans those of the stage, on all its ranks alike, with the first unit that is added.
  void plan_matrices_of_stage(const Mesh& mesh, int rank);
  void step_matrices(std::int64_t step, ConstTensorView gradient_scale);

  const Config& config_;
  ResolvedGroups groups_;
  const OptimizerKernels& kernels_;
  Communicator &world_, &stage_;
  MatrixProducts& products_;
  Stream& stream_;
  MemoryLedger& ledger_;
  PhaseClock& clock_;
  std::vector<Tensor> states_;
  std::vector<StateRows> kept_;  // in states_
  std::vector<UpdateRows> rows_;
  std::optional<std::vector<WholeMatrices>> matrices_;
  std::map<std::string, std::int64_t>
      tensors_;                         // parameters of the model whose norms are needed, the same on all ranks
  Tensor norms_;                        // [2 * tensors, 1] float64, if there are any
  std::unique_ptr<RowsUpdate> update_;  // over rows_, made by the first step
};

}  // namespace weft
