// A rank's action list as lines for a reader: one line per event, with the bytes that the rank sends and the bytes live
// afterwards. Everything is read off the compiled program and its tables; nothing is simulated or run.
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
#include "parallel/runtime/enum_names.h"
#include "parallel/runtime/ledger.h"
#include "trainer/config/config.h"

namespace weft {

// ring_bytes() of a rank (topology.h), rounded up; 0 in a group of one.
std::int64_t sent_bytes(CollectiveOp op, std::int64_t payload, std::int64_t ranks);

// The kind of line for an action. Gathers and reductions of units have names of their own.
enum class WalkKind : std::uint8_t {
  gather,          // all_gather over the shard group
  gather_island,   // all_gather over the island
  copy,            // conversion of a whole unit to the compute dtype; no communication
  free,            // RESHARD
  keep_part,       // RESHARD_SECONDARY
  in_place,        // UNSHARD or RESHARD of parameters that are used where they lie: no work
  compute,         // F, B, I, W
  reduce_scatter,  // of a sharded unit, plus the sum over replicas if there are any
  scatter,         // SCATTER_GRAD: the same without replicas
  all_reduce,      // of a whole unit, or of routing helpers
  add,             // a reduction over one rank: no communication
  tie,
  wait,
  message,  // between stages
  norm,
  step,
  rows,     // between experts, behind a part of a computation
  offload,  // of kept bytes to host memory
  wait_offload,
  reload,
};
constexpr auto enum_names(WalkKind) {
  return name_list("gather", "gather_island", "copy", "free", "keep_part", "in_place", "compute", "reduce_scatter",
                   "scatter", "all_reduce", "add", "tie", "wait", "message", "norm", "step", "rows", "offload",
                   "wait_offload", "reload");
}

// Of gathers and reductions that communicate.
constexpr bool is_gather(WalkKind kind) {
  return kind == WalkKind::gather || kind == WalkKind::gather_island;
}
constexpr bool is_reduction(WalkKind kind) {
  return kind == WalkKind::reduce_scatter || kind == WalkKind::scatter || kind == WalkKind::all_reduce;
}
// Of an action of that rank of the mesh.
WalkKind kind_of(const Program& program, const Mesh& mesh, int rank, const Action& action);

struct WalkLine {
  WalkKind kind = WalkKind::compute;
  Op op = Op::forward;
  std::size_t first = 0, actions = 1;  // positions in the rank's list
  std::optional<int> stage = {}, microbatch = {}, unit = {}, peer = {};
  std::string subject = {};       // a unit, block or segment; empty if the line has none
  std::optional<int> block = {};  // index in the model of the block that it computes
  std::int64_t sent = 0;          // bytes sent by this rank
  bool is_bound = false;          // `sent` depends on the routing and is an upper bound
  BucketBytes live = {};          // after the line
  // Peaks up to the end of the line, each at its own instant. total_peak includes the bytes that the rank holds all
  // step.
  std::int64_t parameters_peak = 0, gradients_peak = 0, total_peak = 0;
};

// Bytes that a rank holds besides those of its list.
struct WalkState {
  std::int64_t all_step = 0;  // shards of parameters, gradients and optimizer state, replicated parameters
  std::int64_t update = 0;    // taken by STEP, when no other transient bytes are live
};

// `rank` is a rank of the mesh; the program has the mesh's sizes. Neighbouring actions of one block and microbatch
// share a line unless `segments` is set.
std::vector<WalkLine> walk(const Program& program, const Mesh& mesh, int rank, const WalkState& state,
                           bool segments = false);

// Totals of a step. Only gathers and reductions that communicate are counted; each involves every rank of its group.
struct WalkSummary {
  int gathers = 0;         // over the shard group or an island
  int island_gathers = 0;  // of `gathers`, over an island
  int reductions = 0;
  std::int64_t sent = 0, sent_by_gathers = 0, sent_by_reductions = 0;
  bool is_bound = false;  // `sent` is an upper bound
  std::int64_t parameters_peak = 0, gradients_peak = 0, state = 0, total_peak = 0;
  std::size_t peak_line = 0;  // the first line with the largest total

  bool operator==(const WalkSummary&) const = default;
};
WalkSummary summarize(std::span<const WalkLine> lines, const WalkState& state);

// The walk of a configured step, compiled as a run compiles it, for the first rank of a pipeline coordinate.
struct WalkedStep {
  Mesh mesh;
  int rank = 0;  // of the mesh
  Program program = {};
  BucketBytes state = {};  // bytes that the rank holds all step, by bucket
  std::vector<WalkLine> lines = {};
  WalkSummary summary = {};
  BucketBytes byte_steps = {};  // of the whole list (live_integral)
};

// Throws Error (request) if the configuration cannot be compiled or has no such pipeline rank.
WalkedStep walk_step(const Config& config, int pipeline_rank, bool segments = false);

}  // namespace weft
