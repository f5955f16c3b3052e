// The states of AdamW that stay in host memory. At STEP they visit the device in chunks, in two buffers by turns. One
// chunk is updated while the next one arrives and the one before goes back. Bits are those of states on the device.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"
#include "trainer/optimizer/optimizer_kernels.h"
#include "trainer/plan/state_layout.h"

namespace weft {

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

}  // namespace weft
