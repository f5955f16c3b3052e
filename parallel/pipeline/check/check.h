// Proves that a program can run: every action is legal in its state, and exchange matches and does not deadlock.
// Collectives of a group are in one order, and memory is within a budget. Independent of the passes that made the
// program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

enum class Violation : std::uint8_t {
  unknown_stage,  // an action on a stage that another rank runs, or that does not exist
  used_while_sharded,
  double_unshard,
  wrong_gather,  // over the island if it holds nothing, or past the island if it holds parts
  reshard_of_sharded,
  unsharded_at_end,
  repeated_compute,  // the same segment, microbatch and kind twice
  missing_compute,   // a microbatch without forward or backward at the end
  backward_before_forward,
  segment_order,        // segments of a stage out of order within a microbatch
  weight_before_input,  // W before I
  missing_recompute,    // the input gradient of a segment in a region before its R
  idle_recompute,       // R before the forward, after the input gradient, or of a segment that keeps everything
  unmatched_send,
  unmatched_receive,
  crossed_messages,  // received in another order than sent
  missing_receive,   // compute on data that was never received
  repeated_receive,  // the same data received twice
  send_before_compute,
  wrong_peer,
  deadlock,
  collective_order,    // ranks of a group disagree on the order of their collectives
  reduced_too_early,   // REDUCE_GRAD before a weight gradient of the same interval
  missing_reduction,   // GRAD_NORM, STEP or end with gradients not reduced
  repeated_reduction,  // REDUCE_GRAD without a new gradient
  tied_too_early,   // TIE_GRAD before a reduction of one of its copies, or before work that its other rank may wait for
  missing_tie,      // GRAD_NORM, STEP or end with a tied unit that holds only its own stage's sum
  repeated_tie,     // TIE_GRAD of a tied unit, or of a unit without a copy
  idle_wait,        // WAIT_REDUCE of a unit with no reduction in flight
  step_too_early,   // work of the step after STEP, or STEP before GRAD_NORM
  missing_update,   // GRAD_NORM or STEP on some ranks only
  beyond_forward,   // an action other than forwards, their messages and units in a forward-only program
  broken_pair,      // marked as overlapped without a neighbouring partner, or only in part
  broken_parts,     // a part of a computation out of turn, or without the exchange of rows before it
  read_while_away,  // R or an input gradient of bytes that are in host memory or on their way there
  idle_offload,     // OFFLOAD, WAIT_OFFLOAD or RELOAD of bytes that are not where it takes them from
  over_budget,
};
constexpr auto enum_names(Violation) {
  return name_list("unknown_stage", "used_while_sharded", "double_unshard", "wrong_gather", "reshard_of_sharded",
                   "unsharded_at_end", "repeated_compute", "missing_compute", "backward_before_forward",
                   "segment_order", "weight_before_input", "missing_recompute", "idle_recompute", "unmatched_send",
                   "unmatched_receive", "crossed_messages", "missing_receive", "repeated_receive",
                   "send_before_compute", "wrong_peer", "deadlock", "collective_order", "reduced_too_early",
                   "missing_reduction", "repeated_reduction", "tied_too_early", "missing_tie", "repeated_tie",
                   "idle_wait", "step_too_early", "missing_update", "beyond_forward", "broken_pair", "broken_parts",
                   "read_while_away", "idle_offload", "over_budget");
}

struct Finding {
  Violation violation;
  int rank = 0;           // pipeline rank; a row of the grid
  std::size_t index = 0;  // position in the rank's list; == size for "at the end"
  std::string message;    // one sentence
};

struct CheckOptions {
  std::optional<std::int64_t> memory_budget = {};  // bytes, for the sum of TransientPeak
  // Groups of ranks (rows) that share their gathers and reductions. By default every row has replicas with the same
  // list.
  std::vector<std::vector<int>> replica_rows = {};
};

// All findings, in order of discovery; empty if the program is sound.
std::vector<Finding> find_violations(const Program& program, const CheckOptions& options = {});

// Throws Error (failure) with the first finding and the grid of actions around it, the failing cell marked.
void check(const Program& program, const CheckOptions& options = {});

// The grid of actions of all ranks near a cell, one row per rank, with the cell marked `>>like this<<`.
std::string format_grid(const Program& program, int rank, std::size_t index, std::size_t cells_around = 4);

}  // namespace weft
