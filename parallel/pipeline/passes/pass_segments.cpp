#include <algorithm>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/overlap.h"

namespace weft {
namespace {

// One action per segment of the stage, in the order in which they run.
std::vector<Action> segments_of(const ProgramTables& tables, const Action& action) {
  if (!is_compute(action.op) || action.segment) return {action};
  std::vector<int> segments = tables.stages[action.stage.value()].segments;
  if (segments.empty()) return {action};
  if (action.op != Op::forward) std::reverse(segments.begin(), segments.end());
  std::vector<Action> result;
  for (int segment : segments) {
    result.push_back(action);
    result.back().segment = segment;
  }
  return result;
}

// The segments of the two halves alternate, because a rank runs its list in order. The exchange between experts that
// ends a segment of one half then runs on its own lane while the next segment of the other half computes. With one
// stage after the other, a segment would wait for its own exchange. A half with more segments takes several turns per
// turn of the other, evenly. The forward begins and the backward ends, as without the overlap, so that the actions
// before and behind the pair find the same units in use.
std::vector<Action> alternated(const std::vector<Action>& forward, const std::vector<Action>& backward) {
  std::vector<Action> result;
  std::size_t f = 0, b = 0;
  while (f < forward.size() || b < backward.size()) {
    const bool backward_is_due = (b + 1) * forward.size() <= f * backward.size();
    result.push_back(backward_is_due ? backward[b++] : forward[f++]);
  }
  return result;
}

std::vector<Action> lowered(const ProgramTables& tables, const std::vector<Action>& actions) {
  std::vector<Action> result;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    std::vector<Action> segments = segments_of(tables, actions[i]);
    if (pair_begins_at(actions, i)) segments = alternated(segments, segments_of(tables, actions[++i]));
    result.insert(result.end(), segments.begin(), segments.end());
  }
  return result;
}

}  // namespace

// Exchange keeps its place around the segments of a stage: a receive still stands before the segment that reads its
// data, a send behind the segment that completes its data.
Program lower_to_segments(Program program) {
  for (auto& actions : program.ranks) actions = lowered(program, actions);
  return program;
}

}  // namespace weft
