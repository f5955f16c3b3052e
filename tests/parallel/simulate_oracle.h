// The simulator's rules once more, as inequalities between pairs of actions, and the least solution found by applying
// them until nothing moves. Slow (every pair of actions of a rank is looked at) and shares no code with simulate.cpp.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "tests/parallel/program_grid.h"

namespace weft {

class SimulationOracle {
 public:
  SimulationOracle(const Program& program, const ProgramCosts& costs, const LaneChannels& channels)
      : program_(program), costs_(costs), channels_(channels) {
    for (const auto& actions : program.ranks) {
      first_.push_back(seconds_.size());
      for (const Action& action : actions) {
        seconds_.push_back(seconds_of(action));
        exchanged_ = exchanged_ || is_send(action.op);
      }
    }
    start_.assign(seconds_.size(), 0.0);
    for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) add_own(rank);
    add_messages();
    add_norms();
    add_ties();
    if (!exchanged_) add_data();
    for (bool moved = true; moved;) {
      moved = false;
      for (const auto& [later, earlier, from_end, ahead] : rules_) {
        const double least = start_[earlier] + (from_end ? seconds_[earlier] : 0.0) - ahead;
        if (start_[later] >= least) continue;
        start_[later] = least;
        moved = true;
      }
    }
  }

  double start(std::size_t rank, std::size_t index) const { return start_[first_[rank] + index]; }
  double end(std::size_t rank, std::size_t index) const { return start(rank, index) + seconds_[first_[rank] + index]; }
  std::size_t rules() const { return rules_.size(); }

 private:
  // start_[later] is at least the start or the end of the earlier one, less the seconds that it may begin ahead.
  struct Rule {
    std::size_t later, earlier;
    bool from_end;
    double ahead;
  };

  std::size_t channel(const Action& a) const {
    return channels_.channel[static_cast<std::size_t>(lane_of(program_, a))];
  }
  std::size_t compute_channel() const { return channels_.channel[static_cast<std::size_t>(Lane::compute)]; }
  const ProgramUnit& unit(const Action& a) const { return program_.units[static_cast<std::size_t>(*a.unit)]; }
  static bool on_compute(const Action& a) {
    return is_compute(a.op) || a.op == Op::wait_reduction || a.op == Op::wait_offload || a.op == Op::gradient_norm ||
           a.op == Op::optimizer_step;
  }
  bool moves_parameters(const Action& a) const { return !unit(a).replicated && unit(a).unsharded_bytes > 0; }

  std::vector<int> units_of(const Action& a) const {
    if (!a.segment) return {};
    return program_.segments[static_cast<std::size_t>(*a.segment)].units;
  }
  static bool adds(const Action& a) { return makes_weight_gradient(a.op) && a.part.index + 1 == a.part.count; }
  static bool is_rows(const Action& a) {
    return a.op == Op::rows_forward || a.op == Op::rows_recompute || a.op == Op::rows_backward;
  }
  static bool copies(const Action& a) { return a.op == Op::offload || a.op == Op::reload; }
  static bool same_bytes(const Action& a, const Action& b) {
    return a.segment == b.segment && a.microbatch == b.microbatch;
  }
  bool touches(const Action& a, int unit) const {
    const auto units = units_of(a);
    return std::find(units.begin(), units.end(), unit) != units.end();
  }
  bool reads(const Action& a, int unit) const {
    if (!touches(a, unit) || a.op == Op::backward_weight) return false;
    return a.op == Op::forward || a.op == Op::recompute ||
           program_.segments[static_cast<std::size_t>(*a.segment)].reads_weights_backward;
  }

  double covered(const Action& a) const {
    const ComputeCost& cost = costs_.segments[static_cast<std::size_t>(*a.segment)];
    return a.op == Op::forward || a.op == Op::recompute ? cost.forward_covered : cost.backward_covered;
  }

  double seconds_of(const Action& a) const {
    const auto stage = static_cast<std::size_t>(a.stage.value_or(0));
    if (is_compute(a.op)) {
      const ComputeCost& cost =
          a.segment ? costs_.segments[static_cast<std::size_t>(*a.segment)] : costs_.stages[stage];
      const bool ascends = a.op == Op::forward || a.op == Op::recompute;
      double sum = ascends ? cost.forward : 0.0;
      if (a.op == Op::backward || a.op == Op::backward_input) sum += cost.backward_input;
      // Cut, the second part has all but its exchanges and the last one the weight gradient.
      if (a.part.count > 1 && a.part.index != 1) sum = 0.0;
      if (a.part.count > 1 && a.part.index == 1) sum -= ascends ? cost.forward_out : cost.backward_out;
      if (a.part.count > 1 && a.part.index == 1) sum += covered(a);
      if (a.part.count > 2 && a.part.index == 1) sum -= ascends ? cost.forward_back : cost.backward_back;
      const bool weighs = a.op == Op::backward || a.op == Op::backward_weight;
      if (weighs && a.part.index + 1 == a.part.count) sum += cost.backward_weight;
      return sum;
    }
    if (a.op == Op::rows_forward || a.op == Op::rows_recompute || a.op == Op::rows_backward) {
      const ComputeCost& cost = costs_.segments[static_cast<std::size_t>(*a.segment)];
      if (a.op == Op::rows_backward) return a.part.index == 0 ? cost.backward_out : cost.backward_back;
      return a.part.index == 0 ? cost.forward_out : cost.forward_back;
    }
    if (a.op == Op::wait_offload) return 0.0;
    if (copies(a)) return costs_.segments[static_cast<std::size_t>(*a.segment)].host_copy;
    if (a.op == Op::gradient_norm) return costs_.gradient_norm;
    if (a.op == Op::optimizer_step) return costs_.optimizer_step;
    if (a.op == Op::send_forward || a.op == Op::send_backward) {
      if (channel(a) == compute_channel()) return 0.0;
      return costs_.transfers[a.op == Op::send_forward ? stage : stage - 1];
    }
    if (is_receive(a.op)) return costs_.transfers[a.op == Op::receive_forward ? stage - 1 : stage];
    const UnitCost& cost = costs_.units[static_cast<std::size_t>(*a.unit)];
    if (a.op == Op::unshard) return moves_parameters(a) ? cost.gather : 0.0;
    if (a.op == Op::unshard_secondary) return moves_parameters(a) ? cost.island_gather : 0.0;
    if (a.op == Op::scatter_gradient) return cost.scatter;
    if (a.op == Op::tie_gradient) return cost.tie;
    return a.op == Op::reduce_gradient ? cost.reduce : 0.0;
  }

  void add(std::size_t later, std::size_t earlier, bool from_end = true, double ahead = 0.0) {
    rules_.push_back({later, earlier, from_end, ahead});
  }

  // Whether reduction `at` takes an accumulator or a copy of one from the pool.
  bool pooled(const std::vector<Action>& list, std::size_t at) const {
    const ProgramUnit& reduced = unit(list[at]);
    if (reduced.reduce_input_bytes > 0) return true;
    if (reduced.replicated || reduced.gradient_bytes == 0) return false;
    for (std::size_t i = at; i-- > 0;) {
      if (is_reduction(list[i].op) && list[i].unit == list[at].unit) return false;
      if (adds(list[i]) && touches(list[i], *list[at].unit)) return true;
    }
    return false;
  }

  bool begins_accumulator(const std::vector<Action>& list, std::size_t at, int index) const {
    const ProgramUnit& entry = program_.units[static_cast<std::size_t>(index)];
    if (!adds(list[at]) || entry.replicated || entry.frozen || entry.gradient_bytes == 0) return false;
    for (std::size_t i = at; i-- > 0;) {
      if (is_reduction(list[i].op) && list[i].unit == index) return true;
      if (adds(list[i]) && touches(list[i], index)) return false;
    }
    return true;
  }

  void add_own(std::size_t rank) {
    const auto& list = program_.ranks[rank];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Action& a = list[i];
      const std::size_t here = first_[rank] + i;
      std::vector<std::size_t> reductions;  // of the pool, before this action
      std::ptrdiff_t to_skip = 0;           // of the unit's reductions, for which it was waited before
      if (a.op == Op::wait_reduction) {
        to_skip = std::count_if(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(i),
                                [&](const Action& b) { return b.op == Op::wait_reduction && b.unit == a.unit; });
      }
      for (std::size_t j = 0; j < i; ++j) {
        const Action& b = list[j];
        const std::size_t there = first_[rank] + j;
        const bool turns = channel(a) == channel(b) && !is_reshard(b.op);
        if (turns && (!is_reshard(a.op) || channel(a) == compute_channel())) add(here, there);
        if (on_compute(b) && (is_reduction(a.op) || is_send(a.op) || is_reshard(a.op) || is_rows(a) || copies(a))) {
          add(here, there);
        }
        if (a.op == Op::wait_offload && b.op == Op::offload && same_bytes(a, b)) add(here, there);
        if (is_compute(a.op) && b.op == Op::reload && same_bytes(a, b)) add(here, there);
        if (is_compute(a.op) && a.part.index > 0 && is_rows(b) && a.segment == b.segment &&
            a.microbatch == b.microbatch && b.part.index + 1 == a.part.index) {
          // The computation that needs no rows is at the begin of the second part.
          add(here, there, true, a.part.index == 1 ? covered(a) : 0.0);
        }
        if (is_gather(a.op) && is_reshard(b.op) && moves_parameters(b)) add(here, there);
        if (is_gather(a.op) && on_compute(b) && unit(a).policy.residency == Residency::solved) add(here, there);
        if (a.op == Op::wait_reduction && is_reduction(b.op) && a.unit == b.unit && to_skip-- == 0) add(here, there);
        if (is_compute(a.op) && is_gather(b.op) && moves_parameters(b) && reads(a, *b.unit)) add(here, there);
        if (is_receive(b.op) && a.stage == b.stage && a.microbatch == b.microbatch && is_compute(a.op) &&
            a.op != Op::backward_weight && a.op != Op::recompute &&
            (a.op == Op::forward) == (b.op == Op::receive_forward)) {
          add(here, there);
        }
        const bool summed = is_reduction(b.op) || b.op == Op::tie_gradient;
        if (a.op == Op::gradient_norm && summed) add(here, there);
        if (a.op == Op::tie_gradient && unit(a).tied_unreduced && is_compute(b.op)) add(here, there);
        if (is_reduction(b.op) && pooled(list, j)) reductions.push_back(there);
      }
      const auto limit = static_cast<std::size_t>(program_.reduce_inputs);
      for (int index : units_of(a)) {
        if (!begins_accumulator(list, i, index)) continue;
        for (std::size_t k = 0; k + limit < reductions.size(); ++k) add(here, reductions[k]);
      }
    }
  }

  static Lane sender_of(Lane receives) {
    std::string name(name_of(receives));
    name.replace(0, std::string("receive").size(), "send");
    return *std::find_if(all_lanes.begin(), all_lanes.end(), [&](Lane lane) { return name_of(lane) == name; });
  }

  // The n-th send and the n-th receive between two ranks on their lanes.
  void add_messages() {
    std::map<std::tuple<std::size_t, std::size_t, Lane>, std::pair<std::vector<std::size_t>, std::vector<std::size_t>>>
        ends;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Action& a = program_.ranks[rank][i];
        const auto peer = static_cast<std::size_t>(a.peer.value_or(0));
        if (is_send(a.op)) ends[{rank, peer, lane_of(program_, a)}].first.push_back(first_[rank] + i);
        if (is_receive(a.op)) ends[{peer, rank, sender_of(lane_of(program_, a))}].second.push_back(first_[rank] + i);
      }
    }
    for (const auto& [pair, lists] : ends) {
      const auto& [sends, receives] = lists;
      for (std::size_t n = 0; n < sends.size(); ++n) {
        add(receives[n], sends[n], false);
        if (n > 0) add(sends[n], receives[n - 1]);
      }
    }
  }

  // All begin when the last one may.
  void add_norms() {
    std::vector<std::size_t> norms;
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        if (program_.ranks[rank][i].op == Op::gradient_norm) norms.push_back(first_[rank] + i);
      }
    }
    for (std::size_t one : norms) {
      for (std::size_t other : norms) add(one, other, false);
    }
  }

  // All of a tie begin when the last may.
  void add_ties() {
    std::map<int, std::size_t> ties;  // by unit
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < program_.ranks[rank].size(); ++i) {
        const Action& a = program_.ranks[rank][i];
        if (a.op == Op::tie_gradient) ties[*a.unit] = first_[rank] + i;
      }
    }
    for (const auto& [index, tie] : ties) {
      for (const int copy : program_.units[static_cast<std::size_t>(index)].copies) {
        const auto other = ties.find(copy);
        if (other != ties.end()) add(tie, other->second, false);
      }
    }
  }

  // Without messages: from stage to stage, and round at the last one. What either half of a pair makes is made when the
  // pair ends, and it begins when both halves have what they need.
  void add_data() {
    std::map<std::tuple<int, int, bool>, std::size_t> made;  // stage, microbatch, forward
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
        const auto& list = program_.ranks[rank];
        const Overlaps overlaps = find_overlaps(list);
        for (std::size_t i = 0; i < list.size(); ++i) {
          const Action& a = list[i];
          if (!is_compute(a.op) || a.op == Op::backward_weight || a.op == Op::recompute) continue;
          const bool forward = a.op == Op::forward;
          const auto pair = overlaps.pair_of[i];
          const std::size_t begins = first_[rank] + (pair ? overlaps.pairs[*pair].first : i);
          const std::size_t ends = first_[rank] + (pair ? overlaps.pairs[*pair].last : i);
          if (pass == 0) made[{*a.stage, *a.microbatch, forward}] = ends;
          const int from = forward ? *a.stage - 1 : *a.stage + 1;
          if (pass == 0 || from < 0) continue;
          const bool turns = from == static_cast<int>(program_.stages.size());
          add(begins, turns ? made.at({*a.stage, *a.microbatch, true}) : made.at({from, *a.microbatch, forward}));
        }
      }
    }
  }

  const Program& program_;
  const ProgramCosts& costs_;
  const LaneChannels& channels_;
  std::vector<std::size_t> first_;  // by rank: its first action among all
  std::vector<double> seconds_, start_;
  std::vector<Rule> rules_;
  bool exchanged_ = false;
};

}  // namespace weft
