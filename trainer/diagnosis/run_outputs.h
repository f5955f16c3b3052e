// What a run has left in its directory (run_directory.h), read back.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/measure/measured_costs.h"
#include "trainer/rank/metrics.h"

namespace weft {

// Of one rank, at the peak of the run's last step.
struct RankMemory {
  int rank = 0;
  BucketBytes predicted, measured;
};

struct RunOutputs {
  std::filesystem::path directory;
  Config config;
  std::vector<StepMetrics> steps;  // at least one, ascending
  std::vector<RankMemory> memory;  // by rank; empty where the run has no summary.json yet
  std::vector<RankTrace> traces;   // of the ranks that left one
};

// Throws Error (request) with the file, the line of metrics.jsonl, and what is wrong: a directory that is none of a
// run, a line that is cut off, a key that is missing. summary.json and traces need not be there.
RunOutputs read_run(const std::filesystem::path& directory);

// One line of metrics.jsonl, as to_json (metrics.h) writes it. `place` begins messages.
StepMetrics parse_step_metrics(const std::string& line, const std::string& place);

}  // namespace weft
