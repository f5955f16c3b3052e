#include "parallel/pipeline/timing/timed_step.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/program/insertion.h"
#include "parallel/pipeline/program/overlap.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

constexpr int nowhere = -1;

// The units of a rank, without replicated ones, as a problem numbers them.
struct RankUnits {
  std::vector<int> units;   // index into the program's table
  std::vector<int> number;  // by index into the program's table; nowhere: replicated, or of another rank
};

RankUnits units_of(const Program& program, int rank) {
  RankUnits result;
  result.number.assign(program.units.size(), nowhere);
  for (std::size_t unit = 0; unit < program.units.size(); ++unit) {
    const ProgramUnit& entry = program.units[unit];
    if (entry.replicated || program.stages[entry.stage].rank != rank) continue;
    result.number[unit] = static_cast<int>(result.units.size());
    result.units.push_back(static_cast<int>(unit));
  }
  return result;
}

// List positions of the actions that compute a segment: the ops of a problem.
std::vector<std::size_t> ops_of(const std::vector<Action>& actions) {
  std::vector<std::size_t> positions;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (is_compute(actions[i].op) && actions[i].segment) positions.push_back(i);
  }
  return positions;
}

struct Producer {
  int rank = nowhere, op = 0;
};
// By stage and microbatch: the op that ends the forward, and the op that ends the input gradient.
struct Producers {
  std::vector<Producer> forward, backward;
};

class ProblemRank {
 public:
  ProblemRank(const Program& program, const ProgramCosts& costs, int rank, std::int64_t budget)
      : program_(program), costs_(costs), rank_(rank), units_(units_of(program, rank)) {
    result.budget = budget;
    for (int unit : units_.units) result.units.push_back(timing_unit(unit));
  }

  // `activation_bytes`: the most alive while the action runs.
  void add(const Action& action, std::int64_t activation_bytes, const Producers& producers) {
    const ProgramSegment& segment = program_.segments[*action.segment];
    TimingOp op{.first_read = static_cast<int>(result.read_units.size()),
                .first_add = static_cast<int>(result.added_units.size()),
                .seconds = cost_of(program_, costs_, action),
                .activation_bytes = activation_bytes,
                .stage = *action.stage};
    for (int unit : segment.units) {
      const int number = units_.number[unit];
      if (number == nowhere) continue;
      const bool reads = reads_units(segment, action.op);
      if (reads) result.read_units.push_back(number);
      const bool adds = makes_weight_gradient(action.op) && action.part.last() && !program_.units[unit].frozen;
      if (adds) result.added_units.push_back(number);
      op.reads += reads ? 1 : 0;
      op.adds += adds ? 1 : 0;
    }
    depend(action, producers, op);
    if (!action.part.last()) parts_[{*action.segment, *action.microbatch}] = static_cast<int>(result.ops.size());
    result.ops.push_back(op);
  }

  TimingRank result;

 private:
  TimingUnit timing_unit(std::size_t unit) const {
    const ProgramUnit& entry = program_.units[unit];
    if (entry.policy.accumulate_sharded) {
      fail_request("unit {}: gradients that add up in shards have no accumulator whose time could be solved",
                   entry.name);
    }
    const UnitCost& cost = costs_.units[unit];
    // A reduction takes its copy and its part while the accumulator is still there.
    return {.parameter_bytes = entry.unsharded_bytes,
            .gradient_bytes = timed_gradient_bytes(entry),
            .gather_seconds = entry.unsharded_bytes > 0 ? cost.gather : 0.0,
            .reduce_seconds = cost.reduce};
  }

  void depend(const Action& action, const Producers& producers, TimingOp& op) const {
    if (!action.part.first()) {
      Action rows = action;
      rows.op = row_exchange_of(action.op);
      --rows.part.index;
      op.producer_rank = rank_;
      op.producer_op = parts_.at({*action.segment, *action.microbatch});
      op.transfer_seconds = cost_of(program_, costs_, rows);
      op.seconds_before = seconds_before_rows(costs_, action);
      return;
    }
    const ProgramStage& stage = program_.stages[*action.stage];
    const bool forward = action.op == Op::forward;
    const bool enters = forward ? stage.segments.front() == *action.segment
                                : makes_input_gradient(action.op) && stage.segments.back() == *action.segment;
    const Op receive = forward ? Op::receive_forward : Op::receive_backward;
    if (!enters || !crosses_ranks(program_, receive, *action.stage)) return;
    const int from = other_stage(receive, *action.stage);
    const auto place = from * program_.microbatches + *action.microbatch;
    const Producer& producer = (forward ? producers.forward : producers.backward)[place];
    op.producer_rank = producer.rank;
    op.producer_op = producer.op;
    op.transfer_seconds = costs_.transfers[std::min(from, *action.stage)];
  }

  const Program& program_;
  const ProgramCosts& costs_;
  int rank_;
  RankUnits units_;
  std::map<std::pair<int, int>, int> parts_;  // the op of the last part, by segment and microbatch
};

Producers find_producers(const Program& program) {
  const auto places = program.stages.size() * program.microbatches;
  Producers producers{std::vector<Producer>(places), std::vector<Producer>(places)};
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    const auto& actions = program.ranks[rank];
    const auto ops = ops_of(actions);
    const Overlaps overlaps = find_overlaps(actions);
    for (std::size_t op = 0; op < ops.size(); ++op) {
      const Action& action = actions[ops[op]];
      const auto& segments = program.stages[*action.stage].segments;
      const auto place = *action.stage * program.microbatches + *action.microbatch;
      if (!action.part.last()) continue;
      // Both halves of an overlapped pair pass their results on at its end.
      const auto pair = overlaps.pair_of[ops[op]];
      const auto ends = pair ? std::ranges::lower_bound(ops, overlaps.pairs[*pair].last) - ops.begin()
                             : static_cast<std::ptrdiff_t>(op);
      const Producer here{static_cast<int>(rank), static_cast<int>(ends)};
      if (action.op == Op::forward && *action.segment == segments.back()) producers.forward[place] = here;
      if (makes_input_gradient(action.op) && *action.segment == segments.front()) producers.backward[place] = here;
    }
  }
  return producers;
}

// The actions between two ops of a rank stand in front of the receives of the next op. So other lanes begin before
// compute waits. They stand behind the sends of the previous op, because another rank waits for those.
std::vector<Action> timed_list(const Program& program, int rank, const TimingRankPlan& plan) {
  const std::vector<Action>& actions = program.ranks[rank];
  const RankUnits units = units_of(program, rank);
  const std::vector<std::size_t> ops = ops_of(actions);
  enum class Turn : std::uint8_t { reshard, wait, collective };
  std::multimap<std::pair<std::size_t, Turn>, Action> slots;  // by the op behind them, or the number of ops
  const auto put = [&](int slot, Turn turn, Op op, int number) {
    const int unit = units.units[number];
    const ProgramUnit& entry = program.units[unit];
    const std::int64_t bytes = op == Op::unshard           ? entry.gather_bytes
                               : op == Op::reduce_gradient ? entry.reduce_bytes
                                                           : 0;
    slots.emplace(std::pair(static_cast<std::size_t>(slot), turn),
                  Action{.op = op, .stage = entry.stage, .unit = unit, .bytes = bytes});
  };
  for (const TimedGather& gather : plan.gathers) put(gather.until + 1, Turn::reshard, Op::reshard, gather.unit);
  int at = 0;  // a collective does not overtake earlier ones of the channel
  for (const auto& [reduces, index] : plan.channel) {
    if (!reduces) {
      const TimedGather& gather = plan.gathers[index];
      at = std::max(at, gather.after + 1);
      put(at, Turn::collective, Op::unshard, gather.unit);
      continue;
    }
    const TimedReduction& reduction = plan.reductions[index];
    at = std::max(at, reduction.after + 1);
    put(at, Turn::collective, Op::reduce_gradient, reduction.unit);
    if (reduction.wait == static_cast<int>(ops.size())) continue;
    // The wait stands as early as possible: a gather behind it takes the room.
    put(reduction.wait, reduction.wait == at ? Turn::collective : Turn::wait, Op::wait_reduction, reduction.unit);
  }
  std::vector<Insertion> insertions;
  for (const auto& [place, action] : slots) {
    const std::size_t op = place.first, behind = op == 0 ? 0 : behind_with_sends(actions, ops[op - 1]);
    const std::size_t before = op == ops.size() ? behind : before_with_receives(actions, ops[op]);
    insertions.push_back({std::max(behind, before), action});
  }
  return insert_actions(actions, insertions);
}

}  // namespace

TimingProblem timing_problem(const Program& lowered, const ProgramCosts& costs, std::span<const std::int64_t> budgets) {
  require(budgets.size() == lowered.ranks.size(), "there is a budget for each pipeline rank");
  const Producers producers = find_producers(lowered);
  TimingProblem problem;
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    ProblemRank built(lowered, costs, static_cast<int>(rank), budgets[rank]);
    const auto& actions = lowered.ranks[rank];
    const std::vector<LiveAction> live = live_bytes(lowered, static_cast<int>(rank));
    // Accumulators of replicated units are there all the time.
    std::int64_t replicated = 0;
    for (const ProgramUnit& unit : lowered.units) {
      const bool here = lowered.stages[unit.stage].rank == static_cast<int>(rank);
      if (here && unit.replicated) replicated += unit.gradient_bytes;
    }
    for (std::size_t position : ops_of(actions)) {
      built.add(actions[position], replicated + live[position].most[Bucket::activations], producers);
    }
    problem.ranks.push_back(std::move(built.result));
  }
  return problem;
}

Program add_timing(Program lowered, const TimingPlan& plan) {
  require(plan.ranks.size() == lowered.ranks.size(), "there is a plan for each pipeline rank");
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    lowered.ranks[rank] = timed_list(lowered, static_cast<int>(rank), plan.ranks[rank]);
  }
  lowered.reduce_inputs = std::numeric_limits<int>::max();
  return lowered;
}

}  // namespace weft
