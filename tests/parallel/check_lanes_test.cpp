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

TEST(CheckLanes, Explore2) {
  int crossed = 0, still = 0, fine = 0, host = 0, other = 0;
  std::string shortest; std::string why;
  for (unsigned seed = 0; seed < 200000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int ranks = 2 + below(5), stages = ranks + below(6), microbatches = 1 + below(5);
    Program program{bare_tables(ranks, stages), microbatches, {}};
    program.ranks.resize(static_cast<std::size_t>(ranks));
    for (int s = 0; s < stages; ++s) program.stages[static_cast<std::size_t>(s)].rank = s < ranks ? s : below(ranks);
    if (below(2)) std::shuffle(program.stages.begin(), program.stages.end(), random);
    std::vector<int> f(static_cast<std::size_t>(stages), 0), b(static_cast<std::size_t>(stages), 0);
    const int bias = below(10);
    for (;;) {
      std::vector<std::pair<bool, int>> can;
      for (int s = 0; s < stages; ++s) {
        const auto i = static_cast<std::size_t>(s);
        if (f[i] < microbatches && (s == 0 || f[i - 1] > f[i])) for (int k = 0; k < bias; ++k) can.emplace_back(true, s);
        if (b[i] < f[i] && (s == stages - 1 || b[i + 1] > b[i])) for (int k = 0; k < 10 - bias; ++k) can.emplace_back(false, s);
        if (bias == 0 && f[i] < microbatches && (s == 0 || f[i - 1] > f[i])) can.emplace_back(true, s);
      }
      if (can.empty()) break;
      const auto [forward, s] = can[static_cast<std::size_t>(below(static_cast<int>(can.size())))];
      int& m = (forward ? f : b)[static_cast<std::size_t>(s)];
      program.ranks[static_cast<std::size_t>(program.stages[static_cast<std::size_t>(s)].rank)].push_back(
          {.op = forward ? Op::forward : Op::backward, .stage = s, .microbatch = m++});
    }
    program = add_exchange(program);
    const auto findings = find_violations(program);
    if (findings.empty()) { ++fine; continue; }
    if (findings[0].violation == Violation::crossed_messages) { ++crossed; continue; }
    if (findings[0].violation != Violation::deadlock) { ++other; continue; }
    if (findings[0].message.starts_with("on lanes")) {
      ++still;
      const std::string text = to_csv(program, Detail::everything);
      if (shortest.empty() || text.size() < shortest.size()) { shortest = text; why = findings[0].message; }
    } else {
 ++host;const std::string text = to_csv(program, Detail::everything);
 if (shortest.empty() || text.size() < shortest.size()) { shortest = text; why = findings[0].message; }
}
  }
  fmt::print("crossed {} still {} fine {} host {} other {}\n{}\n{}\n", crossed, still, fine, host, other, shortest, why);
}

}  // namespace
}  // namespace weft
