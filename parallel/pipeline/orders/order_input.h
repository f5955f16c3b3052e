// What every order asks of its numbers before it lists anything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// Of an order with its messages, so that no list is begun that ends without memory: about 120 bytes an action.
inline constexpr std::int64_t most_actions = 32'000'000;

// Throws Error (request) unless there is at least one rank, stage per rank and microbatch, no more and no fewer stages
// per rank than the schedule's row of the table says, and no more actions than a program may have; groups of
// microbatches only where it takes them.
void require_counts(std::string_view schedule, const OrderInput& input);

// Throws Error (request) unless so many microbatches fit. Says `why` they do not, and the nearest counts that do: one
// below, if there is one, and one above.
void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits);

inline Action stage_action(Op op, int stage, int microbatch) {
  return {.op = op, .stage = stage, .microbatch = microbatch};
}

}  // namespace weft
