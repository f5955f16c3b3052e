#include "parallel/pipeline/execute.h"

#include "parallel/pipeline/text.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/nvtx.h"

namespace weft {
namespace {

void perform(const Action& action, ActionHandler& handler) {
  switch (action.op) {
    case Op::forward: return handler.forward(*action.segment, *action.microbatch);
    case Op::backward:
      handler.backward_input(*action.segment, *action.microbatch);
      return handler.backward_weight(*action.segment, *action.microbatch);
    case Op::backward_input: return handler.backward_input(*action.segment, *action.microbatch);
    case Op::backward_weight: return handler.backward_weight(*action.segment, *action.microbatch);
    case Op::unshard: return handler.unshard(*action.unit);
    case Op::reshard: return handler.reshard(*action.unit);
    case Op::reduce_gradient: return handler.reduce_gradient(*action.unit);
    case Op::send_forward:
    case Op::send_backward: return handler.send(action.op, *action.stage, *action.microbatch, *action.peer);
    case Op::receive_forward:
    case Op::receive_backward: return handler.receive(action.op, *action.stage, *action.microbatch, *action.peer);
    case Op::gradient_norm: return handler.gradient_norm();
    case Op::optimizer_step: return handler.optimizer_step();
  }
}

}  // namespace

std::vector<std::string> range_names(const Program& program, std::span<const Action> actions) {
  std::vector<std::string> names;
  names.reserve(actions.size());
  for (const Action& action : actions) {
    std::string name(name_of(action.op));
    if (action.stage) name = fmt::format("PP:{}{}", *action.stage, name);
    if (action.segment) name += fmt::format(" ({})", program.segments[static_cast<std::size_t>(*action.segment)].name);
    if (action.unit) name += fmt::format(" ({})", program.units[static_cast<std::size_t>(*action.unit)].name);
    names.push_back(std::move(name));
  }
  return names;
}

void execute(const Program& program, std::span<const Action> actions, std::span<const std::string> names,
             ActionHandler& handler, const ActionObserver& observer) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const NvtxRange range(names[i].c_str(), actions[i].microbatch.value_or(0));
    if (observer) observer(names[i]);
    try {
      perform(actions[i], handler);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("in {}: {}", format_action(program, actions[i]), error.what()));
    }
  }
}

}  // namespace weft
