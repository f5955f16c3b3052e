// Runs one segment on every rank of a small world, as a stage of the trainer would. Weights are cut from global
// values, microbatches are by data-parallel rank, and gradients are summed over the ranks that share a parameter.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tests/layers/test_rank.h"

namespace weft {

inline constexpr SegmentKind all_kinds[] = {SegmentKind::embedding, SegmentKind::attention, SegmentKind::state_space,
                                            SegmentKind::mlp,       SegmentKind::moe,       SegmentKind::merge,
                                            SegmentKind::predict,   SegmentKind::head};

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
  // Of a segment that can: forward keeps its input alone, and runs again in front of the input gradient.
  bool forward_again = false;
};

using PhaseTraffic = std::map<std::pair<SegmentTraffic::When, CommunicationKey>, CommunicationCount>;

// What one rank did, in its own boxes and slices.
struct RankOutcome {
  std::vector<ParameterSpec> parameters;
  std::vector<Values> gradients;  // by parameter; none of what is frozen
  bool frozen_untouched = true;
  std::vector<Values> y, dx;  // by microbatch of this rank
  Reported report;
  std::int64_t declared_bytes = 0;
  SegmentBytes even_bytes = {};
  std::vector<std::int64_t> kept_bytes;  // by microbatch: from forward to input gradient, with the x it was handed
  std::int64_t declared_pending_bytes = 0;
  std::vector<std::int64_t> pending_bytes;  // by microbatch: from input gradient to weight gradient
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
  double loss_sum = 0.0, auxiliary_loss = 0.0, z_loss = 0.0, prediction_loss = 0.0;
  std::vector<std::int64_t> expert_tokens;
  std::int64_t null_choices = 0;
};
// Sums each gradient over the ranks that the trainer sums over. Those are data-parallel ranks always, and the tensor
// group where boxes differ or the parameter says `tensor_replicated`. Routing helpers and experts have the tensor
// group too (expert-parallel ranks are tensor ranks).
Outcome assemble(const SegmentCase& the_case, const std::vector<RankOutcome>& ranks);

}  // namespace weft
