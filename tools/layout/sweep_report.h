// Results of a sweep: CSV for scripts; a ranked table and a picture of time against memory for readers.
#pragma once

#include <string>

#include "tools/report/layout_sweep.h"

namespace weft {

// One line per valid combination, in the order of choices; fields with commas or quotes are quoted. Times are seconds,
// or units of the costs. `common` and the words of a point together reproduce the point. "rank" is the rank by time,
// "tied_rank" that of ranks_with_ties.
std::string sweep_csv(const Sweep& sweep, const Overrides& common, const Certainty& certainty);

// The `top` fastest with ranks_with_ties, their certainty, and why other combinations were refused.
std::string sweep_table(const Sweep& sweep, std::size_t top, bool unit_time, const Certainty& certainty);

// One mark per combination. Schedules differ in colour and shape; the front is a line. Labels show the differences
// between combinations.
std::string sweep_svg(const Sweep& sweep, const std::string& title, bool unit_time);

}  // namespace weft
