// A training step as data: for each pipeline rank the list of its actions, and the tables they point into. Compiled
// from a configuration before anything is allocated; checked, printed, executed and compared with what was measured.
// All ranks of one pipeline coordinate run the same list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/mesh/mesh.h"
#include "parallel/pipeline/action.h"
#include "parallel/runtime/parameter.h"

namespace weft {

// When full parameters of a unit exist. `each_use`: from just before a use to just after it. `visit`: while consecutive
// actions of the rank stay on the unit's stage. `step`: from the first use to the last one of the step.
enum class Residency : std::uint8_t { each_use, visit, step };
std::string_view name_of(Residency residency);

// Three independent choices for a unit.
struct UnitPolicy {
  Residency residency = Residency::each_use;
  int lookahead = 1;        // how many segment actions ahead of its use a gather is issued
  int reduce_every = 0;     // reduce after every n-th microbatch and after the last; 0: after the last only
  std::string reason = {};  // why, in words, for `weft units`

  bool operator==(const UnitPolicy&) const = default;
};

// A shard unit, or the replicated parameters of a stage, as the program needs to know it.
struct ProgramUnit {
  std::string name = {};  // "blocks.3.experts"
  Family family = Family::root;
  int stage = 0;
  bool replicated = false;           // never gathered; its gradient is all-reduced
  std::int64_t unsharded_bytes = 0;  // gathered parameters, compute dtype; 0 when a rank computes on its own shard
  std::int64_t gradient_bytes = 0;   // unsharded gradient accumulator, float32
  std::int64_t gather_bytes = 0;     // payload of UNSHARD
  std::int64_t reduce_bytes = 0;     // payload of REDUCE_GRAD, reduction dtype
  Group group = Group::dp_shard;     // over which it is gathered and reduced
  UnitPolicy policy = {};

  bool operator==(const ProgramUnit&) const = default;
};

// A collective performed inside a segment, per microbatch. `bytes` is its payload, or a bound on it where tokens
// decide.
struct SegmentCollective {
  Op during = Op::forward;  // forward, backward_input or backward_weight
  CollectiveOp op = CollectiveOp::all_reduce;
  Group group = Group::tp;
  std::int64_t count = 0;
  std::int64_t bytes = 0;
  bool is_bound = false;

  bool operator==(const SegmentCollective&) const = default;
};

// The smallest piece that is scheduled: embedding, attention part of a block, its dense or expert part, the head.
struct ProgramSegment {
  std::string name = {};  // "blocks.3.experts"
  int stage = 0;
  std::vector<int> units = {};        // what forward and input gradient read, and weight gradient adds to
  std::int64_t activation_bytes = 0;  // kept per microbatch from forward to backward (a bound with routed tokens)
  std::vector<SegmentCollective> collectives = {};

  bool operator==(const ProgramSegment&) const = default;
};

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

  bool operator==(const ProgramTables&) const = default;
};

struct Program : ProgramTables {
  int microbatches = 0;
  std::vector<std::vector<Action>> ranks;  // by pipeline rank

  bool operator==(const Program&) const = default;
};

// `stages` stages dealt to `ranks` ranks in turn (stage s on rank s % ranks), nothing else known.
ProgramTables bare_tables(int ranks, int stages);

}  // namespace weft
