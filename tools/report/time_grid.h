// A simulated step in characters, to scale: what each rank computes when. For steps small enough to be read so.
#pragma once

#include <string>

#include "parallel/pipeline/picture/picture.h"

namespace weft {

// A line a rank: (microbatch) a forward, [microbatch] a backward or input gradient, <microbatch> a weight gradient, as
// long as they take; blanks are idle or collectives. Empty where cells would be too narrow to hold their numbers.
std::string time_grid(const Picture& picture, int columns = 120);
// The same without a picture where computations are more than columns.
std::string time_grid(const Program& program, const SimulatedStep& step, const PictureOptions& options,
                      int columns = 120);

}  // namespace weft
