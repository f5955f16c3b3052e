// One shard unit at run time: the rows this rank owns, and the full parameters while they exist.
//
//   sharded   --unshard()-->        unsharded --reshard()-->           sharded      illegal transitions throw
//   in island --unshard_island()--> unsharded --reshard_to_island()--> in island
//   gradient(i) accumulates in float32 between reductions; reduce_gradient() adds the sum over all ranks that hold the
//   unit into the rows this rank owns. scatter_gradient() adds the sum over the shard group alone; the next
//   reduce_gradient() then sums over the replicas too.
//
// An island is a small group of neighbours in the shard group: each keeps an equal part of the full parameters in the
// compute dtype, so that the next gather stays among them.
//
// Gathers run on the gather lane and reductions on the reduce lane, each after what it needs of the compute lane and no
// more: a gather waits for the reshards before it, which gave back its room, and compute waits for a gather only where
// it reads the parameters (wait_until_unsharded).
//
// A unit belongs to one rank and is driven by the program's actions only. Storage comes from the rank's ledger. Where
// the shard group has one rank and the compute dtype is the stored one, a rank computes on its own shard and a gather
// copies nothing; where gradients are reduced once a step it also accumulates straight into its shard.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/ledger.h"
#include "parallel/shard/reduce_inputs.h"
#include "parallel/shard/unit_layout.h"

namespace weft {

struct UnitPrecision {
  DType stored = DType::float32;     // of the rows a rank owns; float32 or bfloat16
  DType compute = DType::float32;    // gathered and computed in
  DType reduction = DType::float32;  // gradients reduced in
  bool operator==(const UnitPrecision&) const = default;
};

// What a unit is kept as.
struct UnitSetup {
  UnitLayout layout = {};
  UnitPrecision precision = {};
  bool reduced_once = true;         // reduce_gradient() comes once a step
  bool accumulate_sharded = false;  // scatter_gradient() comes between; then reduced once
  bool frozen = false;              // never given a gradient
  int island_ranks = 0;             // 0: no island
  bool follows_compute = false;     // gathers take room that any compute queued before them gives back

  bool whole() const { return layout.shards == 1; }
  // A rank computes on its own shard and a gather copies nothing.
  bool computes_on_shard() const { return whole() && precision.compute == precision.stored; }
  bool accumulates_in_shard() const { return whole() && reduced_once; }
  // A reduction ends in the shard's gradient itself.
  bool reduces_into_shard() const {
    return !whole() && reduced_once && !accumulate_sharded && precision.reduction == DType::float32;
  }
  bool operator==(const UnitSetup&) const = default;
};

// Over whom a unit is gathered (on the gather lane) and reduced (on the reduce lane). Sharded in `shard` (layout.shards
// is its size, or 1 when the unit is kept whole and `shard` only reduces), then summed over `replicate`; `tensor` sums
// the gradients of tensor-replicated parameters.
struct UnitGroups {
  Communicator* gather = nullptr;  // over the ranks of `shard`
  Communicator* island = nullptr;  // on the gather lane; null without an island
  Communicator* shard = nullptr;
  Communicator* replicate = nullptr;
  Communicator* tensor = nullptr;  // null when the unit has no tensor-replicated parameters to sum
};

// Bytes a rank holds or moves for a unit, known from the layout alone. The running unit takes exactly these.
struct UnitBytes {
  std::int64_t sharded_parameters = 0;    // always
  std::int64_t sharded_gradients = 0;     // float32, always
  std::int64_t unsharded_parameters = 0;  // while unsharded
  std::int64_t island_parameters = 0;     // while in its island
  std::int64_t unsharded_gradients = 0;   // float32, from the first weight gradient until the reduction has read it
  std::int64_t reduce_input = 0;          // the accumulator in the reduction dtype, until it is reduced
  std::int64_t reduce_part = 0;           // this rank's part of it, while it is reduced
  bool operator==(const UnitBytes&) const = default;
};
UnitBytes unit_bytes(const UnitSetup& setup);

// The part of one parameter that this rank owns and steps. Never a full-shaped tensor unless the rank owns it all.
struct OwnedRows {
  const ParameterSpec* parameter = nullptr;
  std::int64_t row_begin = 0, rows = 0;  // in global rows of the parameter
  TensorView values;                     // rows x parameter->columns, in the stored dtype
  TensorView gradients;                  // float32; empty when frozen
  std::int64_t offset = 0;               // element offset in the shard, for state kept beside it
};

class ShardUnit {
 public:
  // Everything handed in outlives the unit.
  ShardUnit(UnitSetup setup, const UnitGroups& groups, Lanes& lanes, ReduceInputs& reduce_inputs, MemoryLedger& ledger);

  const UnitLayout& layout() const { return setup_.layout; }
  bool unsharded() const { return unsharded_; }

  void unshard();
  void unshard_island();
  void reshard();
  void reshard_to_island();
  // Work queued on the compute lane from here on finds the parameters gathered.
  void wait_until_unsharded();
  // Parameter i of the layout, rows x columns in the compute dtype. Requires the unit to be unsharded.
  ConstTensorView parameter(std::size_t index) const;
  // Accumulator of parameter i, float32; zero before the first use after a reduction. Needs no unsharded parameters.
  // Empty when the unit is frozen.
  TensorView gradient(std::size_t index);
  // What has been added since the last reduction, for a copy of the unit on another stage to be added on the reduce
  // lane before the next one. Counts first what is not finite: the sum would spread it.
  TensorView accumulated_gradient();
  // Both collective. Count first what is not finite in this rank's gradient, unless accumulated_gradient() has.
  void scatter_gradient();
  void reduce_gradient();
  // Compute goes on once the step's oldest reduction that it has not waited for has ended.
  void wait_reduction();
  bool gradient_pending() const { return gradient_pending_; }

  // Forgets the gradients of the last step.
  void begin_step();
  // The first parameter whose gradient on this rank was not finite in this step. Waits for the device.
  std::optional<std::string> nonfinite_parameter();
  std::vector<OwnedRows> owned_rows();
  TensorView shard_gradient() { return shard_gradient_; }

 private:
  void allocate_unsharded();
  // The room goes to gathers that come after this point of the list, once compute is done with it.
  void give_back_unsharded();
  // The part of the full parameters that ranks 0, 1, ... of `group` hold one after another.
  TensorView own_part(const Communicator& group);
  // Of the gradient accumulated since the last reduction: over the shard group, and over replicas if asked for.
  void reduce_pending(bool replicas);
  // Adds the sum of all full gradients, in the dtype of the reduction, to the shard's gradient.
  void add_sum(TensorView gradient, bool replicas);
  // Of shards that hold sums over their shard group.
  void sum_replicas();

  UnitSetup setup_;
  UnitGroups groups_;
  Stream &compute_, &gather_lane_, &reduce_lane_;
  ReduceInputs& reduce_inputs_;
  MemoryLedger& ledger_;
  Fence gathered_;         // when the parameters are there; null once compute has waited for it
  Tensor nonfinite_;       // int32, one a parameter: elements that were not finite in this step
  Tensor shard_;           // live for the whole run
  Tensor shard_gradient_;  // float32, live for the whole run; none when frozen
  Tensor unsharded_parameters_, island_parameters_, unsharded_gradient_;
  bool unsharded_ = false, in_island_ = false;
  bool gradient_pending_ = false, sum_pending_ = false;
  bool counted_ = false;        // what is not finite in the pending gradient
  std::vector<Fence> reduced_;  // of the step's reductions
  std::size_t waits_ = 0;       // of them, so many were waited for
};

}  // namespace weft
