// A picture of an order in characters: who computes what when, if a forward takes one unit of time and a backward two
// (one for each half). Exchange costs nothing. What is blank is the bubble. An overlapped pair begins when both have
// their data and hands on what both made when both are over; in between they are drawn one after the other, for how
// much time an overlap saves this picture does not know.
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
// `program` holds stage-level compute actions only, those of an order (at_detail with compute_only) or R besides.
// Throws Error (failure) on a deadlock.
std::vector<std::vector<TimedAction>> unit_timeline(const Program& program);

// One line a pipeline rank, a fixed number of characters a unit of time: the microbatch of each F (plain), B or I (in
// brackets) and W (in angles).
std::string format_timeline(const Program& program);

}  // namespace weft
