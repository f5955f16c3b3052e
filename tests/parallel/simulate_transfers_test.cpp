// Messages that take time, against the least that an order allows. Every computation begins when the one before it on
// its rank has ended and its data has come. Nothing else holds it up. No lanes and no lists of messages in there.
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "parallel/pipeline/program/overlap.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "tests/parallel/program_grid.h"

namespace weft {
namespace {

// Binary fractions: their sums are exact.
constexpr ComputeCost stage_cost = {1.0, 1.25, 0.75};

double seconds_of(const Action& action) {
  if (action.op == Op::forward) return stage_cost.forward;
  if (action.op == Op::backward_input) return stage_cost.backward_input;
  if (action.op == Op::backward_weight) return stage_cost.backward_weight;
  return stage_cost.backward_input + stage_cost.backward_weight;
}

// Of an order of whole stages, with `transfer` seconds for a message to another rank. The two of an overlapped pair
// begin when both have their data, and hand on when both are over.
double least_seconds(const Program& order, double transfer) {
  using Data = std::tuple<bool, int, int>;  // activation, stage that made it, microbatch
  std::map<Data, double> made;
  std::vector<std::size_t> next(order.ranks.size(), 0);
  std::vector<double> free(order.ranks.size(), 0.0);
  const int stages = static_cast<int>(order.stages.size());
  const auto rank_of_stage = [&](int stage) { return order.stages[static_cast<std::size_t>(stage)].rank; };
  // When its data is there, or nothing while that is unknown.
  const auto ready = [&](const Action& action) -> std::optional<double> {
    const bool forward = action.op == Op::forward;
    if (action.op == Op::backward_weight) return 0.0;
    const bool turns = !forward && *action.stage == stages - 1;
    const int from = turns ? *action.stage : *action.stage + (forward ? -1 : 1);
    if (from < 0) return 0.0;
    const auto found = made.find({forward || turns, from, *action.microbatch});
    if (found == made.end()) return std::nullopt;
    return found->second + (rank_of_stage(from) == rank_of_stage(*action.stage) ? 0.0 : transfer);
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < order.ranks.size(); ++rank) {
      const auto& actions = order.ranks[rank];
      while (next[rank] < actions.size()) {
        const std::size_t first = next[rank], last = first + (pair_begins_at(actions, first) ? 1 : 0);
        // A half of a pair begins when its own data is there; both hand on when the pair is over.
        double at = free[rank];
        bool known = true;
        for (std::size_t i = first; i <= last; ++i) {
          const auto data = ready(actions[i]);
          known = known && data;
          at = std::max(at, data.value_or(0.0)) + seconds_of(actions[i]);
        }
        if (!known) break;
        for (std::size_t i = first; i <= last; ++i) {
          if (!hands_on(actions[i].op)) continue;
          made[{actions[i].op == Op::forward, *actions[i].stage, *actions[i].microbatch}] = at;
        }
        free[rank] = at;
        next[rank] = last + 1;
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < next.size(); ++rank) EXPECT_EQ(next[rank], order.ranks[rank].size());
  return *std::max_element(free.begin(), free.end());
}

double simulated_seconds(const Program& order, double transfer, const LaneChannels& channels = LaneChannels::own()) {
  const Program program = add_exchange(order);
  ProgramCosts costs = even_costs(program, stage_cost);
  for (double& seconds : costs.transfers) seconds = transfer;
  return simulate(program, costs, channels).seconds;
}

// Sends and receives of a direction on one channel, as if a message held one lane of its rank.
LaneChannels joined_channels() {
  LaneChannels channels = LaneChannels::own();
  for (const auto& [send, receive] : message_lanes) {
    channels.channel[static_cast<std::size_t>(receive)] = channels.channel[static_cast<std::size_t>(send)];
  }
  return channels;
}

TEST(SimulateTransfers, TakeWhatTheOrderAllows) {
  int orders = 0;
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 8, 3, 16)) {
      const Program order = ordered(schedule, input);
      for (double transfer : {0.0, 0.25, 1.0}) {
        ASSERT_EQ(simulated_seconds(order, transfer), least_seconds(order, transfer))
            << described(schedule, input) << ", transfers of " << transfer;
      }
      ++orders;
    }
  }
  EXPECT_GT(orders, 1000);
}

// GPipe by hand: 8 + 3 turns of 3 seconds, and a message for each of 3 steps up and 3 down. On one lane with what it
// sends a rank in the middle takes the next microbatch only when it has computed the last.
TEST(SimulateTransfers, AReceiveOnTheLaneOfASendWouldWaitForIt) {
  const Program gpipe = ordered(find_schedule("gpipe"), {.ranks = 4, .microbatches = 8});
  EXPECT_EQ(simulated_seconds(gpipe, 0.25), 11 * 3.0 + 6 * 0.25);
  EXPECT_EQ(simulated_seconds(gpipe, 0.25, joined_channels()), 41.5);
  const Program plain = ordered(find_schedule("1f1b"), {.ranks = 4, .microbatches = 8});
  EXPECT_LE(simulated_seconds(plain, 0.25), simulated_seconds(plain, 0.25, joined_channels()));
}

}  // namespace
}  // namespace weft
