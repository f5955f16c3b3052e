#include "parallel/pipeline/orders/order_groups.h"

#include <algorithm>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

bool fits(int ranks, int group, int microbatches) {
  return microbatches >= group && (microbatches % group == 0 || microbatches % group >= ranks);
}

// The largest number of groups with at least as many microbatches as ranks.
int rounds_of(int ranks, int microbatches) {
  return std::max(1, microbatches / ranks);
}

int group_of_equal_rounds(std::string_view schedule, int ranks, int microbatches) {
  const int rounds = rounds_of(ranks, microbatches);
  int unequal = microbatches / rounds;
  while (unequal < microbatches && !fits(ranks, unequal, microbatches)) ++unequal;
  require_microbatches(
      fmt::format("schedule {} on {} ranks takes microbatches in equal groups, and {} make no {} of them; set "
                  "microbatch_group = {} for a shorter last one",
                  schedule, ranks, microbatches, rounds, unequal),
      microbatches, [&](int count) { return count > 0 && count % rounds_of(ranks, count) == 0; });
  return microbatches / rounds;
}

}  // namespace

int microbatch_group(std::string_view schedule, const OrderInput& input) {
  if (input.microbatch_group == 0) return group_of_equal_rounds(schedule, input.ranks, input.microbatches);
  const int group = input.microbatch_group;
  if (group < input.ranks) {
    fail_request("schedule {} on {} ranks takes groups of at least {} microbatches, not {}; set microbatch_group = {}",
                 schedule, input.ranks, input.ranks, group, input.ranks);
  }
  if (group > input.microbatches && input.microbatches >= input.ranks) {
    fail_request(
        "schedule {}: microbatch_group = {} is more than the {} microbatches of a step; set microbatch_group "
        "= {}, or microbatches = {}",
        schedule, group, input.microbatches, input.microbatches, group);
  }
  require_microbatches(
      fmt::format("schedule {} on {} ranks in groups of {} microbatches leaves a group of {}, shorter than the ranks",
                  schedule, input.ranks, group, input.microbatches % group),
      input.microbatches, [&](int microbatches) { return fits(input.ranks, group, microbatches); });
  return group;
}

std::vector<ChunkTurn> turns_by_group(const OrderInput& input, int group) {
  std::vector<ChunkTurn> turns;
  for (int first = 0; first < input.microbatches; first += group) {
    const int end = std::min(first + group, input.microbatches);
    for (int chunk = 0; chunk < input.chunks; ++chunk) {
      for (int microbatch = first; microbatch < end; ++microbatch) turns.push_back({chunk, microbatch});
    }
  }
  return turns;
}

}  // namespace weft
