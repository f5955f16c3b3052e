// The shortest step of one rank, by trying everything: the units dropped after each use, issue and order of gathers
// and reductions, and compute's waits. Shares no code with the solver and thinks in slots: what is issued between two
// ops. That triggers never fall along the channel loses nothing: a collective behind another cannot start before it
// anyway.
#pragma once

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "parallel/pipeline/timing/problem.h"

namespace weft {

class ExhaustiveTiming {
 public:
  // `known`: the makespan of some plan; what cannot be shorter is not followed.
  ExhaustiveTiming(const TimingRank& rank, double known) : rank_(rank), best_(known) {
    const std::size_t ops = rank.ops.size();
    remaining_.resize(ops + 1);
    for (std::size_t q = ops; q-- > 0;) remaining_[q] = remaining_[q + 1] + rank.ops[q].seconds;
  }
  double shortest() {
    State start;
    start.units.resize(rank_.units.size());
    enter(start);
    return best_;
  }

 private:
  struct Unit {
    bool resident = false, accumulating = false;
    double arrives = 0;
  };
  struct Reduction {
    int unit = 0;
    bool issued = false;
    double end = 0;
  };
  struct State {
    std::size_t op = 0;
    double time = 0, channel = 0;  // when compute and channel are free
    std::vector<Unit> units;
    std::vector<Reduction> reductions;  // their gradients are still there
  };

  bool has_use(bool reads, int unit, std::size_t from) const {
    for (std::size_t q = from; q < rank_.ops.size(); ++q) {
      const auto units = reads ? rank_.reads_of(rank_.ops[q]) : rank_.adds_of(rank_.ops[q]);
      if (std::find(units.begin(), units.end(), unit) != units.end()) return true;
    }
    return false;
  }
  const TimingUnit& unit_of(int unit) const { return rank_.units[static_cast<std::size_t>(unit)]; }

  double bound(const State& state) const {
    double channel = state.channel;
    for (int u = 0; u < static_cast<int>(state.units.size()); ++u) {
      const Unit& unit = state.units[static_cast<std::size_t>(u)];
      if (!unit.resident && has_use(true, u, state.op)) channel += unit_of(u).gather_seconds;
      if (unit_of(u).gradient_bytes > 0 && (unit.accumulating || has_use(false, u, state.op))) {
        channel += unit_of(u).reduce_seconds;
      }
    }
    for (const Reduction& reduction : state.reductions) {
      if (!reduction.issued) channel += unit_of(reduction.unit).reduce_seconds;
    }
    return std::max(state.time + remaining_[state.op], channel);
  }

  // A slot begins. States that are in nothing better than one seen before are not followed.
  void enter(State state) {
    std::erase_if(state.reductions, [&](const Reduction& r) { return r.issued && r.end <= state.time; });
    if (bound(state) >= best_ - 1e-9) return;
    state.channel = std::max(state.channel, state.time);
    std::sort(state.reductions.begin(), state.reductions.end(), [](const Reduction& one, const Reduction& other) {
      return std::tuple(one.unit, one.issued, one.end) < std::tuple(other.unit, other.issued, other.end);
    });
    std::vector<int> key{static_cast<int>(state.op)};
    std::vector<double> values{state.time, state.channel};
    for (const Unit& unit : state.units) {
      key.push_back(2 * unit.resident + unit.accumulating);
      values.push_back(unit.resident ? std::max(unit.arrives, state.time) : 0);
    }
    for (const Reduction& reduction : state.reductions) {
      key.push_back(10 + 2 * reduction.unit + reduction.issued);
      values.push_back(reduction.issued ? reduction.end : 0);
    }
    auto& seen = seen_[key];
    const auto no_worse = [](const std::vector<double>& one, const std::vector<double>& other) {
      return std::equal(one.begin(), one.end(), other.begin(), [](double a, double b) { return a <= b; });
    };
    for (const auto& other : seen) {
      if (no_worse(other, values)) return;
    }
    std::erase_if(seen, [&](const auto& other) { return no_worse(values, other); });
    seen.push_back(values);
    if (state.op == rank_.ops.size()) return finish(state);
    settle(state, 0);
  }

  void finish(const State& state) {
    double channel = state.channel;
    for (const Reduction& reduction : state.reductions) {
      if (!reduction.issued) channel += unit_of(reduction.unit).reduce_seconds;
    }
    best_ = std::min(best_, std::max(state.time, channel));
  }

  // Which reductions compute waits for before this op; gathers of the slot come after them in the channel.
  void settle(const State& state, double waited) {
    issue(state, waited);
    for (std::size_t i = 0; i < state.reductions.size(); ++i) {
      State next = state;
      Reduction reduction = next.reductions[i];
      if (!reduction.issued) {
        next.channel += unit_of(reduction.unit).reduce_seconds;
        reduction.end = next.channel;
      }
      next.reductions.erase(next.reductions.begin() + static_cast<std::ptrdiff_t>(i));
      settle(next, std::max(waited, reduction.end));
    }
  }

  std::int64_t bytes(const State& state) const {
    const TimingOp& op = rank_.ops[state.op];
    std::int64_t sum = op.activation_bytes;
    for (int u = 0; u < static_cast<int>(state.units.size()); ++u) {
      const Unit& unit = state.units[static_cast<std::size_t>(u)];
      const auto adds = rank_.adds_of(op);
      if (unit.resident) sum += unit_of(u).parameter_bytes;
      if (unit.accumulating || std::find(adds.begin(), adds.end(), u) != adds.end()) sum += unit_of(u).gradient_bytes;
    }
    for (const Reduction& reduction : state.reductions) sum += unit_of(reduction.unit).gradient_bytes;
    return sum;
  }

  // What the channel is given in this slot, in any order.
  void issue(const State& state, double waited) {
    if (bytes(state) > rank_.budget) return;
    run(state, waited);
    for (int u = 0; u < static_cast<int>(state.units.size()); ++u) {
      if (state.units[static_cast<std::size_t>(u)].resident || !has_use(true, u, state.op)) continue;
      State next = state;
      next.channel += unit_of(u).gather_seconds;
      next.units[static_cast<std::size_t>(u)].resident = true;
      next.units[static_cast<std::size_t>(u)].arrives = next.channel;
      issue(next, waited);
    }
    for (std::size_t i = 0; i < state.reductions.size(); ++i) {
      if (state.reductions[i].issued) continue;
      State next = state;
      next.channel += unit_of(state.reductions[i].unit).reduce_seconds;
      next.reductions[i].issued = true;
      next.reductions[i].end = next.channel;
      issue(next, waited);
    }
  }

  void run(State state, double waited) {
    const TimingOp& op = rank_.ops[state.op];
    double begin = std::max(state.time, waited);
    for (const int u : rank_.reads_of(op)) {
      const Unit& unit = state.units[static_cast<std::size_t>(u)];
      if (!unit.resident) return;
      begin = std::max(begin, unit.arrives);
    }
    state.time = begin + op.seconds;
    ++state.op;
    leave(std::move(state), op, 0);
  }

  // Each unit of the op, one after the other: stays or goes.
  void leave(State state, const TimingOp& op, int index) {
    const auto reads = rank_.reads_of(op), adds = rank_.adds_of(op);
    if (index == static_cast<int>(reads.size() + adds.size())) return enter(std::move(state));
    const bool read = index < static_cast<int>(reads.size());
    const int u = read ? reads[static_cast<std::size_t>(index)] : adds[static_cast<std::size_t>(index) - reads.size()];
    Unit& unit = state.units[static_cast<std::size_t>(u)];
    if (!read && unit_of(u).gradient_bytes == 0) return leave(std::move(state), op, index + 1);
    if (!read) unit.accumulating = true;
    if (has_use(read, u, state.op)) leave(state, op, index + 1);
    if (read) {
      unit.resident = false;
    } else {
      unit.accumulating = false;
      state.reductions.push_back({.unit = u});
    }
    leave(std::move(state), op, index + 1);
  }

  const TimingRank& rank_;
  double best_;
  std::vector<double> remaining_;
  std::map<std::vector<int>, std::vector<std::vector<double>>> seen_;
};

}  // namespace weft
