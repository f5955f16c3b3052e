#include <algorithm>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/overlap.h"

namespace weft {
namespace {

// One action per segment of the stage, in the order in which they run.
std::vector<Action> segments_of(const ProgramTables& tables, const Action& action) {
  if (!is_compute(action.op) || action.segment) return {action};
  std::vector<int> segments = tables.stages[static_cast<std::size_t>(action.stage.value())].segments;
  if (segments.empty()) return {action};
  if (action.op != Op::forward) std::reverse(segments.begin(), segments.end());
  std::vector<Action> result;
  for (int segment : segments) {
    result.push_back(action);
    result.back().segment = segment;
  }
  return result;
}

// The segments of the two take turns, because the list is what a rank does in order: the exchange between experts that
// a segment of one ends with runs on its own lane while the products of the other's next segment compute. One after the
// other, as the stages would stand, a segment would wait for its own exchange. Where one has more segments it takes
// several turns to the other's one, evenly; the forward begins and the backward ends, as without the overlap, so that
// what stands before and behind the pair finds the same units in use.
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

// Exchange keeps its place around the run of segments, so a receive still stands before the segment that reads what
// comes and a send behind the one that finishes what goes.
Program lower_to_segments(Program program) {
  for (auto& actions : program.ranks) actions = lowered(program, actions);
  return program;
}

}  // namespace weft
