// A whole run with its output, as `weft train` has it.
#pragma once

#include "trainer/resolve/config_reader.h"
#include "trainer/run/run_steps.h"

namespace weft {

class Console;

// As run_steps(), with the output of `weft train` in run.directory (config.toml, metrics.jsonl, event files,
// summary.json, traces) and on the console.
TrainResult train(const ResolvedConfig& resolved, const RunRecord& record, Console& console,
                  const RunRequests& requests = {});

}  // namespace weft
