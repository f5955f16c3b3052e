// A list for tests of what a WAIT_REDUCE gives back.
#pragma once

#include <optional>

#include "tests/parallel/program_grid.h"

namespace weft {

// Three units, reduced as they come: 2, 1, 0. The gradients of the first two have 100 bytes, that of the last 150.
inline Program reduced_in_turn(std::optional<int> waited_for) {
  Program program{stage_tables(1, 3), 1, {{}}};
  program.reduce_inputs = 8;
  for (ProgramUnit& unit : program.units) {
    unit.unsharded_bytes = 0;
    unit.gradient_bytes = 100;
  }
  program.units[0].gradient_bytes = 150;
  for (int unit : {2, 1, 0}) {
    if (unit == 0 && waited_for) {
      program.ranks[0].push_back({.op = Op::wait_reduction, .stage = 0, .unit = waited_for});
    }
    program.ranks[0].push_back({.op = Op::backward_weight, .stage = 0, .microbatch = 0, .segment = unit});
    program.ranks[0].push_back({.op = Op::reduce_gradient, .stage = 0, .unit = unit});
  }
  return program;
}

}  // namespace weft
