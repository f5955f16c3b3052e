#include "parallel/pipeline/orders/order_groups.h"

#include <algorithm>

#include "parallel/pipeline/orders/order_input.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

bool fits(int ranks, int group, int microbatches) {
  return microbatches >= group && (microbatches % group == 0 || microbatches % group >= ranks);
}

}  // namespace

int microbatch_group(std::string_view schedule, const OrderInput& input) {
  const int group = input.microbatch_group == 0 ? input.ranks : input.microbatch_group;
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
