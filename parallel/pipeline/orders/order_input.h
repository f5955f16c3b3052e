// What every order asks of its numbers before it lists anything.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// Throws Error (request) unless there is at least one rank, stage per rank and microbatch, and no more and no fewer
// stages per rank than the schedule's row of the table says; groups of microbatches only where it takes them.
void require_counts(std::string_view schedule, const OrderInput& input);

// Throws Error (request) unless so many microbatches fit. Says `why` they do not, and the nearest counts that do: one
// below, if there is one, and one above.
void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits);

inline Action stage_action(Op op, int stage, int microbatch) {
  return {.op = op, .stage = stage, .microbatch = microbatch};
}

}  // namespace weft
