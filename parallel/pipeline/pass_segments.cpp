#include <algorithm>

#include "parallel/pipeline/passes.h"

namespace weft {
namespace {

std::vector<Action> lowered(const ProgramTables& tables, const std::vector<Action>& actions) {
  std::vector<Action> result;
  for (const Action& action : actions) {
    if (!is_compute(action.op) || action.segment) {
      result.push_back(action);
      continue;
    }
    std::vector<int> segments = tables.stages[static_cast<std::size_t>(action.stage.value())].segments;
    if (segments.empty()) result.push_back(action);
    if (action.op != Op::forward) std::reverse(segments.begin(), segments.end());
    for (int segment : segments) {
      result.push_back(action);
      result.back().segment = segment;
    }
  }
  return result;
}

}  // namespace

// Exchange keeps its place around the run of segments, so a receive still stands before the segment that reads what
// comes and a send behind the one that finishes what goes.
Program lower_to_segments(Program program) {
  for (auto& actions : program.ranks) actions = lowered(program, actions);
  return program;
}

}  // namespace weft
