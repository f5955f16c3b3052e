#include "parallel/pipeline/execute/execute.h"

#include "parallel/pipeline/text/text.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The word for a unit's action in range names.
std::string_view word_of(Op op) {
  if (is_gather(op)) return "unshard";
  if (is_reshard(op)) return "reshard";
  if (op == Op::tie_gradient) return "tie_grad";
  if (op == Op::wait_reduction) return "wait_reduce";
  return op == Op::scatter_gradient ? "scatter_grad" : "reduce_grad";
}

std::string_view phase_word(Op op) {
  if (is_compute(op)) return name_of(op);
  if (is_message(op)) return "message";
  if (is_row_exchange(op)) return "rows";
  if (takes_kept(op)) return "offload";
  if (is_gather(op)) return "gather";
  if (is_reshard(op)) return "reshard";
  return op == Op::gradient_norm || op == Op::optimizer_step ? "update" : "reduce";
}

std::string_view family_word(const ProgramTables& tables, const Action& action) {
  if (action.unit) return name_of(tables.units[*action.unit].family);
  if (!action.segment) return "-";
  const PartKind kind = tables.segments[*action.segment].part.kind;
  const bool dense = kind == PartKind::attention || kind == PartKind::state_space || kind == PartKind::mlp;
  return dense ? name_of(Family::dense) : name_of(kind);
}

}  // namespace

std::vector<std::string> range_names(const Program& program, std::span<const Action> actions) {
  std::vector<std::string> names;
  names.reserve(actions.size());
  for (const Action& action : actions) {
    if (action.op == Op::gradient_norm) {
      names.emplace_back("grad_norm");
    } else if (action.op == Op::optimizer_step) {
      names.emplace_back("optimizer");
    } else if (action.unit) {
      names.push_back(fmt::format("{} {}", word_of(action.op), program.units[*action.unit].name));
    } else {
      names.push_back(fmt::format("PP:{}{}", *action.stage, name_of(action.op)));
      if (action.segment) names.back() += " " + program.segments[*action.segment].name;
    }
  }
  return names;
}

ActionRanges::ActionRanges(NvtxDomain& domain, const Program& program, std::span<const Action> actions)
    : domain_(domain), program_(program), actions_(actions) {
  names_.reserve(actions.size());
  payloads_.reserve(actions.size());
  for (const std::string& name : range_names(program, actions)) names_.push_back(domain.registered(name));
  for (const Work work : all_values<Work>) {
    work_names_[static_cast<std::size_t>(work)] = domain.registered(std::string(name_of(work)));
  }
  for (const Action& action : actions) {
    payloads_.push_back({.bytes = action.bytes,
                         .microbatch = action.microbatch.value_or(-1),
                         .stage = action.stage.value_or(-1),
                         .phase = domain.registered(std::string(phase_word(action.op))),
                         .family = domain.registered(std::string(family_word(program, action)))});
  }
}

void ActionRanges::begin(std::size_t action) {
  action_ = action;
  NvtxPayload payload = payloads_[action];
  payload.step = step_;
  open_.emplace(domain_, names_[action], nvtx_category(lane_of(program_, actions_[action])), payload);
}

void ActionRanges::end(std::size_t) {
  open_.reset();
}

void ActionRanges::begin_work(Work work) {
  NvtxPayload payload = payloads_[action_];
  payload.step = step_;
  payload.bytes = 0;
  work_.emplace(domain_, work_names_[static_cast<std::size_t>(work)],
                nvtx_category(lane_of(program_, actions_[action_])), payload);
}

void ActionRanges::end_work() {
  work_.reset();
}

void WorkForObservers::begin_work(Work work) {
  for (ActionObserver* observer : observers_) observer->begin_work(work);
}

void WorkForObservers::end_work() {
  for (auto observer = observers_.rbegin(); observer != observers_.rend(); ++observer) (*observer)->end_work();
}

void execute(const Program& program, std::span<const Action> actions,
             const std::function<void(const Action& action)>& perform, std::span<ActionObserver* const> observers) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    for (ActionObserver* observer : observers) observer->begin(i);
    try {
      perform(actions[i]);
    } catch (const Error& error) {
      throw Error(error.kind(), fmt::format("in {}: {}", format_action(program, actions[i]), error.what()));
    } catch (const std::bad_alloc& error) {
      fail("in {}: {}", format_action(program, actions[i]), error_text(error));
    }
    for (auto observer = observers.rbegin(); observer != observers.rend(); ++observer) (*observer)->end(i);
  }
}

}  // namespace weft
