#include "parallel/pipeline/text/text.h"

#include <fmt/format.h>

#include "parallel/pipeline/program/overlap.h"

namespace weft {
namespace {

// Without the mark of an overlapped action.
std::string format_plain(const Program& program, const Action& action) {
  std::string text;
  if (action.stage) text += std::to_string(*action.stage);
  text += name_of(action.op);
  if (action.microbatch) text += std::to_string(*action.microbatch);
  // An index outside its table is shown as such, because the checker prints faulty actions.
  const auto append_name = [&text](const auto& entries, int index) {
    const bool known = index >= 0 && index < static_cast<int>(entries.size());
    text += known ? fmt::format("({})", entries[index].name) : fmt::format("(#{})", index);
  };
  if (action.segment) append_name(program.segments, *action.segment);
  if (action.unit) append_name(program.units, *action.unit);
  return text;
}

}  // namespace

std::string format_action(const Program& program, const Action& action) {
  const std::string text = format_plain(program, action);
  return action.overlapped ? fmt::format("({})OVERLAP_F_B", text) : text;
}

std::string format_actions(const Program& program, const std::vector<Action>& actions, std::string_view separator) {
  std::string text;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!text.empty()) text += separator;
    if (!pair_begins_at(actions, i)) {
      text += format_action(program, actions[i]);
      continue;
    }
    text += fmt::format("({};{})OVERLAP_F_B", format_plain(program, actions[i]), format_plain(program, actions[i + 1]));
    ++i;
  }
  return text;
}

}  // namespace weft
