// A training step as data: the list of actions of each pipeline rank, and the tables that the actions refer to. A
// program is compiled from a configuration before anything is allocated; it is checked, printed, executed and compared
// with measurements. All ranks of one pipeline coordinate run the same list.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/action.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/parameter.h"

namespace weft {

// The pipeline rank of each stage if a rank runs several stages (its chunks).
enum class Placement : std::uint8_t {
  looped,  // every chunk begins anew at rank 0: stage s on rank s % ranks
  v,       // even chunks run up the ranks, odd chunks down, so that the turn costs no message
};

constexpr int stage_of(Placement placement, int ranks, int rank, int chunk) {
  const bool down = placement == Placement::v && chunk % 2 == 1;
  return chunk * ranks + (down ? ranks - 1 - rank : rank);
}

constexpr int rank_of(Placement placement, int ranks, int stage) {
  const bool down = placement == Placement::v && stage / ranks % 2 == 1;
  return down ? ranks - 1 - stage % ranks : stage % ranks;
}

// How long the full parameters of a unit stay after a use. They always stay between uses that directly follow each
// other.
enum class Residency : std::uint8_t {
  reshard_after_use,    // resharded after every use
  keep_after_forward,   // kept after a forward until the next use, resharded after a backward
  keep_after_backward,  // kept after a backward until the next use, resharded after a forward
  while_on_stage,       // kept while consecutive actions of the rank stay on the unit's stage
  window,               // kept while the unit's stage is among the next `window_stages` different stages of the rank
  step,                 // kept until the last use of the step
  island,               // as reshard_after_use, but after a forward each island rank keeps a part, for the next gather
  solved,               // by a plan for the whole step, within a memory budget (timed_step.h)
};
constexpr auto enum_names(Residency) {
  return name_list("reshard_after_use", "keep_after_forward", "keep_after_backward", "while_on_stage", "window", "step",
                   "island", "auto");
}

// Where the gathers of a backward begin. pre: as the lookahead says. post: behind the computation before their use.
// none: behind the reductions of that computation too. (FSDP's BACKWARD_PRE, BACKWARD_POST and None.)
enum class BackwardPrefetch : std::uint8_t { pre, post, none };
constexpr auto enum_names(BackwardPrefetch) {
  return name_list("pre", "post", "none");
}

// Three independent choices for a unit: how long its parameters stay, how early they are gathered, and when its
// gradients are reduced.
struct UnitPolicy {
  Residency residency = Residency::reshard_after_use;
  int window_stages = 0;  // of Residency::window
  int island_ranks = 0;   // of Residency::island
  // How many segments ahead a gather is issued. Only segments that find a unit sharded count, each once, however many
  // units it reads. 1: the gather is issued where the last such segment before its own last began to be used.
  int lookahead = 1;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool within_stage = false;  // a gather never stands before a computation of another stage than the unit's
  int reduce_every = 0;       // reduce after every n-th microbatch and after the last; 0: after the last only
  // Between reductions, the gradient of every microbatch is scattered (SCATTER_GRAD) and added up in shards. Only the
  // sum over replicas then waits for the reduction.
  bool accumulate_sharded = false;
  std::string reason = {};  // the reason for the policy, in words, for `weft units`

  bool operator==(const UnitPolicy&) const = default;
};

// Collectives of one kind that an action performs on a rank. The action is a gather or reduction of a unit, a compute
// action of a segment (for each microbatch), GRAD_NORM or STEP. `bytes` is the payload of all of them as counters.h
// counts it, or an upper bound if token routing decides the payload.
struct ProgramCollective {
  Op during = Op::forward;
  CollectiveOp op = CollectiveOp::all_reduce;
  Group group = Group::world;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;
  std::int64_t timed_bytes = 0;  // if `bytes` is a bound: the payload that costs time
  bool once = false;             // of a forward: R does not repeat it
  int beside = 0;  // of a segment: number of the exchange of rows that it belongs to if the action is cut; 0: of none

  bool operator==(const ProgramCollective&) const = default;
};

// A shard unit, or the replicated parameters of a stage, with the facts that the program needs.
struct ProgramUnit {
  std::string name = {};  // "blocks.3.experts"
  Family family = Family::root;
  int stage = 0;
  bool replicated = false;              // never gathered; its gradient is all-reduced
  bool frozen = false;                  // gathered, but has no gradient
  std::int64_t unsharded_bytes = 0;     // gathered parameters, compute dtype; 0 when a rank computes on its own shard
  std::int64_t island_bytes = 0;        // the part of them that RESHARD_SECONDARY keeps
  std::int64_t gradient_bytes = 0;      // unsharded gradient accumulator, float32
  std::int64_t reduce_input_bytes = 0;  // copy of the accumulator in the reduction dtype; 0 if the dtypes are equal
  std::int64_t reduce_part_bytes = 0;   // this rank's part of a reduction, before it is added to the shard
  std::int64_t gather_bytes = 0;        // payload of UNSHARD
  std::int64_t reduce_bytes = 0;        // payload of SCATTER_GRAD and REDUCE_GRAD, reduction dtype
  // The units that hold copies of the same parameter, one a stage and ascending, this one among them. Each accumulates
  // the gradient of its own stage. TIE_GRAD gives all of them the sum, so that they are stepped alike. Empty for a unit
  // without another copy, and if frozen.
  std::vector<int> copies = {};
  // If true, TIE_GRAD sums the accumulators and the only reduction of the step follows it. A reduction in 16 bits then
  // rounds the sum once, as on a stage that adds all. If false, TIE_GRAD sums the reduced shards, which are fewer
  // bytes.
  bool tied_unreduced = false;
  std::int64_t tie_bytes = 0;     // payload of TIE_GRAD, float32; 0 where one rank runs the stages of all copies
  Group group = Group::dp_shard;  // the group that gathers and reduces the unit
  std::vector<ProgramCollective> collectives = {};
  UnitPolicy policy = {};

  bool operator==(const ProgramUnit&) const = default;
};

// Bytes of a gradient of the unit from its first addition to the end of its reduction. 0 if the gradient adds up in the
// shard itself: then there is nothing to time.
inline std::int64_t timed_gradient_bytes(const ProgramUnit& unit) {
  return unit.frozen ? 0 : unit.gradient_bytes + unit.reduce_input_bytes + unit.reduce_part_bytes;
}

// The smallest piece that is scheduled: embedding, attention part of a block, its dense or expert part, the head.
struct ProgramSegment {
  std::string name = {};  // "blocks.3.experts", for readers
  ModelPart part = {};
  int stage = 0;
  std::vector<int> units = {};         // read by forward and input gradient, added to by weight gradient
  bool reads_weights_backward = true;  // false if no input gradient needs the weights (embedding)
  // Bytes kept per microbatch. `activation_bytes` live from the forward (or R, in a region) to the input gradient.
  // `pending_bytes` then live in their place until the weight gradient. Upper bounds with routed tokens.
  std::int64_t activation_bytes = 0, pending_bytes = 0;
  // Consecutive segments of a stage with one number form a region. Their forward keeps `checkpoint_bytes` until R runs
  // it again, before the first input gradient of the region. These are the input of the first segment, and the values
  // that a segment remembers for R. Absent if the segment keeps all its activations. The number has no other meaning.
  std::optional<int> region = {};
  std::int64_t checkpoint_bytes = 0;
  // The part of forward_bytes() that may wait in host memory for the backward; 0: none.
  std::int64_t offload_bytes = 0;
  std::vector<ProgramCollective> collectives = {};

  bool operator==(const ProgramSegment&) const = default;
};

// Whether a compute action of the segment reads its units.
inline bool reads_units(const ProgramSegment& segment, Op op) {
  return reads_parameters(op) && (op == Op::forward || op == Op::recompute || segment.reads_weights_backward);
}
// Number of exchanges of rows at which a compute action of the segment can be cut.
int row_exchanges(const ProgramSegment& segment, Op op);
// Whether an action of the whole stage includes the segment: R includes only segments in a region.
inline bool takes_part(const ProgramSegment& segment, Op op) {
  return op != Op::recompute || segment.region;
}
// Bytes kept of a microbatch after a forward of the segment.
inline std::int64_t forward_bytes(const ProgramSegment& segment) {
  return segment.region ? segment.checkpoint_bytes : segment.activation_bytes;
}

struct ProgramStage {
  int rank = 0;                    // pipeline rank that runs it
  std::vector<int> segments = {};  // in forward order
  std::int64_t output_bytes = 0;   // activations sent to the next stage per microbatch; the gradient has the same size

  bool operator==(const ProgramStage&) const = default;
};

// The inputs of a compilation, except the schedule. A bare schedule has stages without segments or units.
struct ProgramTables {
  std::vector<ProgramStage> stages;
  std::vector<ProgramSegment> segments;
  std::vector<ProgramUnit> units;
  // Number of reduction inputs that may be in flight beside the accumulator being filled. A solved step has no such
  // bound: it has a WAIT_REDUCE for each reduction that must have ended.
  int reduce_inputs = 1;
  std::vector<ProgramCollective> update;  // of the rank that the sizes in these tables describe
  std::int64_t update_host_bytes = 0;     // of optimizer states that visit the device at STEP, one way; of that rank
  // A forward-only program: a segment that has run keeps nothing of a microbatch, and nothing is reduced.
  bool forward_only = false;

  bool operator==(const ProgramTables&) const = default;
};

struct Program : ProgramTables {
  int microbatches = 0;
  std::vector<std::vector<Action>> ranks;  // by pipeline rank

  bool operator==(const Program&) const = default;
};

// `sSEND_F` sends the output of stage s to stage s + 1; `sSEND_B` sends the gradient of its input to stage s - 1.
// `sRECV_F` and `sRECV_B` are the other ends, named after the receiving stage.

// The stage at the other end; may lie outside the program.
constexpr int other_stage(Op op, int stage) {
  return op == Op::send_forward || op == Op::receive_backward ? stage + 1 : stage - 1;
}

// A gradient has the size of its activation, which is the output of the earlier of the two stages.
inline Action exchange_action(const ProgramTables& tables, Op op, int stage, int microbatch) {
  const int other = other_stage(op, stage);
  return {.op = op,
          .stage = stage,
          .microbatch = microbatch,
          .peer = tables.stages[other].rank,
          .bytes = tables.stages[std::min(stage, other)].output_bytes};
}

// Whether a message of this kind leaves its stage's rank: there is a stage at the other end, on another rank.
bool crosses_ranks(const ProgramTables& tables, Op op, int stage);

// The pipeline ranks that hold the copies of a tied unit, ascending, each once; empty for another unit.
std::vector<int> tied_ranks(const ProgramTables& tables, const ProgramUnit& unit);
// The copies of a tied unit on a pipeline rank. The rank's one TIE_GRAD names the first of them and serves all.
std::vector<int> copies_on_rank(const ProgramTables& tables, const ProgramUnit& unit, int rank);

// The lanes of a message; `message` may be either of its ends.
MessageLanes message_lanes_of(const ProgramTables& tables, const Action& message);
// The lane of a rank that an action runs on.
Lane lane_of(const ProgramTables& tables, const Action& action);

// `stages` stages placed on `ranks` ranks, without segments, units or sizes. Throws Error (request) unless
// 1 <= ranks <= stages.
ProgramTables schedule_only_tables(int ranks, int stages, Placement placement = Placement::looped);

}  // namespace weft
