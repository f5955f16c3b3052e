// The optimizer of one rank: updates the rows that the rank owns, of all units. Each group of parameters has its own
// rule and settings. Optimizer state is sharded like the parameters.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"
#include "parallel/runtime/phase_clock.h"
#include "parallel/shard/unit.h"
#include "trainer/config/update_groups.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/optimizer/update_plan.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/state_layout.h"

namespace weft {

// The states of AdamW that stay in host memory. At STEP they visit the device in chunks, in two buffers by turns. One
// chunk is updated while the next one arrives and the one before goes back. Bits are those of states on the device.
class HostStates {
 public:
  // Chunks arrive on Lane::from_host, are updated on Lane::compute and go back on Lane::to_host. `ledger` counts the
  // two buffers on the device. All arguments outlive the states.
  HostStates(Lanes& lanes, MemoryLedger& ledger, std::int64_t chunk_elements = host_chunk_elements)
      : lanes_(lanes), ledger_(ledger), chunk_elements_(chunk_elements) {}

  // `first` and `second`, [elements, 1] in host memory, hold the states of `rows`: the state views of each run lie at
  // the same place in both. Before the first step only.
  void add(TensorView first, TensorView second, std::span<const UpdateRows> rows);
  bool empty() const { return chunks_.empty(); }

  // Updates all rows. `groups`, `rules` and gradient_scale as RowsUpdate has them; the rules read no norms. Work queued
  // on the compute lane afterwards may read and write the arrays.
  void run(const OptimizerKernels& kernels, std::span<const GroupStep> groups, const std::vector<UpdateRule>& rules,
           ConstTensorView gradient_scale);

 private:
  struct Chunk {
    std::array<TensorView, 2> states;    // in host memory
    std::vector<UpdateRows> rows;        // their state views lie in host memory
    std::unique_ptr<RowsUpdate> update;  // over the buffer, made by the first step
  };
  std::array<TensorView, 2> buffer_of(std::size_t chunk);
  void make_update(std::size_t chunk, const OptimizerKernels& kernels, const std::vector<UpdateRule>& rules);

  Lanes& lanes_;
  MemoryLedger& ledger_;
  std::int64_t chunk_elements_;
  std::vector<Chunk> chunks_;
  std::array<Tensor, host_chunks_on_device> buffers_;  // each holds both states of the largest chunk
};

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
  void step_matrices(std::span<const GroupStep> steps, ConstTensorView gradient_scale);

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
