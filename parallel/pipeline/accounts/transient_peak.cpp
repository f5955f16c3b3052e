#include <algorithm>
#include <deque>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/program/pieces.h"

namespace weft {
namespace {

// The bytes alive on a rank, action by action. Sets, not counters: a faulty list that gathers twice or drops absent
// units must not distort the sum. Inside an action, allocations precede releases; `peak` sees each such instant.
class Alive {
 public:
  Alive(const Program& program, const PieceTable& pieces)
      : program_(program),
        pieces_(pieces),
        gathered_(program.units.size(), false),
        in_island_(program.units.size(), false),
        gradients_(program.units.size(), false),
        reductions_(program.units.size(), 0),
        waits_(program.units.size(), 0),
        kept_(pieces.size() * static_cast<std::size_t>(program.microbatches), Kept::nothing),
        kept_pieces_(static_cast<std::size_t>(program.microbatches), 0) {}

  void run(const Action& action, std::size_t index) {
    index_ = index;
    during = {.most = kinds(), .most_total = kinds().total()};
    step(action);
    during.after = kinds();
  }

  TransientPeak peak;
  LiveAction during;  // the last action that ran

 private:
  void step(const Action& action) {
    if (is_compute(action.op)) return compute(action);
    if (is_gather(action.op)) for_units_of(action, [&](std::size_t unit) { gather(unit, action.op); });
    if (is_reshard(action.op)) for_units_of(action, [&](std::size_t unit) { reshard(unit, action.op); });
    if (is_reduction(action.op)) for_units_of(action, [&](std::size_t unit) { reduce(unit); });
    if (action.op == Op::wait_reduction) for_units_of(action, [&](std::size_t unit) { finish_through(unit); });
    if (action.op == Op::gradient_norm) finish_until(0);
    look();
  }

  LiveBytes kinds() const {
    return {now_.unsharded_parameters, now_.unsharded_gradients, now_.communication, now_.activations};
  }

  const ProgramUnit& entry(std::size_t unit) const { return program_.units[unit]; }

  // What a piece keeps of a microbatch.
  enum class Kept : std::uint8_t { nothing, checkpoint, activations, pending };

  void compute(const Action& action) {
    const auto [begin, end] = pieces_.of(action);
    for (std::size_t piece = begin; piece < end; ++piece) {
      if (action.op == Op::forward) keep(piece, *action.microbatch, Kept::activations);
      if (action.op == Op::recompute && in_region(piece)) keep(piece, *action.microbatch, Kept::activations);
      if (!makes_weight_gradient(action.op) || !pieces_[piece].segment) continue;
      for (int index : program_.segments[static_cast<std::size_t>(*pieces_[piece].segment)].units) {
        const auto unit = static_cast<std::size_t>(index);
        set(gradients_, unit, true, now_.unsharded_gradients, entry(unit).gradient_bytes);
      }
    }
    look();
    if (program_.forward_only) {
      for (std::size_t piece = begin; piece < end; ++piece) keep(piece, *action.microbatch, Kept::nothing);
      return;
    }
    // The forward of a region has made all its activations and now drops them. For a whole stage this happens segment
    // by segment.
    if (action.op == Op::forward) {
      for (std::size_t piece = begin; piece < end; ++piece) {
        if (in_region(piece)) keep(piece, *action.microbatch, Kept::checkpoint);
      }
    }
    // An input gradient replaces what it read by what the weight gradient will read, piece by piece: for a B, the
    // larger of both counts. It is never their sum: most of what a layer leaves is a part of what it had (counted in
    // both) or takes its place. The rest is a temporary of this one piece, until the layer drops what it had.
    for (std::size_t piece = end; piece-- > begin;) {
      if (makes_input_gradient(action.op) && kept_[place(piece, *action.microbatch)] == Kept::activations) {
        keep(piece, *action.microbatch, Kept::pending);
        look();
      }
      if (makes_weight_gradient(action.op)) keep(piece, *action.microbatch, Kept::nothing);
    }
  }

  void gather(std::size_t unit, Op op) {
    if (entry(unit).replicated) return;
    set(gathered_, unit, true, now_.unsharded_parameters, entry(unit).unsharded_bytes);
    look();
    if (op == Op::unshard_secondary) {
      set(in_island_, unit, false, now_.unsharded_parameters, entry(unit).island_bytes);
    }
  }

  void reshard(std::size_t unit, Op op) {
    if (entry(unit).replicated) return;
    if (op == Op::reshard_secondary) {
      set(in_island_, unit, true, now_.unsharded_parameters, entry(unit).island_bytes);
      look();
    }
    set(gathered_, unit, false, now_.unsharded_parameters, entry(unit).unsharded_bytes);
  }

  // The input of a reduction stays until later reductions have filled the pool, or until the norm has waited for all.
  // The input is the accumulator itself, or its copy in the reduction dtype.
  void reduce(std::size_t unit) {
    ++reductions_[unit];
    const bool copies = entry(unit).reduce_input_bytes > 0;
    if (copies) finish_until(program_.reduce_inputs - 1);
    now_.communication += entry(unit).reduce_input_bytes;
    look();
    const bool accumulated = gradients_[unit] && entry(unit).gradient_bytes > 0;
    std::int64_t input = 0;
    if (accumulated && (copies || entry(unit).replicated)) now_.unsharded_gradients -= entry(unit).gradient_bytes;
    if (accumulated && !copies && !entry(unit).replicated) input = entry(unit).gradient_bytes;
    gradients_[unit] = false;
    now_.communication += entry(unit).reduce_part_bytes;
    look();
    now_.communication -= entry(unit).reduce_part_bytes;
    if (input == 0 && !copies) return;
    in_flight_.push_back({unit, reductions_[unit], input, entry(unit).reduce_input_bytes});
    finish_until(program_.reduce_inputs);
  }

  void finish_until(int reductions) {
    while (!in_flight_.empty() && static_cast<int>(in_flight_.size()) > reductions) {
      now_.unsharded_gradients -= in_flight_.front().gradients;
      now_.communication -= in_flight_.front().communication;
      in_flight_.pop_front();
    }
  }

  // Reductions end in order, so those before the awaited one have ended, too.
  void finish_through(std::size_t unit) {
    const int waited_for = ++waits_[unit];
    for (std::size_t left = in_flight_.size(); left > 0; --left) {
      const InFlight& reduction = in_flight_[left - 1];
      if (reduction.unit != unit || reduction.number != waited_for) continue;
      return finish_until(static_cast<int>(in_flight_.size() - left));
    }
  }

  void look() {
    now_.bytes = now_.unsharded_parameters + now_.unsharded_gradients + now_.communication + now_.activations;
    const int in_flight = std::max(peak.microbatches_in_flight, microbatches_in_flight_);
    if (now_.bytes > peak.bytes) {
      peak = now_;
      peak.index = index_;
    }
    peak.microbatches_in_flight = in_flight;
    LiveBytes& most = during.most;
    most.unsharded_parameters = std::max(most.unsharded_parameters, now_.unsharded_parameters);
    most.unsharded_gradients = std::max(most.unsharded_gradients, now_.unsharded_gradients);
    most.communication = std::max(most.communication, now_.communication);
    most.activations = std::max(most.activations, now_.activations);
    during.most_total = std::max(during.most_total, now_.bytes);
  }

  // An action without a unit applies to all units of its stage.
  template <typename Function>
  void for_units_of(const Action& action, Function function) const {
    if (action.unit) return function(static_cast<std::size_t>(*action.unit));
    for (std::size_t unit = 0; unit < program_.units.size(); ++unit) {
      if (entry(unit).stage == *action.stage) function(unit);
    }
  }

  static void set(std::vector<bool>& flags, std::size_t i, bool value, std::int64_t& sum, std::int64_t bytes) {
    if (flags[i] == value) return;
    flags[i] = value;
    sum += value ? bytes : -bytes;
  }

  std::size_t place(std::size_t piece, int microbatch) const {
    return piece * static_cast<std::size_t>(program_.microbatches) + static_cast<std::size_t>(microbatch);
  }

  bool in_region(std::size_t piece) const {
    const auto segment = pieces_[piece].segment;
    return segment && program_.segments[static_cast<std::size_t>(*segment)].region;
  }

  std::int64_t bytes_of(std::size_t piece, Kept kept) const {
    const auto segment = pieces_[piece].segment;
    if (!segment || kept == Kept::nothing) return 0;
    const ProgramSegment& entry = program_.segments[static_cast<std::size_t>(*segment)];
    if (kept == Kept::checkpoint) return entry.checkpoint_bytes;
    return kept == Kept::activations ? entry.activation_bytes : entry.pending_bytes;
  }

  void keep(std::size_t piece, int microbatch, Kept kept) {
    Kept& before = kept_[place(piece, microbatch)];
    now_.activations += bytes_of(piece, kept) - bytes_of(piece, before);
    int& pieces = kept_pieces_[static_cast<std::size_t>(microbatch)];
    const bool was_in_flight = pieces > 0;
    pieces += static_cast<int>(kept != Kept::nothing) - static_cast<int>(before != Kept::nothing);
    microbatches_in_flight_ += static_cast<int>(pieces > 0) - static_cast<int>(was_in_flight);
    before = kept;
  }

  struct InFlight {
    std::size_t unit = 0;
    int number = 0;  // number among the unit's reductions, from 1
    std::int64_t gradients = 0, communication = 0;
  };

  const Program& program_;
  const PieceTable& pieces_;
  TransientPeak now_;
  std::size_t index_ = 0;
  std::vector<bool> gathered_, in_island_, gradients_;  // by unit
  std::vector<int> reductions_, waits_;                 // so far, by unit
  std::deque<InFlight> in_flight_;                      // oldest first
  std::vector<Kept> kept_;                              // by piece, then microbatch
  std::vector<int> kept_pieces_;                        // by microbatch
  int microbatches_in_flight_ = 0;
};

}  // namespace

TransientPeak transient_peak(const Program& program, int rank) {
  const PieceTable pieces(program);
  const auto& actions = program.ranks.at(static_cast<std::size_t>(rank));
  Alive alive(program, pieces);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (!malformed(program, pieces, actions[i])) alive.run(actions[i], i);
  }
  return alive.peak;
}

std::vector<LiveAction> live_bytes(const Program& program, int pipeline_rank) {
  const PieceTable pieces(program);
  const auto& actions = program.ranks.at(static_cast<std::size_t>(pipeline_rank));
  Alive alive(program, pieces);
  std::vector<LiveAction> live;
  live.reserve(actions.size());
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (malformed(program, pieces, actions[i])) {
      const LiveAction before = live.empty() ? LiveAction{} : live.back();
      live.push_back({before.after, before.after, before.after.total()});
      continue;
    }
    alive.run(actions[i], i);
    live.push_back(alive.during);
  }
  return live;
}

}  // namespace weft
