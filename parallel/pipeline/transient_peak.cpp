#include <algorithm>

#include "parallel/pipeline/check.h"
#include "parallel/pipeline/pieces.h"

namespace weft {
namespace {

// What is alive on a rank. Sets, not counters: a faulty list that gathers twice or drops what is not there must not
// throw the sum off.
class Alive {
 public:
  Alive(const Program& program, const PieceTable& pieces)
      : program_(program),
        pieces_(pieces),
        gathered_(program.units.size(), false),
        gradients_(program.units.size(), false),
        activations_(pieces.size() * static_cast<std::size_t>(program.microbatches), false),
        kept_pieces_(static_cast<std::size_t>(program.microbatches), 0) {}

  // What an action takes stands before it runs.
  void take(const Action& action) {
    if (action.op == Op::unshard) {
      for_units_of(action, [&](std::size_t unit) { set(gathered_, unit, true, parameters, unsharded_bytes(unit)); });
    }
    if (!is_compute(action.op)) return;
    const auto [begin, end] = pieces_.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) {
      if (action.op == Op::forward) keep(piece, *action.microbatch, true);
      if (!makes_weight_gradient(action.op) || !pieces_[piece].segment) continue;
      for (int index : program_.segments[static_cast<std::size_t>(*pieces_[piece].segment)].units) {
        const auto unit = static_cast<std::size_t>(index);
        set(gradients_, unit, true, gradients, program_.units[unit].gradient_bytes);
      }
    }
  }

  // What it gives back goes when it has run.
  void give_back(const Action& action) {
    if (action.op == Op::reshard) {
      for_units_of(action, [&](std::size_t unit) { set(gathered_, unit, false, parameters, unsharded_bytes(unit)); });
    }
    if (action.op == Op::reduce_gradient) {
      for_units_of(action, [&](std::size_t unit) {
        set(gradients_, unit, false, gradients, program_.units[unit].gradient_bytes);
      });
    }
    // With a split backward the weight gradient is the last to read the activations.
    if (!makes_weight_gradient(action.op)) return;
    const auto [begin, end] = pieces_.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) keep(piece, *action.microbatch, false);
  }

  std::int64_t parameters = 0, gradients = 0, activations = 0;
  int microbatches_in_flight = 0;

 private:
  std::int64_t unsharded_bytes(std::size_t unit) const {
    return program_.units[unit].replicated ? 0 : program_.units[unit].unsharded_bytes;
  }

  // Without a unit the action speaks of all units of its stage.
  template <typename Function>
  void for_units_of(const Action& action, Function function) const {
    if (action.unit) return function(static_cast<std::size_t>(*action.unit));
    for (std::size_t unit = 0; unit < program_.units.size(); ++unit) {
      if (program_.units[unit].stage == *action.stage) function(unit);
    }
  }

  static void set(std::vector<bool>& flags, std::size_t i, bool value, std::int64_t& sum, std::int64_t bytes) {
    if (flags[i] == value) return;
    flags[i] = value;
    sum += value ? bytes : -bytes;
  }

  void keep(std::size_t piece, int microbatch, bool value) {
    const auto column = static_cast<std::size_t>(microbatch);
    const std::size_t place = piece * static_cast<std::size_t>(program_.microbatches) + column;
    if (activations_[place] == value) return;
    const auto segment = pieces_[piece].segment;
    set(activations_, place, value, activations,
        segment ? program_.segments[static_cast<std::size_t>(*segment)].activation_bytes : 0);
    const bool was_in_flight = kept_pieces_[column] > 0;
    kept_pieces_[column] += value ? 1 : -1;
    microbatches_in_flight += static_cast<int>(kept_pieces_[column] > 0) - static_cast<int>(was_in_flight);
  }

  const Program& program_;
  const PieceTable& pieces_;
  std::vector<bool> gathered_, gradients_;  // by unit
  std::vector<bool> activations_;           // by piece, then microbatch
  std::vector<int> kept_pieces_;            // by microbatch
};

}  // namespace

TransientPeak transient_peak(const Program& program, int rank) {
  const PieceTable pieces(program);
  const auto& actions = program.ranks.at(static_cast<std::size_t>(rank));
  Alive alive(program, pieces);
  TransientPeak peak;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (malformed(program, pieces, action)) continue;
    alive.take(action);
    peak.microbatches_in_flight = std::max(peak.microbatches_in_flight, alive.microbatches_in_flight);
    const std::int64_t bytes = alive.parameters + alive.gradients + alive.activations;
    if (bytes > peak.bytes) {
      peak.bytes = bytes;
      peak.index = i;
      peak.unsharded_parameters = alive.parameters;
      peak.unsharded_gradients = alive.gradients;
      peak.activations = alive.activations;
    }
    alive.give_back(action);
  }
  return peak;
}

}  // namespace weft
