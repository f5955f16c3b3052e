// Replicated parameters of a stage: routing helpers, and others if asked for, kept whole in float32 on every rank,
// outside shard units. They are not gathered. Their gradients are all-reduced over all ranks of the stage, because each
// rank processes other tokens. Every rank then makes the same update.
#pragma once

#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/runtime/gradient.h"
#include "parallel/runtime/ledger.h"
#include "parallel/shard/unit.h"

namespace weft {

class ReplicatedParameters {
 public:
  // `tokens` works on the reduce lane. All arguments outlive the object. If `compute` is not float32, computations read
  // a copy in it, which begin_step() makes.
  ReplicatedParameters(std::vector<ParameterSpec> parameters, bool frozen, Communicator& tokens, Lanes& lanes,
                       MemoryLedger& ledger, DType compute = DType::float32);

  const std::vector<ParameterSpec>& parameters() const { return parameters_; }
  ConstTensorView parameter(std::size_t index) const;
  // Accumulator of parameter i; zero before the first use after a reduction. Empty if frozen.
  Gradient gradient(std::size_t index);
  // Sums the gradient accumulated since the last reduction over `tokens`, and adds the sum to the gradient of the
  // step's earlier intervals.
  void reduce_gradient();
  // As ShardUnit::wait_reduction.
  void wait_reduction() { compute_.wait(reduced_); }
  void begin_step();
  // As ShardUnit::nonfinite_parameter.
  std::optional<std::string> nonfinite_parameter() { return first_nonfinite(reduce_lane_, nonfinite_, parameters_); }
  std::vector<OwnedRows> owned_rows();
  static std::int64_t bytes(const std::vector<ParameterSpec>& parameters);
  // Of the copy to compute with.
  static std::int64_t copy_bytes(const std::vector<ParameterSpec>& parameters, DType compute);

 private:
  std::vector<ParameterSpec> parameters_;
  bool frozen_;
  std::vector<std::int64_t> offsets_;
  std::int64_t size_ = 0;
  Communicator& tokens_;
  Stream &compute_, &reduce_lane_;
  MemoryLedger& ledger_;
  Tensor values_, gradient_;  // float32, live for the whole run; no gradient if frozen
  Tensor copy_;               // of the values; none if computations read them
  Tensor pending_;            // float32, from the first weight gradient to the reduction
  Tensor nonfinite_;          // int32, one for each parameter
  Fence reduced_;             // of the last reduction
};

}  // namespace weft
