// A cost table of a run's actions, measured from the traces of its ranks (step_trace.h).
//
// A span lasts from the moment that its lane was free to the end of the action, so waits of the lane are included:
//
//   computation   F, B, I and W of a segment: on a GPU including waits for a gather or a message. The median over
//                 microbatches, steps and ranks removes these waits if fewer than half of the spans have one. If a
//                 segment performs collectives, each is taken from the stage's rank that waited least for its peers.
//   collectives   a gather, reduction or tie waits for peers and, on a GPU, for room or compute: the least of all.
//   messages      the time after the sender had posted: from the post, or from the start of the receive if later; the
//                 median.
//   update        GRAD_NORM waits for reductions and all ranks: the least. STEP: the median.
//
// A whole backward B is one span; half of it counts as input gradient, half as weight gradient. The clocks of the ranks
// must agree: all ranks run on one machine.
#pragma once

#include <filesystem>
#include <limits>
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
  std::string work_hash = {};  // of the traced configuration (resolved_run.h); empty in files of older versions
};

// Parses output of to_chrome_trace; `name` is the file's name in messages. Throws Error (request) with the missing
// parts.
RankTrace parse_chrome_trace(const std::string& text, const std::string& name);

inline constexpr int any_world = std::numeric_limits<int>::max();
// Reads the traces in the directory of a run of `world` ranks (run_directory.h), by rank; some ranks may have none.
// Throws Error (request) if a file is named after another rank than its trace.
std::vector<RankTrace> traces_in(const std::filesystem::path& run_directory, int world = any_world);
// The same; throws Error (request) if there is no trace at all.
std::vector<RankTrace> read_traces(const std::filesystem::path& run_directory, int world = any_world);
// Throws Error (request) if the traced configuration had other work (work_hash in resolved_run.h).
void require_traced_work(const Config& config, const RankTrace& trace);

// A span of an action, with the action's position in the rank's list.
struct TracedAction {
  std::size_t index = 0;
  const TraceSpan* span = nullptr;
};

// The actions of all steps in the trace. `program` is that of the trace's rank. Throws Error (request) if the spans are
// not the program's actions, or if the traced configuration had other work.
std::vector<TracedAction> traced_actions(const Config& config, const Program& program, const RankTrace& trace);

// Entries by name for every segment, unit and message that the traced ranks ran. Throws Error (request) if the spans do
// not belong to the configuration's program, or if a stage has no traced rank.
CostTable measured_costs(const Config& config, const Mesh& mesh, std::span<const RankTrace> traces);

}  // namespace weft
