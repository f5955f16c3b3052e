#include "tools/bench/timing_cases.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "parallel/pipeline/passes/passes.h"
#include "parallel/pipeline/timing/timed_step.h"

namespace weft {

TimingProblem timing_problem(const TimingCase& shape) {
  const Schedule& schedule = find_schedule(shape.schedule);
  const int ranks = shape.input.ranks, stages = ranks * shape.input.chunks,
            per_stage = shape.units / shape.input.chunks;
  ProgramTables tables = schedule_only_tables(ranks, stages, schedule.placement);
  std::vector<UnitCost> unit_costs;
  for (int stage = 0; stage < stages; ++stage) {
    for (int i = 0; i < per_stage; ++i) {
      double scale = 1;
      if (stage == 0 && i == 0) scale = shape.embedding;
      if (stage == stages - 1 && i == per_stage - 1) scale = shape.head;
      const int number = static_cast<int>(tables.units.size());
      tables.stages[stage].segments.push_back(number);
      tables.segments.push_back({.stage = stage,
                                 .units = {number},
                                 .activation_bytes = shape.activation_bytes,
                                 .pending_bytes = shape.activation_bytes});
      tables.units.push_back({.stage = stage,
                              .unsharded_bytes = std::llround(scale * static_cast<double>(shape.parameter_bytes)),
                              .gradient_bytes = std::llround(scale * static_cast<double>(shape.gradient_bytes))});
      unit_costs.push_back({.gather = scale * shape.gather_seconds, .reduce = scale * shape.reduce_seconds});
    }
  }
  const double of_stage = per_stage;  // seconds
  ProgramCosts costs = even_costs(tables, {of_stage, of_stage, of_stage});
  costs.units = std::move(unit_costs);
  const std::vector<std::int64_t> budgets(ranks, shape.budget);
  return timing_problem(lower_order(tables, schedule, shape.input), costs, budgets);
}

TimingCase with_budget(TimingCase shape, double share) {
  std::int64_t smallest = 0, whole = 0;
  for (const TimingRank& rank : timing_problem(shape).ranks) {
    std::int64_t activations = 0, units = 0;
    for (const TimingOp& op : rank.ops) activations = std::max(activations, op.activation_bytes);
    for (const TimingUnit& unit : rank.units) units += unit.parameter_bytes + unit.gradient_bytes;
    smallest = std::max(smallest, smallest_budget(rank, false));
    whole = std::max(whole, activations + units);
  }
  shape.budget = smallest + std::llround(share * static_cast<double>(whole - smallest));
  return shape;
}

std::vector<TimingCase> timing_grid() {
  struct Costs {
    double transfer = 1;
    std::int64_t gradient_bytes = 10, activation_bytes = 1;
    double embedding = 1, head = 1;
  };
  struct Order {
    std::string_view schedule;
    int chunks = 1;
  };
  std::vector<TimingCase> grid;
  for (const Order& order : {Order{"gpipe"}, Order{"1f1b"}, Order{"interleaved", 2}, Order{"interleaved", 4},
                             Order{"looped_bfs", 2}, Order{"zbv", 2}}) {
    for (const int microbatches : {8, 16, 32}) {
      for (const Costs& costs :
           {Costs{1}, Costs{2}, Costs{2, 20, 1}, Costs{2, 10, 4}, Costs{1, 20, 1, 4, 3}, Costs{2, 10, 1, 3, 4}}) {
        for (const double share : {0.0, 0.2, 0.4}) {
          grid.push_back(with_budget({.schedule = order.schedule,
                                      .input = {.ranks = 4, .chunks = order.chunks, .microbatches = microbatches},
                                      .gather_seconds = costs.transfer,
                                      .reduce_seconds = costs.transfer * static_cast<double>(costs.gradient_bytes) / 10,
                                      .gradient_bytes = costs.gradient_bytes,
                                      .activation_bytes = costs.activation_bytes,
                                      .embedding = costs.embedding,
                                      .head = costs.head},
                                     share));
        }
      }
    }
  }
  return grid;
}

}  // namespace weft
