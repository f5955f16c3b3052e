// The results of a sweep: for scripts as CSV, for the eye as a ranked table and a picture of time against memory.
#pragma once

#include <string>

#include "tools/report/layout_sweep.h"

namespace weft {

// A line a valid combination, in the order of choices; fields are quoted where they hold commas or quotes. Times are
// seconds, or units of the costs. `common` and the words of a point together reproduce it. "rank" is the place by time,
// "tied_rank" that of ranks_with_ties.
std::string sweep_csv(const Sweep& sweep, const Overrides& common, const Certainty& certainty);

// The `top` fastest with ranks_with_ties, how certain they are, and why the others were refused.
std::string sweep_table(const Sweep& sweep, std::size_t top, bool unit_time, const Certainty& certainty);

// A mark a combination; schedules differ in colour and shape, the front is a line. Labels say in what combinations
// differ.
std::string sweep_svg(const Sweep& sweep, const std::string& title, bool unit_time);

}  // namespace weft
