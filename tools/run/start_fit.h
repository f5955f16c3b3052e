// The fit of a run to its card, asked by `weft check` and `weft train` before its first step, in the same words.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "trainer/costs/hardware.h"

namespace weft {

// The hardware of the configuration. It has no memory where a run on a GPU has neither hardware.name nor
// hardware.memory, because the default row is not its card.
Hardware said_hardware(const Config& config);

// Throws Error (request) if the plan of the run exceeds the memory of `card`, unless run.ignore_plan is set. It names
// the bucket that decides and the best remedies. Warns of a plan that leaves little room. A card without memory is not
// checked. `config`: the configuration from `file` and the command line.
void require_room(const CLI::App& command, const std::string& file, const Config& config, const Hardware& card);

}  // namespace weft
