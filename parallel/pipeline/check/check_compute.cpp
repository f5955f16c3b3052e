#include <fmt/format.h>

#include <utility>

#include "parallel/pipeline/check/check_parts.h"
#include "parallel/pipeline/program/program.h"
#include "parallel/pipeline/text/text.h"

namespace weft {
namespace {

// The actions done for one microbatch in one piece.
struct DoneActions {
  bool forward = false, recomputed = false, input_gradient = false, weight_gradient = false;
  // Of a computation in parts that is under way: the parts that have run, and the exchanges of rows behind them.
  Op open = Op::forward;
  std::uint8_t parts = 0, exchanges = 0;
};
// The data received for one microbatch at one stage.
struct Received {
  bool activation = false, gradient = false;
};

bool belongs_to_forward(Op op) {
  return op == Op::forward || op == Op::rows_forward || carries_activations(op) || is_gather(op) || is_reshard(op);
}

class ComputeWalk : RowWalk {
 public:
  ComputeWalk(const CheckContext& context, int row, std::vector<Finding>& findings)
      : RowWalk(context, row, findings),
        pieces_(context.pieces),
        done_(pieces_.size() * microbatches()),
        received_(program_.stages.size() * microbatches()) {}

  void run() {
    const auto& actions = context_.list(row_);
    for (index_ = 0; index_ < actions.size(); ++index_) {
      const Action& action = actions[index_];
      if (program_.forward_only && !belongs_to_forward(action.op)) {
        found(Violation::beyond_forward, "{} in a program that is forward only", name_of(action.op));
      } else if (const auto fault = malformed(program_, pieces_, action)) {
        found(Violation::unknown_stage, *fault);
      } else if (action.stage && !context_.runs(row_, *action.stage)) {
        found(Violation::unknown_stage, "stage {} runs on rank {}, not here", *action.stage, stage_rank(*action.stage));
      } else if (is_compute(action.op)) {
        compute(action);
      } else if (is_row_exchange(action.op)) {
        exchange_rows(action);
      } else if (is_message(action.op)) {
        exchange(action);
      }
    }
    require_complete();
  }

 private:
  std::size_t microbatches() const { return static_cast<std::size_t>(program_.microbatches); }
  int stage_rank(int stage) const { return program_.stages[stage].rank; }
  int stage_count() const { return static_cast<int>(program_.stages.size()); }
  DoneActions& done(std::size_t piece, int microbatch) { return done_[piece * microbatches() + microbatch]; }
  Received& received(int stage, int microbatch) { return received_[stage * microbatches() + microbatch]; }
  std::string name(std::size_t piece) const {
    const ScheduledPiece& p = pieces_[piece];
    return p.segment ? program_.segments[*p.segment].name : fmt::format("stage {}", p.stage);
  }

  std::optional<int> region_of(std::size_t piece) const {
    const auto segment = pieces_[piece].segment;
    return segment ? program_.segments[*segment].region : std::nullopt;
  }

  // An action of a whole stage stands for one action per piece, in reverse for backwards; R for one per piece in a
  // region. The check of an action ends at its first faulty piece.
  void compute(const Action& action) {
    const auto [begin, end] = pieces_.of(action);
    bool sound = true;
    for (std::size_t i = begin; i < end; ++i) {
      const bool ascends = action.op == Op::forward || action.op == Op::recompute;
      const std::size_t piece = ascends ? i : begin + end - 1 - i;
      if (action.op == Op::recompute && !action.segment && !region_of(piece)) continue;
      if (!takes_its_turn(action, piece)) return;
      if (sound && action.part.first()) sound = legal(action, piece);
      if (!action.part.last()) continue;
      DoneActions& state = done(piece, *action.microbatch);
      state.forward = state.forward || action.op == Op::forward;
      state.recomputed = state.recomputed || action.op == Op::recompute;
      state.input_gradient = state.input_gradient || makes_input_gradient(action.op);
      state.weight_gradient = state.weight_gradient || makes_weight_gradient(action.op);
    }
  }

  // Whether the action is the whole computation, or the next part of the one under way.
  bool takes_its_turn(const Action& action, std::size_t piece) {
    DoneActions& state = done(piece, *action.microbatch);
    const bool under_way = state.parts > 0;
    const int exchanges = action.segment ? row_exchanges(program_.segments[*action.segment], action.op) : 0;
    const bool cut_right = action.part.count == 1 || action.part.count == exchanges + 1;
    const bool in_turn = action.part.index == state.parts && state.exchanges == state.parts;
    if (!cut_right || !in_turn || (under_way && state.open != action.op)) {
      found(Violation::broken_parts, "part {} of {} of {} of microbatch {} in {} comes after {} parts and {} exchanges",
            action.part.index + 1, action.part.count, name_of(action.op), *action.microbatch, name(piece), state.parts,
            state.exchanges);
      return false;
    }
    state.open = action.op;
    state.parts = action.part.last() ? 0 : static_cast<std::uint8_t>(state.parts + 1);
    if (action.part.last()) state.exchanges = 0;
    return true;
  }

  void exchange_rows(const Action& action) {
    const auto [piece, end] = pieces_.of(action);
    DoneActions& state = done(piece, *action.microbatch);
    const bool behind_part = state.parts == action.part.index + 1 && state.exchanges == action.part.index;
    if (behind_part && row_exchange_of(state.open) == action.op) {
      ++state.exchanges;
    } else {
      found(Violation::broken_parts, "{} of microbatch {} in {} does not follow part {} of its computation",
            name_of(action.op), *action.microbatch, name(piece), action.part.index + 1);
    }
  }

  bool legal(const Action& action, std::size_t piece) {
    const int microbatch = *action.microbatch;
    const DoneActions& state = done(piece, microbatch);
    const std::size_t before = findings_.size();
    const bool repeated = action.op == Op::forward           ? state.forward
                          : action.op == Op::recompute       ? state.recomputed
                          : action.op == Op::backward_weight ? state.weight_gradient
                          : action.op == Op::backward        ? state.input_gradient || state.weight_gradient
                                                             : state.input_gradient;
    if (repeated) {
      found(Violation::repeated_compute, "{} of microbatch {} in {} was done before", name_of(action.op), microbatch,
            name(piece));
    } else if (action.op == Op::forward) {
      require_data(piece, microbatch, true);
    } else if (action.op == Op::recompute) {
      require_use_of_recompute(piece, microbatch);
    } else if (action.op == Op::backward_weight) {
      if (!state.input_gradient) {
        found(Violation::weight_before_input, "W of microbatch {} in {} comes before its I", microbatch, name(piece));
      }
    } else if (!state.forward) {
      found(Violation::backward_before_forward, "the backward of microbatch {} in {} comes before its forward",
            microbatch, name(piece));
    } else if (region_of(piece) && !state.recomputed) {
      found(Violation::missing_recompute,
            "the backward of microbatch {} in {} comes before its R, and its forward kept nothing for it", microbatch,
            name(piece));
    } else {
      require_data(piece, microbatch, false);
    }
    return findings_.size() == before;
  }

  void require_use_of_recompute(std::size_t piece, int microbatch) {
    const DoneActions& state = done(piece, microbatch);
    const char* idle = !region_of(piece)      ? "has nothing to recompute: its forward keeps all that is read"
                       : !state.forward       ? "comes before its forward"
                       : state.input_gradient ? "comes after its input gradient"
                                              : nullptr;
    if (idle) {
      found(Violation::idle_recompute, "R of microbatch {} in {} {}", microbatch, name(piece), idle);
      return;
    }
    const bool first = piece == pieces_.begin(pieces_[piece].stage) || region_of(piece - 1) != region_of(piece);
    if (first || done(piece - 1, microbatch).recomputed) return;
    found(Violation::segment_order, "{} runs forward again before {} has, in microbatch {}", name(piece),
          name(piece - 1), microbatch);
  }

  // The piece before (in a backward: behind) has run, or its data has come.
  void require_data(std::size_t piece, int microbatch, bool forward) {
    const int stage = pieces_[piece].stage, other = forward ? stage - 1 : stage + 1;
    const std::size_t neighbour = forward ? piece - 1 : piece + 1;
    const auto has_run = [&] {
      const DoneActions& state = done(neighbour, microbatch);
      return forward ? state.forward : state.input_gradient;
    };
    if (forward ? piece > pieces_.begin(stage) : neighbour < pieces_.end(stage)) {
      if (has_run()) return;
      found(Violation::segment_order, "{} runs {} before {} has, in microbatch {}", name(piece),
            forward ? "forward" : "backward", name(neighbour), microbatch);
    } else if (other >= 0 && other < stage_count()) {
      const Received& state = received(stage, microbatch);
      if (context_.runs(row_, other) ? has_run() : forward ? state.activation : state.gradient) return;
      found(Violation::missing_receive, "stage {} has not got the {} of microbatch {} from stage {}", stage,
            forward ? "activation" : "gradient", microbatch, other);
    }
  }

  void exchange(const Action& action) {
    const int stage = *action.stage, microbatch = *action.microbatch;
    const int other = other_stage(action.op, stage);
    if (other < 0 || other >= stage_count()) {
      found(Violation::wrong_peer, "stage {} has no neighbour on that side", stage);
    } else if (context_.runs(row_, other)) {
      found(Violation::wrong_peer, "stages {} and {} run on one rank; nothing is sent", stage, other);
    } else if (!action.peer || !context_.stands_for(stage_rank(other), *action.peer)) {
      found(Violation::wrong_peer, "the other end is stage {} on rank {}, not {}", other, stage_rank(other),
            action.peer ? fmt::format("rank {}", *action.peer) : std::string("unnamed"));
    }
    if (is_receive(action.op)) {
      Received& state = received(stage, microbatch);
      bool& came = action.op == Op::receive_forward ? state.activation : state.gradient;
      if (std::exchange(came, true)) {
        found(Violation::repeated_receive, "what microbatch {} brings stage {} came before", microbatch, stage);
      }
    }
    if (action.op == Op::send_forward && !done(pieces_.end(stage) - 1, microbatch).forward) {
      found(Violation::send_before_compute, "stage {} has not run the forward of microbatch {}", stage, microbatch);
    }
    if (action.op == Op::send_backward && !done(pieces_.begin(stage), microbatch).input_gradient) {
      found(Violation::send_before_compute, "stage {} has not made the input gradient of microbatch {}", stage,
            microbatch);
    }
  }

  // One finding per stage: the first missing action and the number of further ones.
  void require_complete() {
    for (int stage = 0; stage < stage_count(); ++stage) {
      if (!context_.runs(row_, stage)) continue;
      std::size_t missing = 0;
      std::string first;
      for (int microbatch = 0; microbatch < program_.microbatches; ++microbatch) {
        for (std::size_t piece = pieces_.begin(stage); piece < pieces_.end(stage); ++piece) {
          const DoneActions& state = done(piece, microbatch);
          const char* lacks = !state.forward           ? "forward"
                              : program_.forward_only  ? nullptr
                              : !state.input_gradient  ? "input gradient"
                              : !state.weight_gradient ? "weight gradient"
                                                       : nullptr;
          if (lacks && missing++ == 0) first = fmt::format("{} of microbatch {} in {}", lacks, microbatch, name(piece));
        }
      }
      if (missing == 0) continue;
      found(Violation::missing_compute, "the list ends without {}{}", first,
            missing > 1 ? fmt::format(", and without {} more", missing - 1) : "");
    }
  }

  const PieceTable& pieces_;
  std::vector<DoneActions> done_;   // by piece, then microbatch
  std::vector<Received> received_;  // by stage, then microbatch
};

}  // namespace

void check_compute(const CheckContext& context, int row, std::vector<Finding>& findings) {
  ComputeWalk(context, row, findings).run();
}

}  // namespace weft
