#include "parallel/pipeline/exchange.h"
#include "parallel/pipeline/insertion.h"
#include "parallel/pipeline/passes.h"

namespace weft {
namespace {

// Neighbouring stages on one rank hand tensors over without a message.
bool crosses_ranks(const ProgramTables& tables, Op op, int stage) {
  const int other = other_stage(op, stage);
  if (other < 0 || other >= static_cast<int>(tables.stages.size())) return false;
  return tables.stages[static_cast<std::size_t>(other)].rank != tables.stages[static_cast<std::size_t>(stage)].rank;
}

std::vector<Action> with_exchange(const ProgramTables& tables, const std::vector<Action>& actions) {
  std::vector<Insertion> insertions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const bool forward = action.op == Op::forward;
    if (!forward && !makes_input_gradient(action.op)) continue;
    const Op receive = forward ? Op::receive_forward : Op::receive_backward;
    const Op send = forward ? Op::send_forward : Op::send_backward;
    const int stage = action.stage.value(), microbatch = action.microbatch.value();
    if (crosses_ranks(tables, receive, stage)) {
      insertions.push_back({i, exchange_action(tables, receive, stage, microbatch)});
    }
    if (crosses_ranks(tables, send, stage)) {
      insertions.push_back({i + 1, exchange_action(tables, send, stage, microbatch)});
    }
  }
  return insert_actions(actions, insertions);
}

}  // namespace

Program add_exchange(Program program) {
  for (auto& actions : program.ranks) actions = with_exchange(program, actions);
  return program;
}

}  // namespace weft
