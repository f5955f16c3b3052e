#include "parallel/pipeline/program/insertion.h"

namespace weft {

std::vector<Action> insert_actions(const std::vector<Action>& actions, const std::vector<Insertion>& insertions) {
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

std::size_t behind_with_sends(const std::vector<Action>& actions, std::size_t position) {
  do {
    ++position;
  } while (position < actions.size() && is_send(actions[position].op));
  return position;
}

std::size_t before_with_receives(const std::vector<Action>& actions, std::size_t position) {
  while (position > 0 && is_receive(actions[position - 1].op)) --position;
  return position;
}

}  // namespace weft
