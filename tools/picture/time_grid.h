// A simulated step in characters, to scale: each rank's computations over time. For small steps.
#pragma once

#include <string>

#include "tools/picture/picture.h"

namespace weft {

// One line per rank: (microbatch) a forward, [microbatch] a backward or input gradient, <microbatch> a weight gradient,
// each as wide as its time. Blanks are idle time or collectives. Empty if a cell is too narrow for its number.
std::string time_grid(const Picture& picture, int columns = 120);
// The same, without building a picture if there are more computations than columns.
std::string time_grid(const Program& program, const SimulatedStep& step, const PictureOptions& options,
                      int columns = 120);

}  // namespace weft
