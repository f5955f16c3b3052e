// Gathers and reductions of a step in every order, with 4 ranks, 16 microbatches and 8 units a rank. The published
// table (counted by construction) stands beside the counts of the passes.
#include "tests/parallel/order_figures.h"

namespace weft {
namespace {

constexpr int units_of_rank = 8;

OrderInput input_of(int chunks) {
  return {.ranks = 4, .chunks = chunks, .microbatches = 16};
}

std::vector<int> gathers(std::string_view schedule, int chunks, Residency residency) {
  return gathers_of(schedule, input_of(chunks), units_of_rank / chunks, residency);
}

std::vector<int> reductions(std::string_view schedule, int chunks, int every) {
  const Program program = compiled(find_schedule(schedule), input_of(chunks), units_of_rank / chunks,
                                   {.residency = Residency::step, .reduce_every = every});
  std::vector<int> counts;
  for (int rank = 0; rank < 4; ++rank) counts.push_back(count_of(program, rank, Op::reduce_gradient));
  return counts;
}

// Units whose gradients would be reduced whenever a rank leaves a stage whose gradients it has added to, counted in
// the order itself.
std::vector<int> gradient_visits(std::string_view schedule, int chunks) {
  std::vector<int> counts;
  for (const auto& actions : find_schedule(schedule).order(input_of(chunks))) {
    int stage = -1, visits = 0;  // the stage whose visit the rank is on
    bool accumulates = false;    // and whether it has added to gradients there
    for (const Action& action : actions) {
      if (stage != *action.stage) accumulates = false;
      stage = *action.stage;
      if (makes_weight_gradient(action.op) && !accumulates) ++visits;
      accumulates = accumulates || makes_weight_gradient(action.op);
    }
    counts.push_back(visits * units_of_rank / chunks);
  }
  return counts;
}

struct CountRow {
  const char* schedule;
  int chunks;
  std::vector<int> per_microbatch, per_visit, gradient_visits;
};

TEST(CollectiveCounts, AreThoseOfThePublishedTable) {
  const std::vector<CountRow> rows = {
      {"1f1b", 1, {231, 229, 227, 225}, {8, 8, 8, 8}, {8, 8, 8, 8}},
      {"interleaved", 2, {231, 251, 235, 207}, {92, 188, 132, 36}, {56, 104, 80, 32}},
      {"interleaved", 4, {231, 251, 235, 207}, {150, 198, 170, 122}, {80, 104, 92, 68}},
      {"looped_bfs", 2, {255, 255, 255, 255}, {12, 12, 12, 12}, {8, 8, 8, 8}},
      // Published as 231 on every rank. Ours keeps a unit over the W between its I and its next F, since W reads no
      // parameters. That happens P - r - 1 times on the way in (Zbv.GathersFollowTheClosedFormulas).
      {"zbv", 2, {228, 229, 230, 231}, {108, 124, 140, 156}, {104, 112, 112, 112}},
  };
  for (const CountRow& row : rows) {
    EXPECT_EQ(gathers(row.schedule, row.chunks, Residency::reshard_after_use), row.per_microbatch) << row.schedule;
    EXPECT_EQ(gathers(row.schedule, row.chunks, Residency::while_on_stage), row.per_visit) << row.schedule;
    EXPECT_EQ(gathers(row.schedule, row.chunks, Residency::step), std::vector(4, units_of_rank)) << row.schedule;
    EXPECT_EQ(reductions(row.schedule, row.chunks, 1), std::vector(4, 16 * units_of_rank)) << row.schedule;
    EXPECT_EQ(reductions(row.schedule, row.chunks, 0), std::vector(4, units_of_rank)) << row.schedule;
    // No policy reduces by visit: it counts microbatches. The published column holds of the orders.
    EXPECT_EQ(gradient_visits(row.schedule, row.chunks), row.gradient_visits) << row.schedule << row.chunks;
  }
}

// GPipe and 1F1B by formula: 2 M K - 1 and 2 M K - 2 (M - w) + 1, with w = min(P - 1 - r, M) forwards ahead.
TEST(CollectiveCounts, OfOneChunkFollowTheFormulas) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (int microbatches = 1; microbatches <= 9; ++microbatches) {
      for (int units : {2, 3, 5}) {
        const OrderInput input{.ranks = ranks, .microbatches = microbatches};
        const auto gpipe = gathers_of("gpipe", input, units, Residency::reshard_after_use);
        const auto one = gathers_of("1f1b", input, units, Residency::reshard_after_use);
        for (int rank = 0; rank < ranks; ++rank) {
          const int ahead = std::min(ranks - 1 - rank, microbatches), uses = 2 * microbatches * units;
          EXPECT_EQ(gpipe[static_cast<std::size_t>(rank)], uses - 1);
          EXPECT_EQ(one[static_cast<std::size_t>(rank)],
                    ahead == microbatches ? uses - 1 : uses - 2 * (microbatches - ahead) + 1)
              << ranks << " " << microbatches << " " << units << " " << rank;
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
