// What the traces of a run say of its ranks: how long each computed, and how long computation stood still for
// gathers and reductions.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/measure/measured_costs.h"

namespace weft {

// An action of computation, by segment and kind.
struct TracedCompute {
  double least = 0.0;  // seconds; of all microbatches and steps, since what disturbs a rank only adds to it
  int a_step = 0;      // how often
  // Every rank of the stage does the same work here and waits for no other: no collectives inside, no routed tokens.
  bool comparable = false;
};

// A gather or a reduction of the rank's list, which moves something.
struct TracedExchange {
  Op op = Op::unshard;
  int unit = 0;
  Group group = Group::dp_shard;  // of the unit
  std::int64_t bytes = 0;         // payload
  bool again = false;  // a gather of what was gathered earlier in the step; a reduction with another one to come
  bool late = false;   // a gather of which the list has nothing computed between it and its first use
  // Seconds of a step, on average, that computation stood still for it, whoever else was late: in each step as long as
  // with the traced rank of the group that waited least. Where all lanes take turns a rank waits for the whole span.
  // Otherwise for the part of it in which the compute lane had come to the first reader of the gathered parameters, and
  // the reader's message was there; of a reduction, had come to WAIT_REDUCE of the unit or to GRAD_NORM.
  double wait = 0.0;
};

struct TracedRank {
  int rank = 0, pipeline_rank = 0;
  std::map<std::pair<std::string, Op>, TracedCompute> computed;  // by name of the segment
  std::vector<TracedExchange> exchanges;                         // in the order of the list

  double compute_seconds() const;  // of a step, undisturbed
};

// Throws Error (request) when a trace is not that of the configuration's program.
std::vector<TracedRank> traced_ranks(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces);

}  // namespace weft
