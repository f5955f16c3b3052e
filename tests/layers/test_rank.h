// One rank of a small world, with everything that a segment is handed, and a segment's weights as shard units lay them
// out.
#pragma once

#include <memory>
#include <vector>

#include "layers/kernels/matrix_products.h"
#include "tests/layers/segment_case.h"

namespace weft {

// The weights of one segment on one rank, one after another in one buffer as shard units lay them out, and as many
// float32 gradients. Routing helpers are apart, in float32.
class ParameterMemory {
 public:
  ParameterMemory(MemoryLedger& ledger, DType compute, const std::vector<ParameterSpec>& specs,
                  const NamedValues& values);
  Weights weights() const { return weights_; }
  Gradients gradients() const { return gradients_; }
  void poison_weights();

 private:
  Tensor weight_storage_, routing_storage_, gradient_storage_;
  std::vector<ConstTensorView> weights_;
  std::vector<TensorView> gradients_;
};

// What a segment is handed on one rank of a world. `drop_expert_row` is a fault: rank 0 loses a row of what the experts
// send back.
class TestRank {
 public:
  TestRank(Communicator& world, const SegmentCase& the_case, bool drop_expert_row = false);

  // This rank's slice of [tokens, hidden] values.
  Tensor slice_of(const Values& values);

  SegmentSetup setup;
  int data_index;
  std::unique_ptr<Device> device = make_cpu_device();
  MemoryLedger ledger{*device};
  PhaseClock clock;
  std::unique_ptr<Stream> stream = device->create_stream("compute");
  std::unique_ptr<MatrixProducts> products = make_cpu_matrix_products();
  KernelContext kernels{ledger, clock, *stream, *products};
  std::unique_ptr<Communicator> tensor, sequence, expert, expert_tensor;
  Tensor rotary;
  StepReport report;
  LayerContext context;
};

Values values_of(ConstTensorView tensor);

}  // namespace weft
