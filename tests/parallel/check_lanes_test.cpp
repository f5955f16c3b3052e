// Whether messages get through on the lanes of devices: what the checker says of it, against streams that are run.
#include "parallel/pipeline/check/check_lanes.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/parallel/program_grid.h"
#include "tests/parallel/program_interpreter.h"
#include "tests/parallel/stream_interpreter.h"

namespace weft {
namespace {

std::optional<Finding> lane_deadlock(const Program& program, const LaneQueues& queues = separate_queues()) {
  const PieceTable pieces(program);
  std::vector<int> rows(program.ranks.size());
  std::iota(rows.begin(), rows.end(), 0);
  const CheckContext context{program, pieces, rows};
  return find_lane_deadlock(context, collect_messages(context), queues);
}

TEST(CheckLanes, Explore) {
  for (const Schedule& schedule : schedules()) {
    int total = 0, bad[4] = {};
    for (const OrderInput& input : inputs_of(schedule, 6, 3, 12)) {
      const Program program = add_exchange(ordered(schedule, input));
      ++total;
      for (int i = 0; i < 4; ++i) {
        const bool still =
            !standstill_on_streams(program, 1, {.hosts_wait = i % 2 == 1, .hosts_connect = i >= 2}).empty();
        bad[i] += still;
        if (i == 1) {
          EXPECT_EQ(still, lane_deadlock(program).has_value()) << described(schedule, input);
        }
      }
    }
    fmt::print("{}: of {}: eager {} compute {} connect {} both {}\n", schedule.name, total, bad[0], bad[1], bad[2],
               bad[3]);
  }
}

}  // namespace
}  // namespace weft
