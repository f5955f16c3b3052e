// What the traces of a run say of its ranks: how long each computed, and which gathers computation stood still for.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/costs/measured_costs.h"

namespace weft {

// An action of computation, by segment and kind.
struct TracedCompute {
  double least = 0.0;  // seconds; of all microbatches and steps, since what disturbs a rank only adds to it
  int a_step = 0;      // how often
  // Every rank of the stage does the same work here and waits for no other: no collectives inside, no routed tokens.
  bool comparable = false;
};

struct TracedRank {
  int rank = 0, pipeline_rank = 0;
  std::map<std::pair<std::string, Op>, TracedCompute> computed;  // by name of the segment
  std::vector<std::int64_t> gather_bytes;                        // payloads of a step's gathers

  // Of a step on average: gathers with something computed before them, and those of them that ended after all that was
  // computed before their first use, though their turn in the list came only then; and for how long computation waited.
  double gathers = 0.0, late_gathers = 0.0, late_seconds = 0.0;

  double compute_seconds() const;  // of a step, undisturbed
};

// Throws Error (request) when a trace is not that of the configuration's program.
std::vector<TracedRank> traced_ranks(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces);

}  // namespace weft
