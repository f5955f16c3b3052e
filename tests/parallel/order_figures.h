// The measures of the tests of orders: cells as text, time and activations. Their own walk over the lists, beside the
// timeline, which keeps the clock: F, I and W of a chunk take one unit, B two.
#pragma once

#include <gtest/gtest.h>

#include "parallel/pipeline/text/text.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/unit_timeline.h"

namespace weft {

inline std::string order_of(std::string_view schedule, const OrderInput& input) {
  return to_csv(ordered(find_schedule(schedule), input), Detail::everything);
}

// Units of time in which a rank has nothing to do, from the first action of all ranks to the last.
inline int bubble_of(const Program& order) {
  int end = 0;
  for (const auto& row : unit_timeline(order)) end = std::max(end, row.back().end);
  return end - 3 * static_cast<int>(order.stages.size() / order.ranks.size()) * order.microbatches;
}
inline int bubble_of(std::string_view schedule, const OrderInput& input) {
  return bubble_of(ordered(find_schedule(schedule), input));
}

// Most chunks whose activations a rank keeps at once: from F to B, or to W where the backward is split.
inline std::vector<int> chunks_in_flight(std::string_view schedule, const OrderInput& input) {
  std::vector<int> peaks;
  for (const auto& actions : find_schedule(schedule).order(input)) {
    int kept = 0, peak = 0;
    for (const Action& action : actions) {
      if (action.op == Op::forward) peak = std::max(peak, ++kept);
      if (makes_weight_gradient(action.op)) --kept;
    }
    EXPECT_EQ(kept, 0);
    peaks.push_back(peak);
  }
  return peaks;
}

// The counts that a schedule orders among so many ranks and chunks and up to `rounds` times the ranks of microbatches.
inline std::vector<OrderInput> rounds_of(std::string_view schedule, int ranks, int chunks, int rounds) {
  std::vector<OrderInput> inputs;
  for (const OrderInput& input : inputs_of(find_schedule(schedule), ranks, chunks, ranks * rounds)) {
    if (input.microbatches <= input.ranks * rounds) inputs.push_back(input);
  }
  return inputs;
}

// UNSHARDs of every rank, `units` units a chunk, without lookahead: tables and formulas know of none. A unit that
// would be gathered again where it is dropped stays.
inline std::vector<int> gathers_of(std::string_view schedule, const OrderInput& input, int units, Residency residency) {
  const Program program = compiled(find_schedule(schedule), input, units, {.residency = residency, .lookahead = 0});
  std::vector<int> gathers;
  for (int rank = 0; rank < input.ranks; ++rank) gathers.push_back(count_of(program, rank, Op::unshard));
  return gathers;
}

}  // namespace weft
