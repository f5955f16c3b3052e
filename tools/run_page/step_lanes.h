// The step of a run as planned, by simulation, beside the step as measured, from its traces.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "parallel/runtime/ledger.h"
#include "tools/picture/picture.h"
#include "trainer/config/config.h"

namespace weft {

// A recorded step of one pipeline.
struct MeasuredStep {
  Picture picture;  // ranks without a trace have no boxes
  std::int64_t step = 0;
  std::vector<std::int64_t> recorded = {};  // all steps in the traces, ascending
  std::vector<int> traced = {};             // pipeline ranks with a trace
};

struct StepLanes {
  Picture planned;
  std::vector<BucketBytes> peaks;        // bytes by pipeline rank, by dry runs with tokens routed evenly
  std::string costs;                     // in words: "modelled for cpu"
  std::optional<MeasuredStep> measured;  // absent without traces
  std::string unmeasured;                // why there is none although there are traces
};

// The pipeline is the one with most traced ranks. Of its recorded steps the one with the median time is shown. Its
// times are counted from the start of its first action on any traced rank. An action begins when its lane is free, so
// that waits for other lanes are part of it. Throws Error (request or failure) if the step cannot be planned, or has
// too many actions to draw.
StepLanes step_lanes(const Config& config, const std::filesystem::path& directory);

// Both steps as one picture: below each row of the plan, the same rank as measured. Without a measured step, the plan.
Picture paired(const StepLanes& lanes);

}  // namespace weft
