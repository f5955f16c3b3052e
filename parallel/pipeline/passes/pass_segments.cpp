#include <algorithm>
#include <span>

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

std::vector<Action> lowered(const ProgramTables& tables, const std::vector<Action>& actions) {
  std::vector<Action> result;
  for (const Action& action : actions) {
    const std::vector<Action> segments = segments_of(tables, action);
    result.insert(result.end(), segments.begin(), segments.end());
  }
  return result;
}

}  // namespace

// Exchange keeps its place around the segments of a stage. A receive still stands before the segment that reads its
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

namespace {

// Actions of one half of a pair between two of the other.
using Turn = std::vector<Action>;

// The segments of a half, each with the recomputes in front of it.
std::vector<Turn> turns_of_segments(std::span<const Action> half) {
  std::vector<Turn> turns(1);
  for (const Action& action : half) {
    turns.back().push_back(action);
    if (action.op != Op::recompute) turns.emplace_back();
  }
  turns.pop_back();
  return turns;
}

// The half as far as each exchange of rows and, last, to its end.
std::vector<Turn> turns_of_exchanges(const ProgramTables& tables, std::span<const Action> half) {
  std::vector<Turn> turns(1);
  for (Action action : half) {
    const int exchanges = row_exchanges(tables.segments[action.segment.value()], action.op);
    action.part.count = static_cast<std::uint8_t>(exchanges + 1);
    for (; !action.part.last(); ++action.part.index) {
      Action rows = action;
      rows.op = row_exchange_of(action.op);
      rows.overlapped = false;
      turns.back().insert(turns.back().end(), {action, rows});
      turns.emplace_back();
    }
    turns.back().push_back(action);
  }
  return turns;
}

// `first` begins and `second` ends.
std::vector<Action> alternated(const std::vector<Turn>& first, const std::vector<Turn>& second) {
  std::vector<Action> result;
  std::size_t i = 0, j = 0;
  while (i < first.size() || j < second.size()) {
    const bool second_is_due = (j + 1) * first.size() <= i * second.size();
    const Turn& turn = second_is_due ? second[j++] : first[i++];
    result.insert(result.end(), turn.begin(), turn.end());
  }
  return result;
}

std::vector<Action> alternated_pair(const ProgramTables& tables, std::span<const Action> pair) {
  const auto middle = std::ranges::find_if(pair, [](const Action& each) { return each.op != Op::forward; });
  const std::span forward(pair.begin(), middle), backward(middle, pair.end());
  const bool exchanges = std::ranges::any_of(pair, [&](const Action& each) {
    return each.segment && row_exchanges(tables.segments[*each.segment], each.op) > 0;
  });
  if (!exchanges) return alternated(turns_of_segments(forward), turns_of_segments(backward));
  return alternated(turns_of_exchanges(tables, backward), turns_of_exchanges(tables, forward));
}

std::vector<Action> with_alternated_pairs(const ProgramTables& tables, const std::vector<Action>& actions) {
  const std::span all(actions);
  std::vector<Action> result;
  result.reserve(actions.size());
  const auto append = [&](std::span<const Action> more) { result.insert(result.end(), more.begin(), more.end()); };
  std::size_t next = 0;
  for (const OverlappedPair& pair : find_overlaps(actions).pairs) {
    const auto both = all.subspan(pair.first, pair.last + 1 - pair.first);
    // A receive that had to move between the halves keeps its place.
    if (!std::ranges::all_of(both, [](const Action& each) { return is_compute(each.op); })) continue;
    append(all.subspan(next, pair.first - next));
    append(alternated_pair(tables, both));
    next = pair.last + 1;
  }
  append(all.subspan(next));
  return result;
}

}  // namespace

Program alternate_pairs(Program program) {
  for (auto& actions : program.ranks) actions = with_alternated_pairs(program, actions);
  return program;
}

}  // namespace weft
