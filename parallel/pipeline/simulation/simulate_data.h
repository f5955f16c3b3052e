// When the results of each stage and microbatch exist in a simulation (simulate.cpp), and when they have arrived.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "parallel/pipeline/program/pieces.h"
#include "parallel/pipeline/simulation/simulate_state.h"

namespace weft::walking {

class DataInstants {
 public:
  // `exchanged`: the program has messages; otherwise data is available as soon as it is made. Program and pieces
  // outlive the instants.
  DataInstants(const Program& program, const PieceTable& pieces, bool exchanged)
      : program_(program),
        pieces_(pieces),
        exchanged_(exchanged),
        activations_(program.stages.size() * program.microbatches),
        gradients_(activations_.size()),
        received_activations_(activations_.size()),
        received_gradients_(activations_.size()) {}

  // A computation's result for the next stage or the stage before.
  void made(const Action& action, const Instant& end) {
    (action.op == Op::forward ? activations_ : gradients_)[token(*action.stage, action)] = end;
  }
  void received(const Action& action, const Instant& end) {
    auto& received = action.op == Op::receive_forward ? received_activations_ : received_gradients_;
    received[token(*action.stage, action)] = end;
  }

  // Of a computation. False as long as its data from another stage is missing.
  bool wait_for(const Action& action, Start& start) const {
    const auto [first, end] = pieces_.of(action);
    const bool enters = action.op == Op::forward && first == pieces_.begin(*action.stage);
    const bool returns = makes_input_gradient(action.op) && end == pieces_.end(*action.stage);
    if (!enters && !returns) return true;
    const std::optional<Instant>* data = data_of(action, *action.stage);
    if (data == nullptr) return true;
    if (*data) start.after(**data, Wait::message);
    return data->has_value();
  }

 private:
  std::size_t token(std::size_t stage, const Action& action) const {
    return stage * program_.microbatches + *action.microbatch;
  }

  // When the data of a microbatch for `stage` was there; null for the first stage, which needs none.
  const std::optional<Instant>* data_of(const Action& action, std::size_t stage) const {
    const bool forward = action.op == Op::forward;
    if (forward && stage == 0) return nullptr;
    // The backward of the last stage reads the stage's own forward.
    if (!forward && stage + 1 == program_.stages.size()) return &activations_[token(stage, action)];
    const std::size_t from = forward ? stage - 1 : stage + 1;
    if (exchanged_ && program_.stages[from].rank != program_.stages[stage].rank) {
      return &(forward ? received_activations_ : received_gradients_)[token(stage, action)];
    }
    return &(forward ? activations_ : gradients_)[token(from, action)];
  }

  const Program& program_;
  const PieceTable& pieces_;
  bool exchanged_;
  // By stage, then microbatch: when its results were made, and when its data was received.
  std::vector<std::optional<Instant>> activations_, gradients_, received_activations_, received_gradients_;
};

}  // namespace weft::walking
