// The way passes add actions to a list: a pass names positions and actions, and one traversal inserts them.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// `action` is inserted before the action now at `position`; a position equal to the size of the list is its end.
struct Insertion {
  std::size_t position = 0;
  Action action;
};

// Positions ascend; insertions at one position keep their order.
inline std::vector<Action> insert_actions(const std::vector<Action>& actions,
                                          const std::vector<Insertion>& insertions) {
  std::vector<Action> result;
  result.reserve(actions.size() + insertions.size());
  std::size_t next = 0;
  for (const Insertion& insertion : insertions) {
    while (next < insertion.position) result.push_back(actions[next++]);
    result.push_back(insertion.action);
  }
  while (next < actions.size()) result.push_back(actions[next++]);
  return result;
}

// The position behind the action at `position` and behind the sends of its result: another rank waits for the sends.
inline std::size_t behind_with_sends(const std::vector<Action>& actions, std::size_t position) {
  do {
    ++position;
  } while (position < actions.size() && is_send(actions[position].op));
  return position;
}

// The position in front of the action at `position` and of the receives it waits for. Work of other lanes is thus
// issued before the wait.
inline std::size_t before_with_receives(const std::vector<Action>& actions, std::size_t position) {
  while (position > 0 && is_receive(actions[position - 1].op)) --position;
  return position;
}

}  // namespace weft
