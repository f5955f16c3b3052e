// One shard unit at run time: the rows this rank owns, and the full parameters while they exist.
//
//   sharded --unshard()--> unsharded --reshard()--> sharded        illegal transitions throw
//   gradient(i) accumulates in float32 between reductions; reduce_gradient() adds the sum over all ranks that hold the
//   unit into the rows this rank owns.
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
#include "parallel/shard/unit_layout.h"

namespace weft {

struct UnitPrecision {
  DType compute = DType::float32;    // gathered and computed in
  DType reduction = DType::float32;  // gradients reduced in; float32 or bfloat16
  bool operator==(const UnitPrecision&) const = default;
};

// Over whom a unit is gathered (on the gather lane) and reduced (on the reduce lane). Sharded in `shard` (layout.shards
// is its size, or 1 when the unit is kept whole and `shard` only reduces), then summed over `replicate`; `tensor` sums
// the gradients of tensor-replicated parameters.
struct UnitGroups {
  Communicator* gather = nullptr;  // over the ranks of `shard`
  Communicator* shard = nullptr;
  Communicator* replicate = nullptr;
  Communicator* tensor = nullptr;  // null when the unit has no tensor-replicated parameters to sum
};

// Bytes a rank holds or moves for a unit, known from the layout alone. The running unit takes exactly these.
struct UnitBytes {
  std::int64_t sharded_parameters = 0;    // float32, always
  std::int64_t sharded_gradients = 0;     // float32, always
  std::int64_t unsharded_parameters = 0;  // while unsharded
  std::int64_t unsharded_gradients = 0;   // from the first weight gradient to the reduction
  bool operator==(const UnitBytes&) const = default;
};
UnitBytes unit_bytes(const UnitLayout& layout, const UnitPrecision& precision, bool reduced_once);

// The part of one parameter that this rank owns and steps. Never a full-shaped tensor unless the rank owns it all.
struct OwnedRows {
  const ParameterSpec* parameter = nullptr;
  std::int64_t row_begin = 0, rows = 0;  // in global rows of the parameter
  TensorView values;                     // rows x parameter->columns, float32
  TensorView gradients;
  std::int64_t offset = 0;  // element offset in the shard, for state kept beside it
};

class ShardUnit {
 public:
  // Everything handed in outlives the unit.
  ShardUnit(UnitLayout layout, const UnitPrecision& precision, bool reduced_once, const UnitGroups& groups,
            Lanes& lanes, MemoryLedger& ledger);

  const UnitLayout& layout() const { return layout_; }
  bool unsharded() const { return unsharded_; }

  void unshard();
  void reshard();
  // Work queued on the compute lane from here on finds the parameters gathered.
  void wait_until_unsharded();
  // Parameter i of the layout, rows x columns in the compute dtype. Requires the unit to be unsharded.
  ConstTensorView parameter(std::size_t index) const;
  // Accumulator of parameter i, float32; zero before the first use after a reduction. Needs no unsharded parameters.
  TensorView gradient(std::size_t index);
  // Collective. What is not finite in this rank's gradient is counted first: afterwards every rank has it and nobody
  // knows whence.
  void reduce_gradient();
  bool gradient_pending() const { return gradient_pending_; }

  // Forgets the gradients of the last step.
  void begin_step();
  // The first parameter whose gradient on this rank was not finite in this step. Waits for the device.
  std::optional<std::string> nonfinite_parameter();
  std::vector<OwnedRows> owned_rows();
  TensorView shard_gradient() { return shard_gradient_; }

 private:
  bool computes_on_shard() const;
  bool accumulates_in_shard() const;
  // Sum of `gradient` over all holders of the unit, added to the shard's gradient.
  void reduce_in(DType dtype, TensorView gradient);

  UnitLayout layout_;
  UnitPrecision precision_;
  bool reduced_once_;
  UnitGroups groups_;
  Stream &compute_, &gather_lane_, &reduce_lane_;
  MemoryLedger& ledger_;
  Fence gathered_;                 // when the parameters are there; null once compute has waited for it
  Tensor nonfinite_;               // int32, one a parameter: elements that were not finite in this step
  Tensor shard_, shard_gradient_;  // float32, live for the whole run
  Tensor unsharded_parameters_, unsharded_gradient_;
  bool unsharded_ = false;
  bool gradient_pending_ = false;
};

}  // namespace weft
