// Costs of a program's actions in seconds, resolved for its tables. The simulator reads nothing else. The caller
// chooses the source: one unit each, a model of the hardware, or a run's measurements.
#pragma once

#include <utility>
#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

// Seconds for one microbatch, including the wait for collectives inside. R takes as long as its forward, less what it
// is spared. Of a computation in parts, the second part takes all computation except the weight gradient of a B, which
// the last part takes.
struct ComputeCost {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
  double spared = 0.0;
  double host_copy = 0.0;  // OFFLOAD, or RELOAD
  // Seconds of the exchanges of rows at which a forward and an input gradient can be cut: out to the experts, and back.
  double forward_out = 0.0, forward_back = 0.0, backward_out = 0.0, backward_back = 0.0;
  // Of forward_out and backward_out, the seconds beside computation of the segment that needs no rows, such as a shared
  // expert. forward and backward_input have only the rest of the exchange.
  double forward_covered = 0.0, backward_covered = 0.0;

  double rows(bool of_backward, int exchange) const {
    return of_backward ? (exchange == 0 ? backward_out : backward_back) : exchange == 0 ? forward_out : forward_back;
  }

  double covered(bool of_backward) const { return of_backward ? backward_covered : forward_covered; }

  double recompute() const { return forward - spared; }
  bool operator==(const ComputeCost&) const = default;
};

// Seconds on the lane of the action, without waiting.
struct UnitCost {
  double gather = 0.0, island_gather = 0.0, scatter = 0.0, reduce = 0.0, tie = 0.0;
  bool operator==(const UnitCost&) const = default;
};
// Its seconds by action; other actions of units take no time.
inline constexpr std::pair<Op, double UnitCost::*> unit_seconds[] = {{Op::unshard, &UnitCost::gather},
                                                                     {Op::unshard_secondary, &UnitCost::island_gather},
                                                                     {Op::scatter_gradient, &UnitCost::scatter},
                                                                     {Op::reduce_gradient, &UnitCost::reduce},
                                                                     {Op::tie_gradient, &UnitCost::tie}};

struct ActionCosts {
  std::vector<ComputeCost> segments = {};  // by segment
  std::vector<ComputeCost> stages = {};    // by stage; used only for stages without segments
  std::vector<UnitCost> units = {};        // by unit
  std::vector<double> transfers = {};      // by stage: its output to the next one, or the gradient back
  double gradient_norm = 0.0, optimizer_step = 0.0;

  bool operator==(const ActionCosts&) const = default;
};

// Costs of actions while nothing else uses the adapters of their node.
struct ProgramCosts : ActionCosts {
  // The part of these seconds in which the action keeps all adapters of its node busy. Empty if no rank has adapters.
  ActionCosts on_adapters = {};
  std::vector<int> adapters = {};  // by pipeline rank: ranks with one number share a node; empty: each has its own

  bool have_adapters() const { return !on_adapters.transfers.empty(); }
  int adapters_of(std::size_t rank) const { return adapters.empty() ? static_cast<int>(rank) : adapters.at(rank); }
  bool operator==(const ProgramCosts&) const = default;
};

// Every stage takes `stage` per microbatch, shared evenly among its segments; everything else costs nothing.
ProgramCosts even_costs(const ProgramTables& tables, const ComputeCost& stage = {1.0, 1.0, 1.0});

// Throws Error (failure) unless there is one cost per entry of the tables, none of them negative or not a number.
void require_costs(const ProgramTables& tables, const ProgramCosts& costs);

// Seconds of a well-formed action, without waiting. A receive takes as long as its send. RESHARD takes 0, and so does a
// gather of a unit without unsharded bytes: the rank computes on its own shard.
double cost_of(const ProgramTables& tables, const ActionCosts& costs, const Action& action);
// Seconds that a part of a computation takes before it needs the rows of the exchange in front of it.
double seconds_before_rows(const ActionCosts& costs, const Action& part);

}  // namespace weft
