// Runs programs on numbers, by its own rules and with nothing of the checker. Every rank walks its list in turn as far
// as it gets. Messages carry values without labels, and at most one is under way in a direction between two ranks.
// A segment computes a hash of what went in. So a program that reads the wrong thing, in the wrong order or at the
// wrong time, ends with other numbers than the model says. One that cannot go on is seen to stand still.
#pragma once

#include <string>

#include "parallel/pipeline/program/program.h"

namespace weft {

// Nothing when the program runs to its end with the right numbers; otherwise what went wrong. Takes a bounded number of
// steps.
std::string fault_when_run(const Program& program);

}  // namespace weft
