#include "parallel/pipeline/order_groups.h"

#include <algorithm>

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
    fail_request("schedule {} on {} ranks takes groups of at least {} microbatches, not {}", schedule, input.ranks,
                 input.ranks, group);
  }
  if (fits(input.ranks, group, input.microbatches)) return group;
  int below = input.microbatches, above = input.microbatches;
  while (below > 0 && !fits(input.ranks, group, below)) --below;
  while (!fits(input.ranks, group, above)) ++above;
  fail_request(
      "schedule {} on {} ranks in groups of {} microbatches leaves a group of {}, shorter than the ranks; set "
      "microbatches = {}{}",
      schedule, input.ranks, group, input.microbatches % group,
      below > 0 ? fmt::format("{} or ", below) : std::string(), above);
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
