// Costs from a few words. `command` begins error messages.
#pragma once

#include <string>

#include "parallel/pipeline/simulation/simulate.h"

namespace weft {

// Costs that are the same for every rank. `words` are separated by blanks. forward=, backward_input= and
// backward_weight= (each 1 by default) are costs of all stages of a rank together, shared evenly among stages and their
// segments. gather= and reduce= are costs of all units of a rank once, shared by bytes; transfer= is that of a message.
// These, norm= and step= are 0 by default. Throws Error (request).
ProgramCosts costs_from_words(const std::string& command, const Program& program, const std::string& words);

}  // namespace weft
