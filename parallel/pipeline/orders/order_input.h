// The checks of counts that every order makes before it lists anything.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "parallel/pipeline/orders/orders.h"

namespace weft {

// Most actions of an order with its messages, about 120 bytes each: a longer list could exhaust the memory.
inline constexpr std::int64_t most_actions = 32'000'000;

// Throws Error (request) if there is no rank, chunk or microbatch, if the schedule's row of the table does not allow
// the chunks, if a program would exceed most_actions, or if a group is set but the schedule takes no groups.
void require_counts(std::string_view schedule, const OrderInput& input);

// Throws Error (request) unless `microbatches` fits. The message says `why`, and names the nearest counts that fit: one
// below, if there is one, and one above.
void require_microbatches(const std::string& why, int microbatches, const std::function<bool(int)>& fits);

inline Action stage_action(Op op, int stage, int microbatch) {
  return {.op = op, .stage = stage, .microbatch = microbatch};
}

}  // namespace weft
