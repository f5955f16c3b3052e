// One action of a training step. An action names a whole stage (order, exchange) or, after lowering, one segment or one
// shard unit. Actions are plain values; their text form `[stage][kind][microbatch]` is that of PyTorch's schedule CSV.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/work.h"

namespace weft {

enum class Op : std::uint8_t {
  forward,            // F
  backward,           // B: input and weight gradient
  backward_input,     // I
  backward_weight,    // W: needs no gathered parameters (dW = dy^T x)
  recompute,          // R: a second forward of a segment that kept only its checkpoint
  unshard,            // UNSHARD: gather over the whole shard group
  unshard_secondary,  // UNSHARD_SECONDARY: gather of the secondary shard (ZeRO++, hpZ) over the ranks of an island
  reshard,            // RESHARD: keep only the rows this rank owns
  reshard_secondary,  // RESHARD_SECONDARY: keep one part of the full parameters, the secondary shard of this rank
  scatter_gradient,   // SCATTER_GRAD: reduce-scatter over the shard group alone; replicas still hold partial sums
  reduce_gradient,    // REDUCE_GRAD: sum over all ranks that hold the unit
  tie_gradient,       // TIE_GRAD: sum of the gradients of a unit and of its copy on another stage
  wait_reduction,     // WAIT_REDUCE: compute waits for the unit's oldest reduction not waited for yet
  send_forward,       // SEND_F: activations to the next stage
  receive_forward,    // RECV_F
  send_backward,      // SEND_B: gradients to the previous stage
  receive_backward,   // RECV_B
  rows_forward,       // ROWS_F: rows between experts, behind a part of a forward (Action::part)
  rows_recompute,     // ROWS_R: behind a part of a recompute
  rows_backward,      // ROWS_B: behind a part of an input gradient
  offload,            // OFFLOAD: kept bytes of a segment are copied to host memory
  wait_offload,       // WAIT_OFFLOAD: compute waits for that copy, and the bytes leave device memory
  reload,             // RELOAD: the bytes come back
  gradient_norm,      // GRAD_NORM: global norm and clip factor, over the world
  optimizer_step,     // STEP: the rows this rank owns
};
constexpr auto enum_names(Op) {
  return name_list("F", "B", "I", "W", "R", "UNSHARD", "UNSHARD_SECONDARY", "RESHARD", "RESHARD_SECONDARY",
                   "SCATTER_GRAD", "REDUCE_GRAD", "TIE_GRAD", "WAIT_REDUCE", "SEND_F", "RECV_F", "SEND_B", "RECV_B",
                   "ROWS_F", "ROWS_R", "ROWS_B", "OFFLOAD", "WAIT_OFFLOAD", "RELOAD", "GRAD_NORM", "STEP");
}
std::string_view computation_name(Op op);  // of a compute action, in words: "input gradient"

constexpr bool is_compute(Op op) {
  return op == Op::forward || op == Op::backward || op == Op::backward_input || op == Op::backward_weight ||
         op == Op::recompute;
}
constexpr bool is_send(Op op) {
  return op == Op::send_forward || op == Op::send_backward;
}
constexpr bool is_receive(Op op) {
  return op == Op::receive_forward || op == Op::receive_backward;
}
constexpr bool is_message(Op op) {
  return is_send(op) || is_receive(op);
}
constexpr bool is_row_exchange(Op op) {
  return op == Op::rows_forward || op == Op::rows_recompute || op == Op::rows_backward;
}
// The exchange behind a part of a computation.
constexpr Op row_exchange_of(Op op) {
  return op == Op::forward ? Op::rows_forward : op == Op::recompute ? Op::rows_recompute : Op::rows_backward;
}
// A copy between device and host memory.
constexpr bool is_host_copy(Op op) {
  return op == Op::offload || op == Op::reload;
}
// Whether the action applies to the kept bytes of a segment and microbatch.
constexpr bool takes_kept(Op op) {
  return is_host_copy(op) || op == Op::wait_offload;
}
// Of a message: activations, or else their gradient.
constexpr bool carries_activations(Op op) {
  return op == Op::send_forward || op == Op::receive_forward;
}
// All compute actions except the weight gradient read parameters.
constexpr bool reads_parameters(Op op) {
  return is_compute(op) && op != Op::backward_weight;
}
constexpr bool makes_weight_gradient(Op op) {
  return op == Op::backward || op == Op::backward_weight;
}
constexpr bool makes_input_gradient(Op op) {
  return op == Op::backward || op == Op::backward_input;
}
// Whether the action takes activations or their gradient from the segment or stage before it and passes its result on.
constexpr bool hands_on(Op op) {
  return op == Op::forward || makes_input_gradient(op);
}

constexpr bool is_gather(Op op) {
  return op == Op::unshard || op == Op::unshard_secondary;
}
constexpr bool is_reshard(Op op) {
  return op == Op::reshard || op == Op::reshard_secondary;
}
constexpr bool is_reduction(Op op) {
  return op == Op::scatter_gradient || op == Op::reduce_gradient;
}
// Whether the action applies to a shard unit.
constexpr bool takes_unit(Op op) {
  return is_gather(op) || is_reshard(op) || is_reduction(op) || op == Op::tie_gradient || op == Op::wait_reduction;
}

// An index that may be absent, in the size of an int. Lists have millions of actions with five indices each, and a
// std::optional<int> is twice as large. Used like a std::optional<int>, and convertible to one. The smallest int stands
// for absence.
class OptionalIndex {
 public:
  constexpr OptionalIndex() = default;
  constexpr OptionalIndex(std::nullopt_t) {}
  constexpr OptionalIndex(int index) : index_(index) {}
  constexpr OptionalIndex(const std::optional<int>& index) : index_(index.value_or(absent)) {}
  constexpr operator std::optional<int>() const { return has_value() ? std::optional(index_) : std::nullopt; }

  constexpr bool has_value() const { return index_ != absent; }
  constexpr explicit operator bool() const { return has_value(); }
  constexpr int operator*() const { return index_; }
  // Throws std::bad_optional_access if the index is absent.
  constexpr int value() const { return std::optional<int>(*this).value(); }
  constexpr int value_or(int other) const { return has_value() ? index_ : other; }
  constexpr void reset() { index_ = absent; }

  constexpr bool operator==(const OptionalIndex&) const = default;
  constexpr auto operator<=>(const OptionalIndex&) const = default;
  friend constexpr bool operator==(OptionalIndex one, int other) { return one.index_ == other; }
  friend constexpr bool operator==(OptionalIndex one, const std::optional<int>& other) {
    return one == OptionalIndex(other);
  }

 private:
  static constexpr int absent = std::numeric_limits<int>::min();
  int index_ = absent;
};

struct Action {
  Op op = Op::forward;
  bool overlapped = false;        // compute only: half of an overlapped pair (overlap.h)
  ComputePart part = {};          // compute only; of an exchange of rows: the part that it stands behind
  OptionalIndex stage = {};       // absent for gradient_norm and optimizer_step
  OptionalIndex microbatch = {};  // compute, exchange and kept bytes
  OptionalIndex segment = {};     // index into Program::segments; absent if the action covers a whole stage
  OptionalIndex unit = {};        // index into Program::units; absent if the action covers a whole stage
  OptionalIndex peer = {};        // pipeline rank, exchange only
  std::int64_t bytes = 0;         // payload of exchange, gather, reduction or host copy

  bool operator==(const Action&) const = default;
};
static_assert(sizeof(Action) == 32, "lists of large pipelines have millions of them");

// The forward, or else the input gradient, of a stage.
struct StageResult {
  bool forward = true;
  int stage = 0;
};
// The result that an action reads. A forward reads that of the stage before, an input gradient that of the stage
// behind. On the last stage it reads that of the stage's own forward. Absent for the forward of stage 0 and for other
// actions.
constexpr std::optional<StageResult> read_by(const Action& action, int stages) {
  const int stage = *action.stage;
  if (!hands_on(action.op) || (action.op == Op::forward && stage == 0)) return std::nullopt;
  if (action.op == Op::forward) return StageResult{true, stage - 1};
  return stage + 1 == stages ? StageResult{true, stage} : StageResult{false, stage + 1};
}

}  // namespace weft
