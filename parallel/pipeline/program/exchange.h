// The meaning of exchange actions. `sSEND_F` sends the output of stage s to stage s + 1; `sSEND_B` sends the gradient
// of its input to stage s - 1. `sRECV_F` and `sRECV_B` are the other ends, named after the receiving stage.
#pragma once

#include <algorithm>

#include "parallel/pipeline/program/program.h"

namespace weft {

// The stage at the other end; may lie outside the program.
constexpr int other_stage(Op op, int stage) {
  return op == Op::send_forward || op == Op::receive_backward ? stage + 1 : stage - 1;
}

// A gradient has the size of its activation, which is the output of the earlier of the two stages.
inline Action exchange_action(const ProgramTables& tables, Op op, int stage, int microbatch) {
  const int other = other_stage(op, stage);
  return {.op = op,
          .stage = stage,
          .microbatch = microbatch,
          .peer = tables.stages[other].rank,
          .bytes = tables.stages[std::min(stage, other)].output_bytes};
}

}  // namespace weft
