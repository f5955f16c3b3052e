#include <algorithm>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/insertion.h"
#include "parallel/pipeline/program/overlap.h"

namespace weft {
namespace {

// One action per segment of the stage, in the order in which they run.
std::vector<Action> segments_of(const ProgramTables& tables, const Action& action) {
  if (!is_compute(action.op) || action.segment) return {action};
  std::vector<int> segments = tables.stages[action.stage.value()].segments;
  if (segments.empty()) return {action};
  if (action.op != Op::forward) std::ranges::reverse(segments);
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

namespace {

// By segment: the segments of the region that it ends, in forward order; empty if it ends none. Backward runs through a
// region from its last segment to its first.
std::vector<std::vector<int>> regions_ended(const ProgramTables& tables) {
  std::vector<std::vector<int>> ended(tables.segments.size());
  const auto region_of = [&](int segment) { return tables.segments[segment].region; };
  for (const ProgramStage& stage : tables.stages) {
    std::vector<int> members;
    for (std::size_t i = 0; i < stage.segments.size(); ++i) {
      const int segment = stage.segments[i];
      if (!region_of(segment)) continue;
      members.push_back(segment);
      if (i + 1 < stage.segments.size() && region_of(stage.segments[i + 1]) == region_of(segment)) continue;
      ended[segment] = std::move(members);
      members.clear();
    }
  }
  return ended;
}

// R stands directly in front of the input gradient and behind its receive, so the gradient is in transit meanwhile. R
// of a half of an overlapped pair carries the mark of the pair.
std::vector<Action> with_recompute(const std::vector<std::vector<int>>& regions, const std::vector<Action>& actions) {
  std::vector<Insertion> insertions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!makes_input_gradient(actions[i].op) || !actions[i].segment) continue;
    for (int segment : regions[*actions[i].segment]) {
      insertions.push_back({i,
                            {.op = Op::recompute,
                             .overlapped = actions[i].overlapped,
                             .stage = actions[i].stage,
                             .microbatch = actions[i].microbatch,
                             .segment = segment}});
    }
  }
  return insert_actions(actions, insertions);
}

}  // namespace

Program add_recompute(Program program) {
  const std::vector<std::vector<int>> regions = regions_ended(program);
  for (auto& actions : program.ranks) actions = with_recompute(regions, actions);
  return program;
}

}  // namespace weft
