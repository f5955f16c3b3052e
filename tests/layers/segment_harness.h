// Runs one segment, or a chain of them, on every rank of a small world, as a stage of the trainer would: weights cut
// from global values, microbatches by data-parallel rank, gradients summed over the ranks that share a parameter.
//
// Global microbatch g = data index * microbatches + m. Its activations are [tokens, hidden] of the whole tensor group.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "layers/kernels/matrix_products.h"
#include "layers/segment.h"
#include "tests/layers/model_reference.h"

namespace weft {

enum class SegmentKind : std::uint8_t { embedding, attention, mlp, moe, head };

struct SegmentCase {
  SegmentKind kind = SegmentKind::attention;
  ModelConfig model;
  int data = 1, tensor = 1, expert = 1;
  int microbatches = 1;  // of each data-parallel rank
  DType compute = DType::float32;
  std::int64_t sequence_length = 4, sequences = 2;
  double loss_factor = 1.0 / 16.0;

  std::int64_t tokens() const { return sequence_length * sequences; }
  int ranks() const { return data * tensor; }
  int all_microbatches() const { return data * microbatches; }
  SegmentSetup setup(int rank) const;
};

// Hidden 12, 4 query and 2 key heads of 6, intermediate 8, vocabulary 13, experts 4, top 2: sums short enough for tight
// tolerances, sizes that differ so that no two can be mistaken for each other.
ModelConfig small_model();
std::unique_ptr<Segment> make_segment(SegmentKind kind, const SegmentSetup& setup);

// Everything a case computes from, exact in its compute dtype (the router in float32).
struct SegmentInputs {
  NamedValues parameters;
  // By global microbatch. dy is the gradient of the segment's output.
  std::vector<std::vector<std::int32_t>> tokens, targets;
  std::vector<Values> x, dy;
};
SegmentInputs draw_inputs(const SegmentCase& the_case);
// Standard normal numbers times `scale`, rounded to float32 or bfloat16.
Values draw(std::string_view name, std::int64_t count, DType dtype, double scale = 1.0);
// Global values for the parameters of the given segments.
void draw_parameters(const std::vector<ParameterSpec>& specs, DType compute, NamedValues& parameters);

struct Call {
  SegmentTraffic::When when;
  int microbatch;
};
using Schedule = std::vector<Call>;
// Forward, input gradient and weight gradient of one microbatch after the other.
Schedule one_at_a_time(int microbatches);

struct RunOptions {
  Schedule schedule = {};                              // empty: one at a time
  bool poison_weights_before_weight_gradient = false;  // NaN; for a single microbatch
  bool drop_expert_row = false;                        // a fault: rank 0 loses a row of what the experts send back
};

using PhaseTraffic = std::map<std::pair<SegmentTraffic::When, CommunicationKey>, CommunicationCount>;

// What one rank did, in its own boxes and slices.
struct RankOutcome {
  std::vector<ParameterSpec> parameters;
  std::vector<Values> gradients;  // by parameter
  std::vector<Values> y, dx;      // by microbatch of this rank
  StepReport report;
  std::int64_t declared_bytes = 0;
  std::vector<std::int64_t> kept_bytes;  // by microbatch: between forward and backward, with the x it was handed
  std::int64_t leaked_bytes = 0;
  std::vector<SegmentTraffic> declared_traffic;  // of one microbatch
  PhaseTraffic counted_traffic;                  // of all microbatches
};
std::vector<RankOutcome> run_segment(const SegmentCase& the_case, const SegmentInputs& inputs,
                                     const RunOptions& options = {});

// What the whole world did.
struct Outcome {
  std::vector<Values> y, dx;  // by global microbatch
  NamedValues gradients;
  double loss_sum = 0.0, auxiliary_loss = 0.0, z_loss = 0.0;
  std::vector<std::int64_t> expert_tokens;
};
// Sums each gradient over the ranks that the trainer sums over: data-parallel ranks always, the tensor group where
// boxes differ, where the parameter says `tensor_replicated`, and for routing helpers and experts (expert-parallel
// ranks are tensor ranks too).
Outcome assemble(const SegmentCase& the_case, const std::vector<RankOutcome>& ranks);

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

// What a segment is handed on one rank of a world.
class TestRank {
 public:
  TestRank(Communicator& world, const SegmentCase& the_case, const RunOptions& options);

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
  std::unique_ptr<Communicator> tensor, expert;
  Tensor rotary;
  StepReport report;
  LayerContext context;
};

Values values_of(ConstTensorView tensor);

}  // namespace weft
