// Reads the outputs of a run from its directory (run_directory.h).
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/config_value.h"
#include "trainer/measure/measured_costs.h"
#include "trainer/rank/metrics.h"

namespace weft {

// Memory of one rank at its largest peak of a step.
struct RankMemory {
  int rank = 0;
  BucketBytes predicted, measured;
};

struct RunOutputs {
  std::filesystem::path directory;
  Config config;
  std::vector<StepMetrics> steps;  // at least one, ascending
  std::vector<RankMemory> memory;  // by rank; empty if the run has no summary.json of this configuration yet
  bool earlier_summary = false;    // its summary.json is of another configuration than config.toml
  std::vector<RankTrace> traces;   // of the ranks that have a trace file
  std::map<std::string, ConfigValue> said = {};  // the written values of config.toml, by path
};

// Throws Error (request), with `before` in front of its text, unless config.toml and metrics.jsonl are there.
void require_run(const std::filesystem::path& directory, std::string_view before = {});
// Throws Error (request) with the file, the line of metrics.jsonl and the fault: no run directory, a truncated line, a
// missing key. summary.json and traces are optional.
RunOutputs read_run(const std::filesystem::path& directory);

// Parses a line of metrics.jsonl, as written by to_json (metrics.h). `place` begins error messages.
StepMetrics parse_step_metrics(std::string_view line, const std::string& place);

}  // namespace weft
