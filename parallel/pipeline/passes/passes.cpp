#include "parallel/pipeline/passes/passes.h"

#include "parallel/pipeline/program/insertion.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The progress of the weight gradients of one unit on one rank.
struct GradientsToCome {
  std::vector<int> to_come;  // weight gradient actions still to come, by microbatch
  int microbatches = 0;      // microbatches that add to the unit
  int completed = 0;         // microbatches with nothing more to come
};

bool adds_gradients(const Action& action) {
  return makes_weight_gradient(action.op) && action.segment && action.part.last();
}

std::vector<GradientsToCome> expected_progress(const Program& program, const std::vector<Action>& actions) {
  std::vector<GradientsToCome> units(program.units.size());
  for (const Action& action : actions) {
    if (!adds_gradients(action)) continue;
    for (int unit : program.segments[*action.segment].units) {
      GradientsToCome& progress = units[unit];
      progress.to_come.resize(program.microbatches, 0);
      if (progress.to_come[action.microbatch.value()]++ == 0) ++progress.microbatches;
    }
  }
  return units;
}

// Microbatches are counted in the order in which this rank completes them, whatever their numbers.
bool closes_interval(const GradientsToCome& progress, int reduce_every) {
  return progress.completed == progress.microbatches || (reduce_every > 0 && progress.completed % reduce_every == 0);
}

// Behind the action, its sends, and the gathers that its reductions let pass.
std::size_t place_of_reduction(const Program& program, const std::vector<Action>& actions, std::size_t position) {
  const auto passes = [&](const Action& action) {
    return is_reshard(action.op) ||
           (is_gather(action.op) && program.units[*action.unit].policy.backward_prefetch == BackwardPrefetch::post);
  };
  const std::size_t behind = behind_with_sends(actions, position);
  std::size_t place = behind;
  for (std::size_t i = behind; i < actions.size() && passes(actions[i]); ++i) {
    if (is_gather(actions[i].op)) place = i + 1;
  }
  return place;
}

std::vector<Action> with_reduction(const Program& program, const std::vector<Action>& actions) {
  std::vector<GradientsToCome> units = expected_progress(program, actions);
  std::vector<Insertion> insertions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (!adds_gradients(action)) continue;
    for (int index : program.segments[*action.segment].units) {
      const ProgramUnit& unit = program.units[index];
      const bool timed = unit.policy.residency == Residency::solved && timed_gradient_bytes(unit) > 0;
      if (unit.frozen || timed || unit.tied_unreduced) continue;  // add_ties reduces tied_unreduced units
      GradientsToCome& progress = units[index];
      if (--progress.to_come[*action.microbatch] > 0) continue;
      ++progress.completed;
      const bool closes = closes_interval(progress, unit.policy.reduce_every);
      if (!closes && !unit.policy.accumulate_sharded) continue;
      insertions.push_back({place_of_reduction(program, actions, i),
                            {.op = closes ? Op::reduce_gradient : Op::scatter_gradient,
                             .stage = unit.stage,
                             .unit = index,
                             .bytes = unit.reduce_bytes}});
    }
  }
  return insert_actions(actions, insertions);
}

}  // namespace

Program add_reduction(Program program) {
  for (auto& actions : program.ranks) actions = with_reduction(program, actions);
  return program;
}

namespace {

void require_stage_count(const ProgramTables& tables, std::int64_t asked, const std::string& whose) {
  if (static_cast<std::int64_t>(tables.stages.size()) == asked) return;
  fail_request("{} = {} stages, but the layout has {} stages", whose, asked, tables.stages.size());
}

void require_policies(const ProgramTables& tables) {
  if (tables.reduce_inputs < 0) fail_request("reduce_inputs {} must not be negative", tables.reduce_inputs);
  for (const ProgramUnit& unit : tables.units) {
    const UnitPolicy& policy = unit.policy;
    if (policy.residency == Residency::window && policy.window_stages < 1) {
      fail_request("unit {}: a window of {} stages keeps nothing; it has at least 1", unit.name, policy.window_stages);
    }
    if (policy.residency == Residency::island && policy.island_ranks < 2) {
      fail_request("unit {}: an island of {} ranks has nobody to gather from", unit.name, policy.island_ranks);
    }
    if (policy.residency == Residency::solved) {
      fail_request("unit {}: residency \"{}\" needs a plan of the step, which this order has none of", unit.name,
                   name_of(policy.residency));
    }
    if (unit.policy.lookahead < 0 || unit.policy.reduce_every < 0) {
      fail_request("unit {}: lookahead {} and reduce_every {} must not be negative", unit.name, unit.policy.lookahead,
                   unit.policy.reduce_every);
    }
  }
}

// An order itself decides which rank runs which stage; the layout must agree.
void require_placement(const Program& program, const std::string& whose) {
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (const Action& action : program.ranks[rank]) {
      const int placed = program.stages[action.stage.value()].rank;
      if (placed == static_cast<int>(rank)) continue;
      fail_request("{} runs stage {} on rank {}, but the layout puts it on rank {}", whose, *action.stage, rank,
                   placed);
    }
  }
}

}  // namespace

Program add_ties(Program program) {
  for (std::size_t i = 0; i < program.units.size(); ++i) {
    const ProgramUnit& unit = program.units[i];
    if (unit.copies.empty()) continue;
    const int unit_index = static_cast<int>(i), rank = program.stages[unit.stage].rank;
    auto& actions = program.ranks[rank];
    if (copies_on_rank(program, unit, rank).front() == unit_index) {
      actions.push_back({.op = Op::tie_gradient, .stage = unit.stage, .unit = unit_index, .bytes = unit.tie_bytes});
    }
    if (unit.tied_unreduced) {
      actions.push_back(
          {.op = Op::reduce_gradient, .stage = unit.stage, .unit = unit_index, .bytes = unit.reduce_bytes});
    }
  }
  return program;
}

Program add_update(Program program) {
  for (auto& actions : program.ranks) {
    actions.push_back({.op = Op::gradient_norm});
    actions.push_back({.op = Op::optimizer_step});
  }
  return program;
}

Program lower_order(const ProgramTables& tables, const Schedule& schedule, const OrderInput& input) {
  auto order = schedule.order(input);
  require_stage_count(tables, static_cast<std::int64_t>(input.ranks) * input.chunks,
                      fmt::format("schedule {} on {} ranks x {} chunks", schedule.name, input.ranks, input.chunks));
  Program program{tables, input.microbatches, std::move(order)};
  require_placement(program, fmt::format("schedule {}", schedule.name));
  return alternate_pairs(add_recompute(lower_to_segments(add_exchange(std::move(program)))));
}

Program lower_order(const ProgramTables& tables, const UserOrder& order) {
  require_stage_count(tables, static_cast<std::int64_t>(order.stage_ranks.size()),
                      fmt::format("the schedule's file of {} ranks", order.ranks.size()));
  Program program{tables, order.microbatches, order.ranks};
  require_placement(program, "the schedule's file");
  return alternate_pairs(add_recompute(lower_to_segments(add_exchange(std::move(program)))));
}

Program complete(Program placed) {
  require_policies(placed);
  return add_offload(add_update(add_ties(add_reduction(add_residency(std::move(placed))))));
}

Program compile_forward(const ProgramTables& tables, int ranks, int microbatches) {
  require(tables.forward_only, "the tables of a forward say so");
  require_policies(tables);
  std::vector<int> stage_ranks;
  for (const ProgramStage& stage : tables.stages) stage_ranks.push_back(stage.rank);
  Program program{tables, microbatches, forward_order(stage_ranks, ranks, microbatches)};
  return add_residency(lower_to_segments(add_exchange(std::move(program))));
}

Program compile(const ProgramTables& tables, const Schedule& schedule, const OrderInput& input) {
  return complete(lower_order(tables, schedule, input));
}

Program compile(const ProgramTables& tables, const UserOrder& order) {
  return complete(lower_order(tables, order));
}

}  // namespace weft
