// The clock of an order in whole units of time: a walk of its own, against which the simulator and its drawing are
// held.
#pragma once

#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

// The start and end of each stage-level compute action, by rank and position. A forward takes one unit of time and a
// backward two (one for each half). Exchange costs nothing. An overlapped pair begins when both have their data and
// passes its results on when both are over.
struct TimedAction {
  Action action;
  int begin = 0, end = 0;
};
// `program` holds only the stage-level compute actions of an order (at_detail with compute_only), and possibly R.
// Throws Error (failure) on a deadlock.
std::vector<std::vector<TimedAction>> unit_timeline(const Program& program);

}  // namespace weft
