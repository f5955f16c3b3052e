// A rank's list as a reader walks it: one line for each thing that happens, with the bytes that the rank sends and what
// is live behind it. Read off the compiled program and its tables; nothing is simulated and nothing runs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/program/program.h"

namespace weft {

// What one rank of a group of `ranks` sends in collectives of one kind with this payload (as counters.h counts it),
// rounded up:
//
//   all_gather, reduce_scatter   (n - 1) / n of it: every other part once, by a ring or directly
//   all_reduce                   twice that: a reduce_scatter and an all_gather
//   all_to_all                   (n - 1) / n of it, tokens shared evenly: what stays at home is not sent
//   send, broadcast              all of it
std::int64_t sent_bytes(CollectiveOp op, std::int64_t payload, std::int64_t ranks);

// Which of the collectives of an action is told: gathers and reductions of units have names of their own.
enum class WalkKind : std::uint8_t {
  gather,          // all_gather over the shard group
  gather_island,   // all_gather over the island
  copy,            // a whole unit to the dtype of compute; nothing travels
  free,            // RESHARD
  keep_part,       // RESHARD_ISLAND
  in_place,        // UNSHARD or RESHARD of parameters that are computed on where they lie: nothing happens
  compute,         // F, B, I, W
  reduce_scatter,  // of a sharded unit, with the sum over replicas where there are any
  scatter,         // SCATTER_GRAD: the same without replicas
  all_reduce,      // of a whole unit, or of routing helpers
  add,             // a reduction with nobody else: nothing travels
  tie,
  wait,
  message,  // between stages
  norm,
  step,
};
std::string_view name_of(WalkKind kind);

struct WalkLine {
  WalkKind kind = WalkKind::compute;
  Op op = Op::forward;
  std::size_t first = 0, actions = 1;  // positions in the rank's list
  std::optional<int> stage = {}, microbatch = {}, unit = {}, peer = {};
  std::string subject = {};       // a unit, block or segment; empty for what speaks of none
  std::optional<int> block = {};  // of the model, that it computes
  std::int64_t sent = 0;          // bytes, by this rank
  bool is_bound = false;          // tokens decide: at most so many
  LiveBytes live = {};            // once it is over
  // The largest up to here and inside it, each at its own instant; the last with what the rank holds all step.
  std::int64_t parameters_peak = 0, gradients_peak = 0, total_peak = 0;

  bool operator==(const WalkLine&) const = default;
};

// What a rank holds besides what its list tells.
struct WalkState {
  std::int64_t all_step = 0;  // its rows of parameters, their gradients and optimizer state, replicated parameters
  std::int64_t update = 0;    // taken by STEP, when nothing else that is transient is there
};

// `rank` of the mesh, whose sizes the program has. Neighbouring actions of one block and microbatch are one line unless
// `segments`.
std::vector<WalkLine> walk(const Program& program, const Mesh& mesh, int rank, const WalkState& state,
                           bool segments = false);

// A step in a row. Gathers and reductions are those that travel; each takes one from every rank of its group.
struct WalkSummary {
  int gathers = 0;         // over the shard group or an island
  int island_gathers = 0;  // of these
  int reductions = 0;
  std::int64_t sent = 0, sent_by_gathers = 0, sent_by_reductions = 0;
  bool is_bound = false;  // of `sent`
  std::int64_t parameters_peak = 0, gradients_peak = 0, state = 0, total_peak = 0;
  std::size_t peak_line = 0;  // the first line at which the total is largest

  bool operator==(const WalkSummary&) const = default;
};
WalkSummary summarize(std::span<const WalkLine> lines, const WalkState& state);

}  // namespace weft
