// What the actions of a program cost in time, resolved for its tables. The simulator reads nothing else; where the
// seconds come from (one unit each, a model of the hardware, a run's measurements) is the caller's business.
#pragma once

#include <vector>

#include "parallel/pipeline/program/program.h"

namespace weft {

// Seconds for one microbatch, collectives inside included. R takes what its forward takes.
struct ComputeCost {
  double forward = 0.0, backward_input = 0.0, backward_weight = 0.0;
  bool operator==(const ComputeCost&) const = default;
};

// Seconds on the lane of the action, once it runs.
struct UnitCost {
  double gather = 0.0, island_gather = 0.0, scatter = 0.0, reduce = 0.0, tie = 0.0;
  bool operator==(const UnitCost&) const = default;
};

struct ActionCosts {
  std::vector<ComputeCost> segments = {};  // by segment
  std::vector<ComputeCost> stages = {};    // by stage; read only of stages that name no segments
  std::vector<UnitCost> units = {};        // by unit
  std::vector<double> transfers = {};      // by stage: its output to the next one, or the gradient back
  double gradient_norm = 0.0, optimizer_step = 0.0;

  bool operator==(const ActionCosts&) const = default;
};

// What actions take where nothing else uses the adapters of their node.
struct ProgramCosts : ActionCosts {
  // Of these seconds, those in which the action keeps all adapters of its node busy. Empty where no rank has any.
  ActionCosts on_adapters = {};
  std::vector<int> adapters = {};  // by pipeline rank: ranks with one number share a node; empty: each has its own

  bool have_adapters() const { return !on_adapters.transfers.empty(); }
  int adapters_of(std::size_t rank) const { return adapters.empty() ? static_cast<int>(rank) : adapters.at(rank); }
  bool operator==(const ProgramCosts&) const = default;
};

// Every stage takes `stage` for a microbatch, shared evenly among its segments; all else costs nothing.
ProgramCosts even_costs(const ProgramTables& tables, const ComputeCost& stage = {1.0, 1.0, 1.0});

// Throws Error (failure) unless there is one cost an entry of the tables, none of them negative or not a number.
void require_costs(const ProgramTables& tables, const ProgramCosts& costs);

// Seconds of a well-formed action once it runs. A receive takes what its send takes. RESHARD takes none, nor does a
// gather of a unit without unsharded bytes: the rank computes on its own shard.
double cost_of(const ProgramTables& tables, const ActionCosts& costs, const Action& action);

}  // namespace weft
