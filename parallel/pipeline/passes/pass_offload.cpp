#include <map>
#include <utility>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/program/insertion.h"

namespace weft {
namespace {

// The compute actions, by position in the list, between which bytes kept of a microbatch are away: one runs beside each
// copy.
struct Absence {
  std::size_t made = 0, read = 0;  // places in the sequence of compute actions
  Action bytes;                    // stage, microbatch, segment and size
};
constexpr std::size_t compute_beside_copies = 2;

std::vector<Absence> absences_of(const Program& program, const std::vector<Action>& actions,
                                 const std::vector<std::size_t>& computes) {
  std::vector<Absence> absences;
  std::map<std::pair<int, int>, std::size_t> made;  // by segment and microbatch: its forward
  for (std::size_t i = 0; i < computes.size(); ++i) {
    const Action& action = actions[computes[i]];
    if (!action.segment) continue;
    const ProgramSegment& segment = program.segments[*action.segment];
    if (segment.offload_bytes == 0) continue;
    const std::pair key(*action.segment, *action.microbatch);
    if (action.op == Op::forward && action.part.last()) made[key] = i;
    const bool reads = segment.region ? action.op == Op::recompute : makes_input_gradient(action.op);
    if (!reads || !action.part.first()) continue;
    const std::size_t from = made.at(key);
    // Without a computation for which the bytes are away, copying them frees nothing.
    if (i < from + 2 + compute_beside_copies) continue;
    absences.push_back({from,
                        i,
                        {.stage = action.stage,
                         .microbatch = action.microbatch,
                         .segment = action.segment,
                         .bytes = segment.offload_bytes}});
  }
  return absences;
}

std::vector<Action> with_offload(const Program& program, const std::vector<Action>& actions) {
  std::vector<std::size_t> computes;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (is_compute(actions[i].op)) computes.push_back(i);
  }
  // In the order of Op, so that a wait frees room in front of a RELOAD.
  std::multimap<std::pair<std::size_t, Op>, Action> at;
  const auto put = [&](std::size_t position, Op op, Action action) {
    action.op = op;
    if (op == Op::wait_offload) action.bytes = 0;
    at.emplace(std::pair(position, op), action);
  };
  for (const Absence& absence : absences_of(program, actions, computes)) {
    put(behind_with_sends(actions, computes[absence.made]), Op::offload, absence.bytes);
    put(behind_with_sends(actions, computes[absence.made + 1]), Op::wait_offload, absence.bytes);
    put(before_with_receives(actions, computes[absence.read - 1]), Op::reload, absence.bytes);
  }
  std::vector<Insertion> insertions;
  for (const auto& [place, action] : at) insertions.push_back({place.first, action});
  return insert_actions(actions, insertions);
}

}  // namespace

Program add_offload(Program program) {
  for (auto& actions : program.ranks) actions = with_offload(program, actions);
  return program;
}

}  // namespace weft
