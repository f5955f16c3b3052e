#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/insertion.h"

namespace weft {
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
