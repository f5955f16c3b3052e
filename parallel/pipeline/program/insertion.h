// How passes add actions to a list: a pass names positions and actions, and one traversal inserts them.
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
std::vector<Action> insert_actions(const std::vector<Action>& actions, const std::vector<Insertion>& insertions);

// The position behind the action at `position` and behind the sends of its result: another rank waits for the sends.
std::size_t behind_with_sends(const std::vector<Action>& actions, std::size_t position);

// The position in front of the action at `position` and of the receives it waits for. Work of other lanes is thus
// issued before the wait.
std::size_t before_with_receives(const std::vector<Action>& actions, std::size_t position);

}  // namespace weft
