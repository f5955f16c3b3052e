// Programs that no user would write: tables with units of every kind and size, any schedule, costs drawn anew.
#pragma once

#include <array>

#include "parallel/pipeline/simulation/costs.h"
#include "parallel/runtime/random.h"
#include "tests/parallel/program_grid.h"

namespace weft {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed, "random programs") {}
  int below(int end) { return static_cast<int>(random_.bits(next_++) % static_cast<std::uint64_t>(end)); }
  int between(int first, int last) { return first + below(last - first + 1); }
  bool one_in(int n) { return below(n) == 0; }

 private:
  RandomStream random_;
  std::uint64_t next_ = 0;
};

inline UnitPolicy random_policy(Dice& dice) {
  constexpr std::array residencies = {Residency::reshard_after_use,
                                      Residency::keep_after_forward,
                                      Residency::keep_after_backward,
                                      Residency::while_on_stage,
                                      Residency::window,
                                      Residency::step,
                                      Residency::island};
  UnitPolicy policy{
      .residency = residencies[static_cast<std::size_t>(dice.below(static_cast<int>(residencies.size())))],
      .lookahead = dice.below(4),
      .reduce_every = dice.below(3)};
  if (policy.residency == Residency::window) policy.window_stages = dice.between(1, 3);
  if (policy.residency == Residency::island) policy.island_ranks = 2;
  if (policy.reduce_every == 0) policy.accumulate_sharded = dice.one_in(4);
  return policy;
}

inline ProgramUnit random_unit(Dice& dice, int stage, int index) {
  ProgramUnit unit{.name = fmt::format("unit.{}", index), .stage = stage};
  unit.replicated = dice.one_in(6);
  unit.frozen = dice.one_in(8);
  unit.policy = random_policy(dice);
  if (!unit.replicated && !dice.one_in(8)) unit.unsharded_bytes = 4 * dice.between(1, 20);
  if (unit.policy.island_ranks > 0) unit.island_bytes = unit.unsharded_bytes / 2;
  if (unit.frozen) return unit;
  if (!dice.one_in(6)) unit.gradient_bytes = 4 * dice.between(1, 20);
  if (!unit.replicated && dice.one_in(3)) unit.reduce_input_bytes = 4 * dice.between(1, 10);
  if (!unit.replicated && dice.one_in(2)) unit.reduce_part_bytes = dice.between(1, 10);
  return unit;
}

// Segments share a unit with the one before now and then, and one may read a second unit. Units of the first and the
// last stage may be copies of each other.
inline ProgramTables random_tables(Dice& dice, const Schedule& schedule, const OrderInput& input) {
  ProgramTables tables;
  tables.reduce_inputs = dice.between(1, 3);
  for (int stage = 0; stage < input.ranks * input.chunks; ++stage) {
    ProgramStage entry{.rank = rank_of(schedule.placement, input.ranks, stage), .output_bytes = 8};
    for (int count = dice.between(1, 4), first = 0; first < count; ++first) {
      ProgramSegment segment{.name = fmt::format("segment.{}", tables.segments.size()), .stage = stage};
      if (first == 0 || !dice.one_in(4)) {
        tables.units.push_back(random_unit(dice, stage, static_cast<int>(tables.units.size())));
      }
      const int last = static_cast<int>(tables.units.size()) - 1;
      if (last > 0 && dice.one_in(3) && tables.units[static_cast<std::size_t>(last - 1)].stage == stage) {
        segment.units.push_back(last - 1);
      }
      segment.units.push_back(last);
      segment.reads_weights_backward = !dice.one_in(5);
      segment.activation_bytes = dice.below(30);
      segment.pending_bytes = dice.below(40);
      // In a region now and then, of its own or that of the segment before.
      const ProgramSegment* before = first == 0 ? nullptr : &tables.segments.back();
      if (before && before->region && dice.one_in(2)) {
        segment.region = before->region;
      } else if (dice.one_in(4)) {
        segment.region = static_cast<int>(tables.segments.size());
        segment.checkpoint_bytes = dice.below(static_cast<int>(segment.activation_bytes) + 1);
      }
      if (dice.one_in(3)) exchange_rows(segment, 2, dice.below(3), 2);
      const bool begins = !segment.region || segment.region == static_cast<int>(tables.segments.size());
      if (begins && dice.one_in(2)) segment.offload_bytes = dice.below(static_cast<int>(forward_bytes(segment)) + 1);
      entry.segments.push_back(static_cast<int>(tables.segments.size()));
      tables.segments.push_back(segment);
    }
    tables.stages.push_back(entry);
  }
  ProgramUnit &first = tables.units.front(), &last = tables.units.back();
  const auto plain = [](const ProgramUnit& unit) { return !unit.frozen && !unit.replicated; };
  if (first.stage != last.stage && plain(first) && plain(last) && dice.one_in(2)) {
    std::vector<int> copies = {0, static_cast<int>(tables.units.size()) - 1};
    // A third one on a stage between them, now and then.
    for (int unit = 1; unit < copies.back() && copies.size() == 2; ++unit) {
      const ProgramUnit& middle = tables.units[static_cast<std::size_t>(unit)];
      const bool between = middle.stage != first.stage && middle.stage != last.stage;
      if (between && plain(middle) && dice.one_in(2)) copies.insert(copies.begin() + 1, unit);
    }
    const auto once = [&](int unit) {
      const UnitPolicy& policy = tables.units[static_cast<std::size_t>(unit)].policy;
      return policy.reduce_every == 0 && !policy.accumulate_sharded;
    };
    const bool unreduced = std::ranges::all_of(copies, once) && dice.one_in(2);
    for (const int unit : copies) {
      tables.units[static_cast<std::size_t>(unit)].copies = copies;
      tables.units[static_cast<std::size_t>(unit)].tied_unreduced = unreduced;
    }
  }
  return tables;
}

// Counts that the schedule can order.
inline OrderInput random_input(Dice& dice, const Schedule& schedule, int ranks, int microbatches) {
  OrderInput input;
  do {
    input = {
        .ranks = dice.between(1, ranks), .chunks = dice.between(1, 3), .microbatches = dice.between(1, microbatches)};
  } while (!can_order(schedule.name, input));
  return input;
}

// Behind every third reduction, or a few places on, a WAIT_REDUCE: somewhere before the next one of its unit.
inline void wait_for_some_reductions(Dice& dice, Program& program) {
  for (auto& list : program.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_reduction(list[i].op) || !dice.one_in(3)) continue;
      std::size_t at = i + 1;
      const auto may_pass = [&](const Action& action) {
        return action.op != Op::gradient_norm && !(is_reduction(action.op) && action.unit == list[i].unit);
      };
      for (int places = dice.below(6); places > 0 && may_pass(list[at]); --places) ++at;
      const Action wait{.op = Op::wait_reduction, .stage = list[i].stage, .unit = list[i].unit};
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), wait);
    }
  }
}

inline Program random_program(Dice& dice, int ranks = 4, int microbatches = 8) {
  const auto all = schedules();
  const Schedule& schedule = all[static_cast<std::size_t>(dice.below(static_cast<int>(all.size())))];
  const OrderInput input = random_input(dice, schedule, ranks, microbatches);
  Program program = compile(random_tables(dice, schedule, input), schedule, input);
  if (dice.one_in(3)) wait_for_some_reductions(dice, program);
  for (ProgramUnit& unit : program.units) {
    if (dice.one_in(8)) unit.policy.residency = Residency::solved;
  }
  return program;
}

// Whole seconds up to `most`, so that sums are exact whatever their order. One in five costs nothing.
inline double random_seconds(Dice& dice, int most) {
  return dice.one_in(5) ? 0.0 : dice.below(most + 1);
}

// `collectives` and `transfers`: what gathers, reductions and messages cost at most, when computing costs up to 10.
inline ProgramCosts random_costs(Dice& dice, const ProgramTables& tables, int collectives = 10, int transfers = 4) {
  ProgramCosts costs = even_costs(tables);
  const auto compute = [&] {
    ComputeCost cost{random_seconds(dice, 10), random_seconds(dice, 10), random_seconds(dice, 10)};
    // Whole seconds that each direction has enough of.
    const auto part = [&](double seconds) {
      return static_cast<double>(dice.below(static_cast<int>(seconds) / 2 + 1));
    };
    cost.forward_out = part(cost.forward);
    cost.host_copy = dice.below(4);
    cost.forward_back = part(cost.forward);
    cost.backward_out = part(cost.backward_input);
    cost.backward_back = part(cost.backward_input);
    cost.forward_covered = dice.below(static_cast<int>(cost.forward_out) + 1);
    cost.backward_covered = dice.below(static_cast<int>(cost.backward_out) + 1);
    return cost;
  };
  for (ComputeCost& cost : costs.segments) cost = compute();
  for (ComputeCost& cost : costs.stages) cost = compute();
  for (UnitCost& cost : costs.units) {
    cost = {random_seconds(dice, collectives), random_seconds(dice, collectives), random_seconds(dice, collectives),
            random_seconds(dice, collectives), random_seconds(dice, collectives)};
  }
  for (double& cost : costs.transfers) cost = random_seconds(dice, transfers);
  costs.gradient_norm = random_seconds(dice, 5);
  costs.optimizer_step = random_seconds(dice, 5);
  return costs;
}

}  // namespace weft
