// A training step as data: for each pipeline rank the list of its actions, and the tables they point into. Compiled
// from a configuration before anything is allocated; checked, printed, executed and compared with what was measured.
// All ranks of one pipeline coordinate run the same list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/program/action.h"
#include "parallel/pipeline/program/placement.h"
#include "parallel/runtime/lane.h"
#include "parallel/runtime/parameter.h"

namespace weft {

// How long the full parameters of a unit stay after a use. Uses that follow each other at once never drop them.
enum class Residency : std::uint8_t {
  each_use,             // not at all
  keep_after_forward,   // a forward keeps them, to the next use; a backward drops them
  keep_after_backward,  // a backward keeps them, a forward drops them
  visit,                // while consecutive actions of the rank stay on the unit's stage
  window,               // while the unit's stage is one of the next so many different stages of the rank
  step,                 // to the last use of the step
  island,               // not at all, but a forward leaves each rank of a small group a part: the next gather is theirs
  solved,               // as a plan for the whole step says, within a budget (timed_step.h)
};
std::string_view name_of(Residency residency);

// Three independent choices for a unit: how long parameters stay, how early they are gathered, when gradients are
// reduced.
struct UnitPolicy {
  Residency residency = Residency::each_use;
  int window_stages = 0;  // of Residency::window
  int island_ranks = 0;   // of Residency::island
  // How many segments ahead a gather is issued, of those that find units sharded: 1 is while the last such segment
  // before its own begins to be used. What one segment finds sharded counts once, however many units it reads.
  int lookahead = 1;
  int reduce_every = 0;  // reduce after every n-th microbatch and after the last; 0: after the last only
  // Between reductions every microbatch's gradient is scattered and added up in shards. Only the sum over replicas then
  // waits for the reduction.
  bool accumulate_sharded = false;
  std::string reason = {};  // why, in words, for `weft units`

  bool operator==(const UnitPolicy&) const = default;
};

// A collective that an action of a unit performs. `bytes` is its payload as counters.h counts it.
struct UnitCollective {
  Op during = Op::unshard;  // a gather or a reduction
  CollectiveOp op = CollectiveOp::all_gather;
  Group group = Group::dp_shard;
  std::int64_t bytes = 0;

  bool operator==(const UnitCollective&) const = default;
};

// A shard unit, or the replicated parameters of a stage, as the program needs to know it.
struct ProgramUnit {
  std::string name = {};  // "blocks.3.experts"
  Family family = Family::root;
  int stage = 0;
  bool replicated = false;              // never gathered; its gradient is all-reduced
  bool frozen = false;                  // gathered, but never given a gradient
  std::int64_t unsharded_bytes = 0;     // gathered parameters, compute dtype; 0 when a rank computes on its own shard
  std::int64_t island_bytes = 0;        // what RESHARD_ISLAND keeps of them
  std::int64_t gradient_bytes = 0;      // unsharded gradient accumulator, float32
  std::int64_t reduce_input_bytes = 0;  // the accumulator in the reduction dtype, where that is another
  std::int64_t reduce_part_bytes = 0;   // this rank's part of a reduction, before it is added to the shard
  std::int64_t gather_bytes = 0;        // payload of UNSHARD
  std::int64_t reduce_bytes = 0;        // payload of SCATTER_GRAD and REDUCE_GRAD, reduction dtype
  // The unit of another stage that holds a copy of the same parameter, which names this one. Each is given what its own
  // stage adds to the gradient, and TIE_GRAD makes both the sum, so that both are stepped alike. Absent when frozen.
  std::optional<int> tied_to = {};
  // TIE_GRAD sums the accumulators, and the one reduction of the step comes behind it: a reduction in 16 bits rounds
  // the sum once, as on a stage that adds both. Otherwise it sums the reduced shards, which are fewer bytes.
  bool tied_unreduced = false;
  std::int64_t tie_bytes = 0;     // payload of TIE_GRAD, float32; 0 where one rank runs both stages
  Group group = Group::dp_shard;  // over which it is gathered and reduced
  std::vector<UnitCollective> collectives = {};
  UnitPolicy policy = {};

  bool operator==(const ProgramUnit&) const = default;
};

// Bytes that a gradient of the unit takes from its first addition to the end of its reduction; none where it adds up in
// the shard itself, and then there is nothing to time.
inline std::int64_t timed_gradient_bytes(const ProgramUnit& unit) {
  return unit.frozen ? 0 : unit.gradient_bytes + unit.reduce_input_bytes + unit.reduce_part_bytes;
}

// A collective performed inside a segment, per microbatch. `bytes` is its payload, or a bound on it where tokens
// decide.
struct SegmentCollective {
  Op during = Op::forward;  // forward, backward_input, backward_weight or recompute
  CollectiveOp op = CollectiveOp::all_reduce;
  Group group = Group::tp;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;
  std::int64_t even_bytes = 0;  // where `bytes` is a bound: what it is when tokens are dealt evenly
  bool once = false;            // of a forward: not when it runs again

  bool operator==(const SegmentCollective&) const = default;
};

// A collective of GRAD_NORM or STEP, as one rank performs it.
struct UpdateCollective {
  Op during = Op::gradient_norm;
  CollectiveOp op = CollectiveOp::all_reduce;
  Group group = Group::world;
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // of all of them

  bool operator==(const UpdateCollective&) const = default;
};

// The smallest piece that is scheduled: embedding, attention part of a block, its dense or expert part, the head.
struct ProgramSegment {
  std::string name = {};  // "blocks.3.experts", for readers
  ModelPart part = {};
  int stage = 0;
  std::vector<int> units = {};         // what forward and input gradient read, and weight gradient adds to
  bool reads_weights_backward = true;  // false where no input gradient needs them (embedding)
  // Kept per microbatch from forward (or R, of a segment in a region) to input gradient, and in their place from there
  // to weight gradient (bounds with routed tokens).
  std::int64_t activation_bytes = 0, pending_bytes = 0;
  // Segments of one region follow each other in a stage. Their forward keeps `checkpoint_bytes` until R runs it again,
  // before the first input gradient of the region: of the first segment its input, and of any what it remembers. Absent
  // where all is kept. The number has no other meaning.
  std::optional<int> region = {};
  std::int64_t checkpoint_bytes = 0;
  std::vector<SegmentCollective> collectives = {};

  bool operator==(const ProgramSegment&) const = default;
};

// Whether a compute action of the segment reads its units.
inline bool reads_units(const ProgramSegment& segment, Op op) {
  return reads_parameters(op) && (op == Op::forward || op == Op::recompute || segment.reads_weights_backward);
}
// Whether an action of the segment's whole stage speaks of it: R only does of what is in a region.
inline bool takes_part(const ProgramSegment& segment, Op op) {
  return op != Op::recompute || segment.region;
}
// Bytes kept of a microbatch behind a forward of the segment.
inline std::int64_t forward_bytes(const ProgramSegment& segment) {
  return segment.region ? segment.checkpoint_bytes : segment.activation_bytes;
}

struct ProgramStage {
  int rank = 0;                    // pipeline rank that runs it
  std::vector<int> segments = {};  // in forward order
  std::int64_t output_bytes = 0;  // activations handed to the next stage per microbatch; its gradient has the same size

  bool operator==(const ProgramStage&) const = default;
};

// What a program is compiled from, besides the schedule. A bare schedule has stages without segments or units.
struct ProgramTables {
  std::vector<ProgramStage> stages;
  std::vector<ProgramSegment> segments;
  std::vector<ProgramUnit> units;
  // Inputs of reductions that may be in flight beside the accumulator that is being filled. A solved step has a
  // WAIT_REDUCE for each that must have ended, and no other bound.
  int reduce_inputs = 1;
  std::vector<UpdateCollective> update;  // of the rank for which the sizes of these tables hold
  // A program of forwards alone: nothing is kept of a microbatch in a segment that has run, and nothing is reduced.
  bool forward_only = false;

  bool operator==(const ProgramTables&) const = default;
};

struct Program : ProgramTables {
  int microbatches = 0;
  std::vector<std::vector<Action>> ranks;  // by pipeline rank

  bool operator==(const Program&) const = default;
};

// The pipeline rank that holds the other copy of a tied unit.
int tied_rank(const ProgramTables& tables, const ProgramUnit& unit);

// The lanes that a message takes, as either of its ends names it.
MessageLanes message_lanes_of(const ProgramTables& tables, const Action& message);
// Which queue of a rank an action runs on.
Lane lane_of(const ProgramTables& tables, const Action& action);

// `stages` stages dealt to `ranks` ranks as a schedule places them, nothing else known.
ProgramTables bare_tables(int ranks, int stages, Placement placement = Placement::looped);

}  // namespace weft
