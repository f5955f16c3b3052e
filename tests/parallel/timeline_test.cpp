#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/unit_timeline.h"

namespace weft {
namespace {

Program bare(std::string_view schedule, int ranks, int microbatches) {
  Program program;
  static_cast<ProgramTables&>(program) = schedule_only_tables(ranks, ranks);
  program.microbatches = microbatches;
  program.ranks = find_schedule(schedule).order({ranks, 1, microbatches});
  return program;
}

// With f = 1 and b = 2 both orders end after (m + p - 1) * 3 (the bubble is p - 1 of m + p - 1).
TEST(Timeline, LastsAsLongAsTheClosedFormula) {
  for (const char* schedule : {"gpipe", "1f1b"}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int microbatches = 1; microbatches <= 12; ++microbatches) {
        int end = 0;
        for (const auto& row : unit_timeline(bare(schedule, ranks, microbatches))) end = std::max(end, row.back().end);
        EXPECT_EQ(end, 3 * (microbatches + ranks - 1)) << schedule << " " << ranks << " " << microbatches;
      }
    }
  }
}

TEST(Timeline, DrawsTheOrder) {
  EXPECT_EQ(format_timeline(bare("1f1b", 2, 2)),
            "pp 0  | 0  1       [ 0  ]   [ 1  ]|\n"
            "pp 1  |    0 [ 0  ] 1 [ 1  ]|\n");
}

// A split backward: one unit in brackets, one in angles.
TEST(Timeline, DrawsInputAndWeightGradients) {
  EXPECT_EQ(format_timeline(bare("zb_h1", 2, 2)),
            "pp 0  | 0  1    [0]<0>[1]<1>|\n"
            "pp 1  |    0 [0] 1 [1]<0><1>|\n");
}

TEST(Timeline, NamesARankThatWaitsForEver) {
  Program program = bare("gpipe", 2, 1);
  std::swap(program.ranks[0][0], program.ranks[0][1]);
  EXPECT_THROW(unit_timeline(program), Error);
  EXPECT_THROW(format_timeline(program), Error);
}

}  // namespace
}  // namespace weft
