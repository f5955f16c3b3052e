// A run as a page shows it, read from its directory (trainer/run/run_directory.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/run_page/step_lanes.h"
#include "tools/run_page/step_table.h"
#include "trainer/config/config.h"

namespace weft {

// Texts that the weights of a checkpoint go on with.
struct CheckpointSamples {
  std::int64_t step = 0;
  std::vector<std::string> texts;  // without the prompt; bytes of the model, perhaps no UTF-8
};

struct ReportedRun {
  std::filesystem::path directory;  // as given
  std::string name;                 // run.name, with the directory behind it if another run has the same
  Config config;
  std::string config_text;  // config.toml
  StepTable table;
  std::optional<StepLanes> lanes;
  std::string unplanned;  // why the step has no lanes
  std::vector<CheckpointSamples> samples;
};

// Throws Error (request) with the file and the fault. Faults are a directory that is no run's or is given twice,
// metrics without a whole line, and a configuration unknown to this version. A step that cannot be planned is no error.
std::vector<ReportedRun> read_reported_runs(std::span<const std::string> directories);

}  // namespace weft
