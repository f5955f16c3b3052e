// A picture of an order in characters: which rank computes what and when, if a forward takes one unit of time and a
// backward two (one for each half). Exchange costs nothing. Blank space is the bubble. An overlapped pair begins when
// both have their data and passes its results on when both are over. In between the two are drawn one after the other,
// because the time that an overlap saves is not known here.
#pragma once

#include <string>

#include "parallel/pipeline/program/program.h"

namespace weft {

// When each stage-level compute action starts and ends, by rank and position; other actions are left out.
struct TimedAction {
  Action action;
  int begin = 0, end = 0;
  bool operator==(const TimedAction&) const = default;
};
// `program` holds only the stage-level compute actions of an order (at_detail with compute_only), and possibly R.
// Throws Error (failure) on a deadlock.
std::vector<std::vector<TimedAction>> unit_timeline(const Program& program);

// One line per pipeline rank, a fixed number of characters per unit of time: the microbatch of each F (plain), B or I
// (in brackets), W (in angles) and R (in braces).
std::string format_timeline(const Program& program);

}  // namespace weft
