#include "parallel/pipeline/window.h"

#include <algorithm>

namespace weft {
namespace {

bool reads(const Program& program, const Action& action, int unit) {
  if (!action.segment) return false;
  const ProgramSegment& segment = program.segments[static_cast<std::size_t>(*action.segment)];
  if (!reads_units(segment, action.op)) return false;
  return std::find(segment.units.begin(), segment.units.end(), unit) != segment.units.end();
}

// What stays of a unit between its last read in the forward of microbatch 0 and the first one in its backward.
std::int64_t held(const Program& program, const std::vector<Action>& actions, int unit) {
  const ProgramUnit& entry = program.units[static_cast<std::size_t>(unit)];
  std::int64_t stays = 0;
  bool forward_over = false;
  for (const Action& action : actions) {
    const bool of_first = action.microbatch == 0 && reads(program, action, unit);
    if (of_first && action.op == Op::forward) {
      forward_over = true;
      stays = entry.unsharded_bytes;
    } else if (of_first) {
      return stays;
    }
    if (!forward_over || action.unit != unit) continue;
    if (action.op == Op::reshard) stays = 0;
    if (action.op == Op::reshard_island) stays = entry.island_bytes;
  }
  return stays;
}

}  // namespace

ParameterWindow parameter_window(const Program& program, int pipeline_rank) {
  const std::vector<Action>& actions = program.ranks.at(static_cast<std::size_t>(pipeline_rank));
  ParameterWindow window;
  std::int64_t now = 0;
  for (const Action& action : actions) {
    if (!action.unit) continue;
    const ProgramUnit& unit = program.units[static_cast<std::size_t>(*action.unit)];
    if (is_gather(action.op)) {
      now += unit.unsharded_bytes;
      window.peak_bytes = std::max(window.peak_bytes, now);
      if (action.op == Op::unshard_island) now -= unit.island_bytes;
      window.gathered_bytes += action.bytes;
      ++window.gathers;
      if (action.op == Op::unshard_island) ++window.island_gathers;
    }
    if (is_reshard(action.op)) {
      if (action.op == Op::reshard_island) now += unit.island_bytes;
      window.peak_bytes = std::max(window.peak_bytes, now);
      now -= unit.unsharded_bytes;
    }
    if (is_reduction(action.op)) ++window.reductions;
  }
  for (std::size_t unit = 0; unit < program.units.size(); ++unit) {
    if (program.units[unit].replicated ||
        program.stages[static_cast<std::size_t>(program.units[unit].stage)].rank != pipeline_rank)
      continue;
    window.held_bytes += held(program, actions, static_cast<int>(unit));
  }
  return window;
}

}  // namespace weft
