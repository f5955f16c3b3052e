#include "parallel/pipeline/insertion.h"
#include "parallel/pipeline/passes.h"

namespace weft {
namespace {

// The segments of the region that an action of an input gradient begins with, in forward order; none where it begins
// with none. Backward runs through a region from its last segment to its first.
std::vector<int> region_begun_by(const ProgramTables& tables, const Action& action) {
  if (!makes_input_gradient(action.op) || !action.segment) return {};
  const auto region_of = [&](int segment) { return tables.segments[static_cast<std::size_t>(segment)].region; };
  const auto region = region_of(*action.segment);
  std::vector<int> members;
  if (!region) return members;
  for (int segment : tables.stages[static_cast<std::size_t>(*action.stage)].segments) {
    if (region_of(segment) == region) members.push_back(segment);
  }
  if (members.back() != *action.segment) members.clear();
  return members;
}

// Directly in front of the input gradient, behind what it receives: so the gradient is on its way meanwhile. Half of an
// overlapped pair, it carries the mark of the pair.
std::vector<Action> with_recompute(const ProgramTables& tables, const std::vector<Action>& actions) {
  std::vector<Insertion> insertions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (int segment : region_begun_by(tables, actions[i])) {
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
  for (auto& actions : program.ranks) actions = with_recompute(program, actions);
  return program;
}

}  // namespace weft
