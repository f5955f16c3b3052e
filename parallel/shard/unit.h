// One shard unit at run time: the rows that this rank owns, and the full parameters while the unit is unsharded.
//
//   sharded   --unshard()-->        unsharded --reshard()-->           sharded      illegal transitions throw
//   in island --unshard_secondary()--> unsharded --reshard_to_island()--> in island
//
// gradient(i) accumulates in float32 between reductions. reduce_gradient() sums over all ranks that hold the unit and
// adds the sum to the rows of this rank. scatter_gradient() sums over the shard group only; the next reduce_gradient()
// then sums over the replicas too.
//
// An island is a small group of neighbours in the shard group. Each neighbour keeps an equal part of the full
// parameters in the compute dtype, so that the next gather needs only the island.
//
// Gathers run on the gather lane and reductions on the reduce lane. Each waits only for the work of the compute lane
// that it depends on. A gather waits for the reshards before it, which freed its memory. Compute waits for a gather
// only before it reads the parameters (wait_until_unsharded).
//
// A unit belongs to one rank, and only the program's actions drive it. Storage comes from the rank's ledger. A unit is
// kept whole if its layout has one shard. If its compute dtype also equals the stored dtype, the rank computes on its
// own shard and a gather copies nothing. If a whole unit is reduced once a step, gradients accumulate directly in the
// shard's gradient.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/gradient.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"
#include "parallel/shard/reduce_inputs.h"
#include "parallel/shard/unit_layout.h"

namespace weft {

struct UnitPrecision {
  DType stored = DType::float32;     // of the rows that a rank owns; float32 or bfloat16
  DType compute = DType::float32;    // of gathers and computation
  DType reduction = DType::float32;  // of gradient reductions
  bool operator==(const UnitPrecision&) const = default;
};

// Settings of a unit.
struct UnitSetup {
  UnitLayout layout = {};
  UnitPrecision precision = {};
  bool reduced_once = true;         // reduce_gradient() is called once a step
  bool accumulate_sharded = false;  // scatter_gradient() is called in between; the unit is then reduced once
  bool frozen = false;              // has no gradient
  int island_ranks = 0;             // 0: no island
  bool follows_compute = false;     // gathers use memory that earlier queued compute gives back

  bool whole() const { return layout.shards == 1; }
  // A rank computes on its own shard and a gather copies nothing.
  bool computes_on_shard() const { return whole() && precision.compute == precision.stored; }
  bool accumulates_in_shard() const { return whole() && reduced_once; }
  // A reduction writes directly to the shard's gradient.
  bool reduces_into_shard() const {
    return !whole() && reduced_once && !accumulate_sharded && precision.reduction == DType::float32;
  }
  bool operator==(const UnitSetup&) const = default;
};

// The groups over which a unit is gathered (on the gather lane) and reduced (on the reduce lane). The unit is sharded
// over `shard`: layout.shards is the size of `shard`, or 1 if the unit is kept whole and `shard` only reduces.
// Gradients are then summed over `replicate`. `tensor` sums the gradients of tensor-replicated parameters.
struct UnitGroups {
  Communicator* gather = nullptr;  // over the ranks of `shard`
  Communicator* island = nullptr;  // on the gather lane; null without an island
  Communicator* shard = nullptr;
  Communicator* replicate = nullptr;
  Communicator* tensor = nullptr;  // null if the unit has no tensor-replicated parameters to sum
};

// Bytes that a rank holds or moves for a unit, from the layout alone. The running unit takes exactly these bytes.
struct UnitBytes {
  std::int64_t sharded_parameters = 0;    // always
  std::int64_t sharded_gradients = 0;     // float32, always; 0 if frozen
  std::int64_t unsharded_parameters = 0;  // while unsharded
  std::int64_t island_parameters = 0;     // while in its island
  std::int64_t unsharded_gradients = 0;   // float32, from the first weight gradient until the reduction has read it
  std::int64_t reduce_input = 0;          // the accumulator in the reduction dtype, until the reduction ends
  std::int64_t reduce_part = 0;           // this rank's part of reduce_input, during the reduction
  bool operator==(const UnitBytes&) const = default;
};
UnitBytes unit_bytes(const UnitSetup& setup);

// The part of one parameter that this rank owns and steps. A full-shaped tensor only if the rank owns all rows.
struct OwnedRows {
  const ParameterSpec* parameter = nullptr;
  std::int64_t row_begin = 0, rows = 0;  // in global rows of the parameter
  TensorView values;                     // rows x parameter->columns, in the stored dtype
  TensorView gradients;                  // float32; empty if frozen
  std::int64_t offset = 0;               // element offset in the shard, for state kept beside it
};

// Elements [offset, offset + parameter.size()) of a flat buffer in the parameter's shape.
template <typename View>
View parameter_view(const View& buffer, std::int64_t offset, const ParameterSpec& parameter) {
  return buffer.rows_from(offset, parameter.size()).reshaped(parameter.rows, parameter.columns);
}
// counts [parameters, 1] int32 += the non-finite elements of each parameter in a flat buffer of gradients.
void count_nonfinite(Stream& stream, TensorView gradients, std::span<const ParameterSpec> parameters,
                     std::span<const std::int64_t> offsets, TensorView counts);
// The name of the first parameter with a count above 0. Waits for the device.
std::optional<std::string> first_nonfinite(Stream& stream, ConstTensorView counts,
                                           std::span<const ParameterSpec> parameters);

class ShardUnit {
 public:
  // All arguments outlive the unit.
  ShardUnit(UnitSetup setup, const UnitGroups& groups, Lanes& lanes, ReduceInputs& reduce_inputs, MemoryLedger& ledger);

  const UnitLayout& layout() const { return setup_.layout; }

  void unshard();
  void unshard_secondary();
  void reshard();
  void reshard_to_island();
  // Work queued on the compute lane from here on sees the gathered parameters.
  void wait_until_unsharded();
  // Parameter i of the layout, rows x columns in the compute dtype. Requires the unit to be unsharded.
  ConstTensorView parameter(std::size_t index) const;
  // Accumulator of parameter i; fresh in the first call after a reduction, unless it is the shard's. Needs no unsharded
  // parameters. Empty if the unit is frozen.
  Gradient gradient(std::size_t index);
  // The gradient accumulated since the last reduction. Before the next reduction, the caller adds to it on the reduce
  // lane the gradient of the unit's copy on another stage. Counts non-finite elements first: the sum would spread them.
  TensorView accumulated_gradient();
  // Both are collective. They first count non-finite elements of this rank's gradient, unless accumulated_gradient()
  // has.
  void scatter_gradient();
  void reduce_gradient();
  // Compute waits for the step's oldest reduction that it has not waited for yet.
  void wait_reduction();

  // Clears the gradients of the last step.
  void begin_step();
  // The first parameter with a non-finite gradient on this rank in this step. Waits for the device.
  std::optional<std::string> nonfinite_parameter() {
    return first_nonfinite(reduce_lane_, nonfinite_, setup_.layout.parameters);
  }
  std::vector<OwnedRows> owned_rows();
  TensorView shard_gradient() { return shard_gradient_; }

 private:
  void allocate_unsharded();
  // The memory becomes available to later gathers of the action list, after compute has finished with it.
  void give_back_unsharded();
  // This rank's part of the full parameters; the parts of ranks 0, 1, ... of `group` follow one another.
  TensorView own_part(const Communicator& group);
  // Clears what no weight gradient has written: padding, and parameters of segments that did not run.
  void clear_rest();
  // Reduces the gradient accumulated since the last reduction: over the shard group, and over replicas if asked for.
  void reduce_pending(bool replicas);
  // Adds the sum of all full gradients, in the reduction dtype, to the shard's gradient.
  void add_sum(TensorView gradient, bool replicas);
  // Sums shard gradients over replicas; each already holds the sum over its shard group.
  void sum_replicas();

  UnitSetup setup_;
  UnitGroups groups_;
  Stream &compute_, &gather_lane_, &reduce_lane_;
  ReduceInputs& reduce_inputs_;
  MemoryLedger& ledger_;
  Fence gathered_;         // reached when the parameters are gathered; null once compute has waited for it
  Tensor nonfinite_;       // int32, one for each parameter: non-finite elements in this step
  Tensor shard_;           // live for the whole run
  Tensor shard_gradient_;  // float32, live for the whole run; none if frozen
  Tensor unsharded_parameters_, island_parameters_, unsharded_gradient_;
  bool unsharded_ = false, in_island_ = false;
  std::vector<bool> written_;  // which parameters' part of the unsharded gradient
  bool gradient_pending_ = false, sum_pending_ = false;
  bool counted_ = false;        // whether the pending gradient's non-finite elements are counted
  std::vector<Fence> reduced_;  // of the step's reductions
  std::size_t waits_ = 0;       // number of these reductions that compute has waited for
};

}  // namespace weft
