// Figures of each traced rank: its compute time, and the time that computation waited for gathers and reductions.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/measure/measured_costs.h"

namespace weft {

// Compute actions of one segment and kind.
struct TracedCompute {
  double least = 0.0;  // seconds, over all microbatches and steps: disturbances only add time
  int a_step = 0;      // how often
  // True if every rank of the stage does the same work here and waits for no other: no collectives, no routed tokens.
  bool comparable = false;
};

// A gather or reduction of the rank's list that communicates.
struct TracedExchange {
  Op op = Op::unshard;
  int unit = 0;
  Group group = Group::dp_shard;  // of the unit
  std::int64_t bytes = 0;         // payload
  bool again = false;             // gather: the unit was gathered earlier in the step; reduction: another one follows
  bool late = false;              // gather: no computation in the list between it and its first use
  // Mean seconds per step that computation waited for the exchange. In each step the wait of the group's traced rank
  // that waited least counts, so lateness of other ranks is left out. If all lanes take turns, the wait is the whole
  // span. Otherwise it begins when the compute lane has come to the first reader of the gathered parameters and the
  // reader's message is there. For a reduction it begins when the lane has come to WAIT_REDUCE of the unit or to
  // GRAD_NORM.
  double wait = 0.0;

  bool gathers() const { return is_gather(op); }
};

struct TracedRank {
  int rank = 0, pipeline_rank = 0;
  std::map<std::pair<std::string, Op>, TracedCompute> computed;  // by name of the segment
  std::vector<TracedExchange> exchanges;                         // in the order of the list

  double compute_seconds() const;  // of a step, at the least times
};

// Throws Error (request) if a trace does not belong to the configuration's program.
std::vector<TracedRank> traced_ranks(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces);

}  // namespace weft
