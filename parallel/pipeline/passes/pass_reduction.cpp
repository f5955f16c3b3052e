#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/insertion.h"

namespace weft {
namespace {

// The progress of the weight gradients of one unit on one rank.
struct GradientsToCome {
  std::vector<int> to_come;  // weight gradient actions still to come, by microbatch
  int microbatches = 0;      // microbatches that add to the unit
  int completed = 0;         // microbatches with nothing more to come
};

bool adds_gradients(const Action& action) {
  return makes_weight_gradient(action.op) && action.segment;
}

std::vector<GradientsToCome> expected_progress(const Program& program, const std::vector<Action>& actions) {
  std::vector<GradientsToCome> units(program.units.size());
  for (const Action& action : actions) {
    if (!adds_gradients(action)) continue;
    for (int unit : program.segments[*action.segment].units) {
      GradientsToCome& progress = units[unit];
      progress.to_come.resize(program.microbatches, 0);
      if (progress.to_come[action.microbatch.value()]++ == 0) ++progress.microbatches;
    }
  }
  return units;
}

// Microbatches are counted in the order in which this rank completes them, whatever their numbers.
bool closes_interval(const GradientsToCome& progress, int reduce_every) {
  return progress.completed == progress.microbatches || (reduce_every > 0 && progress.completed % reduce_every == 0);
}

std::vector<Action> with_reduction(const Program& program, const std::vector<Action>& actions) {
  std::vector<GradientsToCome> units = expected_progress(program, actions);
  std::vector<Insertion> insertions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!adds_gradients(action)) continue;
    for (int index : program.segments[*action.segment].units) {
      const ProgramUnit& unit = program.units[index];
      const bool timed = unit.policy.residency == Residency::solved && timed_gradient_bytes(unit) > 0;
      if (unit.frozen || timed || unit.tied_unreduced) continue;  // add_ties reduces tied_unreduced units
      GradientsToCome& progress = units[index];
      if (--progress.to_come[*action.microbatch] > 0) continue;
      ++progress.completed;
      const bool closes = closes_interval(progress, unit.policy.reduce_every);
      if (!closes && !unit.policy.accumulate_sharded) continue;
      insertions.push_back({behind_with_sends(actions, i),
                            {.op = closes ? Op::reduce_gradient : Op::scatter_gradient,
                             .stage = unit.stage,
                             .unit = index,
                             .bytes = unit.reduce_bytes}});
    }
  }
  return insert_actions(actions, insertions);
}

}  // namespace

Program add_reduction(Program program) {
  for (auto& actions : program.ranks) actions = with_reduction(program, actions);
  return program;
}

}  // namespace weft
