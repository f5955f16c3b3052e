// What every order asks of its numbers before it lists anything.
#pragma once

#include <string_view>

#include "parallel/pipeline/orders.h"

namespace weft {

// Throws Error (request) unless there is at least one rank, stage per rank and microbatch.
void require_counts(std::string_view schedule, const OrderInput& input);
// Throws Error (request) when more than one stage per rank is asked of a schedule that knows only one.
void require_one_chunk(std::string_view schedule, const OrderInput& input);

inline Action stage_action(Op op, int stage, int microbatch) {
  return {.op = op, .stage = stage, .microbatch = microbatch};
}

}  // namespace weft
