#include "parallel/pipeline/simulation/costs.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "parallel/pipeline/program/program.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

double cost_of(const ComputeCost& cost, Op op) {
  switch (op) {
    case Op::forward:
      return cost.forward;
    case Op::recompute:
      return cost.recompute();
    case Op::backward:
      return cost.backward_input + cost.backward_weight;
    case Op::backward_input:
      return cost.backward_input;
    default:
      return cost.backward_weight;
  }
}

// Of a compute action, an exchange of rows or a host copy of a segment.
double cost_of(const ComputeCost& cost, const Action& action) {
  const ComputePart part = action.part;
  const bool backward = makes_input_gradient(action.op) || action.op == Op::rows_backward;
  if (is_row_exchange(action.op)) return cost.rows(backward, part.index);
  if (is_host_copy(action.op)) return cost.host_copy;
  if (part.count == 1) return cost_of(cost, action.op);
  double seconds = 0.0;
  if (part.index == 1) {
    seconds = (backward ? cost.backward_input : cost_of(cost, action.op)) + cost.covered(backward);
    for (int exchange = 0; exchange + 1 < part.count; ++exchange) seconds -= cost.rows(backward, exchange);
  }
  if (part.last() && action.op == Op::backward) seconds += cost.backward_weight;
  return std::max(seconds, 0.0);
}

double cost_of(const ProgramUnit& unit, const UnitCost& cost, Op op) {
  if (is_gather(op) && (unit.replicated || unit.unsharded_bytes == 0)) return 0.0;
  for (const auto& [each, seconds] : unit_seconds) {
    if (each == op) return cost.*seconds;
  }
  return 0.0;
}

ComputeCost share_of(const ComputeCost& stage, std::size_t segments) {
  const auto count = static_cast<double>(segments);
  return {stage.forward / count, stage.backward_input / count, stage.backward_weight / count, stage.spared / count};
}

void require_times(std::string_view what, std::size_t index, std::initializer_list<double> times) {
  for (double seconds : times) {
    if (!std::isfinite(seconds) || seconds < 0.0)
      fail("{} {} costs {} seconds, which is no time", what, index, seconds);
  }
}

void require_action_costs(const ProgramTables& tables, const ActionCosts& costs) {
  const auto require_one_each = [](std::string_view what, std::size_t entries, std::size_t given) {
    if (given != entries) fail("costs of {} {} for a program that has {}", given, what, entries);
  };
  require_one_each("segments", tables.segments.size(), costs.segments.size());
  require_one_each("stages", tables.stages.size(), costs.stages.size());
  require_one_each("units", tables.units.size(), costs.units.size());
  require_one_each("transfers", tables.stages.size(), costs.transfers.size());
  const auto require_compute = [](std::string_view what, const std::vector<ComputeCost>& entries) {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      require_times(what, i,
                    {entries[i].forward, entries[i].backward_input, entries[i].backward_weight, entries[i].spared,
                     entries[i].recompute(), entries[i].host_copy, entries[i].forward_out, entries[i].forward_back,
                     entries[i].backward_out, entries[i].backward_back, entries[i].forward_covered,
                     entries[i].backward_covered});
    }
  };
  require_compute("segment", costs.segments);
  require_compute("stage", costs.stages);
  for (std::size_t i = 0; i < costs.units.size(); ++i) {
    const UnitCost& unit = costs.units[i];
    require_times("unit", i, {unit.gather, unit.island_gather, unit.scatter, unit.reduce, unit.tie});
  }
  for (std::size_t i = 0; i < costs.transfers.size(); ++i) require_times("transfer", i, {costs.transfers[i]});
  require_times("update", 0, {costs.gradient_norm, costs.optimizer_step});
}

}  // namespace

ProgramCosts even_costs(const ProgramTables& tables, const ComputeCost& stage) {
  ProgramCosts costs;
  costs.segments.resize(tables.segments.size());
  for (const ProgramStage& entry : tables.stages) {
    for (int segment : entry.segments) {
      costs.segments[segment] = share_of(stage, entry.segments.size());
    }
  }
  costs.stages.assign(tables.stages.size(), stage);
  costs.units.resize(tables.units.size());
  costs.transfers.assign(tables.stages.size(), 0.0);
  return costs;
}

void require_costs(const ProgramTables& tables, const ProgramCosts& costs) {
  require_action_costs(tables, costs);
  if (costs.have_adapters()) require_action_costs(tables, costs.on_adapters);
}

double cost_of(const ProgramTables& tables, const ActionCosts& costs, const Action& action) {
  const Op op = action.op;
  if (op == Op::gradient_norm) return costs.gradient_norm;
  if (op == Op::optimizer_step) return costs.optimizer_step;
  if (is_reshard(op) || op == Op::wait_offload) return 0.0;
  const int stage = action.stage.value();
  if (is_compute(op) || is_row_exchange(op) || is_host_copy(op)) {
    if (action.segment) return cost_of(costs.segments[*action.segment], action);
    const auto& segments = tables.stages[stage].segments;
    if (segments.empty()) return cost_of(costs.stages[stage], op);
    double sum = 0.0;
    for (int segment : segments) {
      if (takes_part(tables.segments[segment], op)) sum += cost_of(costs.segments[segment], op);
    }
    return sum;
  }
  if (is_message(op)) {
    return costs.transfers[std::min(stage, other_stage(op, stage))];
  }
  const int unit = action.unit.value();
  return cost_of(tables.units[unit], costs.units[unit], op);
}

double seconds_before_rows(const ActionCosts& costs, const Action& part) {
  return part.part.index == 1 ? costs.segments[*part.segment].covered(makes_input_gradient(part.op)) : 0.0;
}

}  // namespace weft
