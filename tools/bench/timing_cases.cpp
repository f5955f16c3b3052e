#include "tools/bench/timing_cases.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace weft {
namespace {

// The last op of a stage's action; the next stage waits for it.
struct LastOp {
  int rank = -1, op = 0;
};

class CaseRank {
 public:
  CaseRank(const TimingCase& shape, const Schedule& schedule, int rank) : shape_(shape), number_(rank) {
    const auto [ranks, chunks, microbatches, group] = shape.input;
    per_chunk_ = shape.units / chunks;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int stage = stage_of(schedule.placement, ranks, rank, chunk);
      chunk_of_[stage] = chunk;
      for (int i = 0; i < per_chunk_; ++i) {
        double scale = 1;
        if (stage == 0 && i == 0) scale = shape.embedding;
        if (stage == ranks * chunks - 1 && i == per_chunk_ - 1) scale = shape.head;
        result.units.push_back({.parameter_bytes = std::llround(scale * static_cast<double>(shape.parameter_bytes)),
                                .gradient_bytes = std::llround(scale * static_cast<double>(shape.gradient_bytes)),
                                .gather_seconds = scale * shape.gather_seconds,
                                .reduce_seconds = scale * shape.reduce_seconds});
      }
    }
    result.budget = shape.budget;
  }

  // Adds the ops of a stage's action; returns the position of the last one.
  int add(const Action& action, LastOp producer) {
    const bool forward = action.op == Op::forward;
    double seconds = shape_.forward_seconds;
    if (!forward) {
      seconds = (makes_input_gradient(action.op) ? shape_.input_gradient_seconds : 0) +
                (makes_weight_gradient(action.op) ? shape_.weight_gradient_seconds : 0);
    }
    for (int i = 0; i < per_chunk_; ++i) {
      const int unit = at_chunk(*action.stage) * per_chunk_ + (forward ? i : per_chunk_ - 1 - i);
      if (forward) live_ += shape_.activation_bytes;
      TimingOp op{.first_read = static_cast<int>(result.read_units.size()),
                  .reads = reads_parameters(action.op) ? 1 : 0,
                  .first_add = static_cast<int>(result.added_units.size()),
                  .adds = makes_weight_gradient(action.op) ? 1 : 0,
                  .seconds = seconds,
                  .activation_bytes = live_,
                  .stage = *action.stage};
      if (op.reads > 0) result.read_units.push_back(unit);
      if (op.adds > 0) {
        result.added_units.push_back(unit);
        live_ -= shape_.activation_bytes;
      }
      if (i == 0 && producer.rank >= 0 && producer.rank != number_) {
        op.producer_rank = producer.rank;
        op.producer_op = producer.op;
      }
      result.ops.push_back(op);
    }
    return static_cast<int>(result.ops.size()) - 1;
  }

  TimingRank result;

 private:
  int at_chunk(int stage) const { return chunk_of_.at(stage); }
  const TimingCase& shape_;
  int number_ = 0, per_chunk_ = 0;
  std::map<int, int> chunk_of_;
  std::int64_t live_ = 0;
};

}  // namespace

TimingProblem timing_problem(const TimingCase& shape) {
  const Schedule& schedule = find_schedule(shape.schedule);
  const auto orders = schedule.order(shape.input);
  const int ranks = shape.input.ranks, last = ranks * shape.input.chunks - 1;
  // Positions depend only on the order of each rank.
  std::map<std::tuple<bool, int, int>, LastOp> done;  // (forward, stage, microbatch) -> its last op
  const int per_action = shape.units / shape.input.chunks;
  for (int rank = 0; rank < ranks; ++rank) {
    int ops = 0;
    for (const Action& action : orders[rank]) {
      ops += per_action;
      if (action.op == Op::backward_weight) continue;
      done[{action.op == Op::forward, *action.stage, *action.microbatch}] = {rank, ops - 1};
    }
  }
  TimingProblem problem;
  for (int rank = 0; rank < ranks; ++rank) {
    CaseRank built(shape, schedule, rank);
    for (const Action& action : orders[rank]) {
      const bool forward = action.op == Op::forward;
      const int from = *action.stage + (forward ? -1 : 1);
      LastOp producer;
      if (action.op != Op::backward_weight && from >= 0 && from <= last) {
        producer = done.at({forward, from, *action.microbatch});
      }
      built.add(action, producer);
    }
    problem.ranks.push_back(std::move(built.result));
  }
  return problem;
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
