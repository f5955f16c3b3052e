// Proves that a program can run: every action legal in the state it meets, exchange matched and free of deadlock,
// collectives of a group in one order, memory within a budget. Independent of the passes that made the program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

enum class Violation : std::uint8_t {
  unknown_stage,  // an action on a stage another rank runs, or that does not exist
  used_while_sharded,
  double_unshard,
  wrong_gather,  // over the island while it holds nothing, or past it while it does
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
  missing_receive,   // compute on data that never came
  repeated_receive,  // the same data twice
  send_before_compute,
  wrong_peer,
  deadlock,
  collective_order,    // ranks of a group disagree on the order of their collectives
  reduced_too_early,   // REDUCE_GRAD while a weight gradient of the same interval is still to come
  missing_reduction,   // STEP or end with gradients not reduced
  repeated_reduction,  // REDUCE_GRAD with nothing new to reduce
  tied_too_early,  // TIE_GRAD before a reduction of one of its copies, or before work that its other rank may wait for
  missing_tie,     // GRAD_NORM, STEP or end with a tied unit that holds the sum of its own stage alone
  repeated_tie,    // TIE_GRAD of what is tied already, or of a unit without a copy
  idle_wait,       // WAIT_REDUCE of a unit with no reduction under way
  step_too_early,  // work of the step after STEP, or STEP before GRAD_NORM
  missing_update,  // GRAD_NORM or STEP on some ranks only
  beyond_forward,  // anything but forwards, their messages and their units in a program that is forward only
  broken_pair,     // marked as overlapped without a partner beside it, or only in part
  over_budget,
};
std::string_view name_of(Violation violation);

struct Finding {
  Violation violation;
  int rank = 0;           // pipeline rank; a row of the grid
  std::size_t index = 0;  // position in the rank's list; == size for "at the end"
  std::string message;    // one sentence
};

struct CheckOptions {
  std::optional<std::int64_t> memory_budget = {};  // of what TransientPeak adds up, in bytes
  // Ranks (rows) that share their gathers and reductions; by default every row has replicas running the same list.
  std::vector<std::vector<int>> replica_rows = {};
};

// All findings, in order of discovery; empty when the program is sound.
std::vector<Finding> find_violations(const Program& program, const CheckOptions& options = {});

// Throws Error (failure) with the first finding, the grid of actions around it and the failing cell marked.
void check(const Program& program, const CheckOptions& options = {});

// The grid of actions of all ranks near a cell, one row per rank, the cell marked `>>like this<<`.
std::string format_grid(const Program& program, int rank, std::size_t index, std::size_t cells_around = 4);

// Largest sum of gathered parameters, unsharded gradients, inputs and outputs of reductions and what segments keep of
// microbatches (activations, or a checkpoint until they are made again, then what waits for the weight gradient; in a
// forward-only program activations while their segment runs) over a rank's list, and where it stands.
struct TransientPeak {
  std::int64_t bytes = 0;
  std::size_t index = 0;
  std::int64_t unsharded_parameters = 0, unsharded_gradients = 0, communication = 0, activations = 0;
  int microbatches_in_flight = 0;  // largest number of microbatches of which anything is kept, over the whole list
};
TransientPeak transient_peak(const Program& program, int rank);

}  // namespace weft
