#include "tests/parallel/unit_timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <tuple>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Done = std::map<std::tuple<int, int, bool>, int>;  // (stage, microbatch, backward) -> end

// When the action's data is there; absent as long as its producer has not run.
std::optional<int> ready_at(const Program& program, const Action& action, const Done& done) {
  const auto needed = read_by(action, static_cast<int>(program.stages.size()));
  if (!needed) return 0;  // the order of its rank suffices
  const auto found = done.find({needed->stage, *action.microbatch, !needed->forward});
  return found == done.end() ? std::nullopt : std::optional(found->second);
}

// Appends `actions` to the row of a rank, one after the other; false if data is missing. Data arrives before the first
// and leaves behind the last.
bool place(const Program& program, std::span<const Action> actions, Done& done, std::vector<TimedAction>& row) {
  int at = row.empty() ? 0 : row.back().end;
  for (const Action& action : actions) {
    const auto ready = ready_at(program, action, done);
    if (!ready) return false;
    at = std::max(at, *ready);
  }
  for (const Action& action : actions) {
    const int end = at + (action.op == Op::backward ? 2 : 1);
    row.push_back({action, at, end});
    at = end;
  }
  for (const Action& action : actions) {
    if (hands_on(action.op)) done[{*action.stage, *action.microbatch, action.op != Op::forward}] = at;
  }
  return true;
}

}  // namespace

std::vector<std::vector<TimedAction>> unit_timeline(const Program& program) {
  std::vector<std::vector<TimedAction>> timeline(program.ranks.size());
  Done done;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
      const std::span<const Action> actions = program.ranks[rank];
      auto& row = timeline[rank];
      while (row.size() < actions.size()) {
        const std::size_t count = pair_begins_at(program.ranks[rank], row.size()) ? 2 : 1;
        if (!place(program, actions.subspan(row.size(), count), done, row)) break;
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < timeline.size(); ++rank) {
    if (timeline[rank].size() < program.ranks[rank].size()) fail("rank {} waits for ever in this order", rank);
  }
  return timeline;
}

}  // namespace weft
