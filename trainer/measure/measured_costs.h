// What a run's actions took, as a cost table: from the traces of its ranks (step_trace.h).
//
// A span lasts from where its lane was free to where the action was done, so what the lane waited for is inside:
//
//   computation   F, B, I and W of a segment: on a GPU a wait for a gather or a message is inside; the median over
//                 microbatches, steps and ranks leaves it out where less than half of them wait. Where a segment
//                 performs collectives, each is taken from the rank of the stage that waited least for its peers.
//   collectives   a gather, reduction or tie waits for peers and, on a GPU, for room or compute: the least of all.
//   messages      only what came after the sender had posted: from then, or from the begin of the receive if that was
//                 later; the median.
//   update        GRAD_NORM waits for reductions and all ranks: the least. STEP: the median.
//
// A whole backward B is one span; it is shared out to input and weight gradient as 1 to 1. Clocks of the ranks are one:
// the ranks ran on one machine.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/costs/cost_table.h"
#include "trainer/rank/step_trace.h"

namespace weft {

struct RankTrace {
  int rank = 0;  // in the world
  std::vector<TraceSpan> spans;
  std::vector<TraceSpan> work = {};
};

// What to_chrome_trace has written; `name` stands for the file in messages. Throws Error (request) with what is
// missing.
RankTrace parse_chrome_trace(const std::string& text, const std::string& name);

// Those that a run of so many ranks has left in its directory (run_directory.h); not every rank need have. Throws Error
// (request) where there is none.
std::vector<RankTrace> read_traces(const std::filesystem::path& run_directory, int world);

// A span that is an action, with its place in the list of the rank.
struct TracedAction {
  std::size_t index = 0;
  const TraceSpan* span = nullptr;
};

// Of all steps in the trace. `program` is that of the trace's rank. Throws Error (request) when the spans are not its
// actions.
std::vector<TracedAction> traced_actions(const Program& program, const Mesh& mesh, const RankTrace& trace);

// Entries for every segment, unit and message that the traced ranks ran, by name. Throws Error (request) when the spans
// are not those of this configuration's program, or when a stage of it was traced on no rank.
CostTable measured_costs(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces);

}  // namespace weft
