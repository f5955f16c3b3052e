// What stands between a plan that says "does not fit" and the ranks of `weft train`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "trainer/config/config.h"

namespace weft {

// Throws Error (request) where the plan of the run exceeds the memory of a card, naming the bucket that decides and the
// best moves, unless run.ignore_plan is set. Of a card: hardware.memory or that of hardware.name; where neither is
// written, that of the GPU at hand; where none is known, nothing is judged. `config` is what `file` and the command line
// came to.
void require_fit(const CLI::App& command, const std::string& file, const Config& config);

}  // namespace weft
