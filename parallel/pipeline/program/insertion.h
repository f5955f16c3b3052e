// How passes add to a list: they say what goes where, and one walk puts it there.
#pragma once

#include <cstddef>
#include <vector>

#include "parallel/pipeline/program/action.h"

namespace weft {

// `action` goes in front of what stands at `position` now (the size of the list: at its end).
struct Insertion {
  std::size_t position = 0;
  Action action;
};

// Positions ascend; insertions at one position keep their order.
std::vector<Action> insert_actions(const std::vector<Action>& actions, const std::vector<Insertion>& insertions);

// Behind the action at `position` and the sends of what it made: another rank waits for those, so they go first.
std::size_t behind_with_sends(const std::vector<Action>& actions, std::size_t position);

// In front of the action at `position` and the receives it waits for: work of other lanes is issued before the wait.
std::size_t before_with_receives(const std::vector<Action>& actions, std::size_t position);

}  // namespace weft
