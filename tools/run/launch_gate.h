// Keeps `weft train` from starting ranks if the plan does not fit.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "trainer/config/config.h"

namespace weft {

// Throws Error (request) if the plan of the run exceeds a card's memory, naming the bucket that decides and the best
// moves, unless run.ignore_plan is set. The card's memory is hardware.memory or that of hardware.name. If neither is
// set, it is that of the GPU at hand; if that is unknown too, nothing is checked. `config`: the configuration from
// `file` and the command line.
void require_fit(const CLI::App& command, const std::string& file, const Config& config);

}  // namespace weft
