// A picture says what the simulation says: the same actions at the same times. Its stretches of waiting add up to the
// simulator's own sums.
#include "tools/picture/picture.h"

#include <gtest/gtest.h>

#include <set>

#include "parallel/runtime/error.h"
#include "tests/parallel/lane_channels.h"
#include "tests/parallel/random_program.h"
#include "tests/tools/picture_fixture.h"

namespace weft {
namespace {

struct Case {
  Program program;
  SimulatedStep step;
  LaneChannels channels;
};

// Costs are whole seconds, so sums of times are exact.
Case random_case(int seed) {
  Dice dice(static_cast<std::uint64_t>(9000 + seed));
  const std::array channels = {LaneChannels::own(), shared_collectives(), LaneChannels::serial()};
  Case drawn{random_program(dice), {}, channels[static_cast<std::size_t>(seed % 3)]};
  drawn.step = simulate_step(drawn.program, random_costs(dice, drawn.program), drawn.channels);
  return drawn;
}

// Everything of a box that is one action's, in a form that can be sorted.
using Drawn = std::tuple<Lane, double, double, std::string, std::int64_t, double>;

TEST(Picture, HasABoxForEveryActionThatTakesTime) {
  int boxes = 0, marks = 0;
  for (int seed = 0; seed < 120; ++seed) {
    const Case drawn = random_case(seed);
    const Picture picture = picture_of(drawn.program, drawn.step);
    EXPECT_EQ(picture.seconds, drawn.step.simulation.seconds);
    ASSERT_EQ(picture.ranks.size(), drawn.program.ranks.size());
    for (std::size_t rank = 0; rank < picture.ranks.size(); ++rank) {
      std::multiset<Drawn> expected, found;
      for (std::size_t i = 0; i < drawn.program.ranks[rank].size(); ++i) {
        const Action& action = drawn.program.ranks[rank][i];
        const SimulatedAction& time = drawn.step.simulation.ranks[rank][i];
        if (time.start == time.end && action.op != Op::reshard && action.op != Op::reshard_secondary) continue;
        expected.insert({lane_of(drawn.program, action), time.start, time.end, format_action(drawn.program, action),
                         action.bytes, time.waited});
        marks += static_cast<int>(time.start == time.end);
      }
      for (const PictureBox& box : picture.ranks[rank].boxes) {
        found.insert({box.lane, box.start, box.end, box.action, box.bytes, box.waited});
        EXPECT_EQ(box.actions, 1);
        EXPECT_EQ(box.kind == BoxKind::reshard, box.start == box.end);
      }
      EXPECT_EQ(found, expected) << "seed " << seed << ", rank " << rank;
      boxes += static_cast<int>(found.size());
    }
  }
  EXPECT_GT(boxes, 10'000);
  EXPECT_GT(marks, 1'000);
}

TEST(Picture, LanesAreInOrderAndDoNotOverlap) {
  for (int seed = 0; seed < 120; ++seed) {
    const Case drawn = random_case(seed);
    for (const Detail detail : {Detail::everything, Detail::stages_only, Detail::compute_only}) {
      const Picture picture = picture_of(drawn.program, drawn.step, {.detail = detail});
      std::set<Lane> used;
      for (const PictureRank& rank : picture.ranks) {
        const PictureBox* before = nullptr;  // that takes time: a mark may stand in a gather of another unit
        for (const PictureBox& box : rank.boxes) {
          used.insert(box.lane);
          if (before != nullptr && before->lane == box.lane && box.kind != BoxKind::reshard) {
            EXPECT_LE(before->end, box.start) << before->action << ", " << box.action << ", " << seed;
          }
          if (box.kind != BoxKind::reshard) before = &box;
        }
        const auto order = [](const PictureBox& box) { return std::pair(box.lane, box.start); };
        EXPECT_TRUE(
            std::is_sorted(rank.boxes.begin(), rank.boxes.end(),
                           [&](const PictureBox& one, const PictureBox& other) { return order(one) < order(other); }));
      }
      EXPECT_EQ(std::set<Lane>(picture.lanes.begin(), picture.lanes.end()), used);
      EXPECT_TRUE(std::is_sorted(picture.lanes.begin(), picture.lanes.end()));
      if (detail == Detail::compute_only) {
        EXPECT_LE(used, std::set<Lane>{Lane::compute});
      }
    }
  }
}

// What is not computation is waiting, and each kind of it is as long as the simulator says.
TEST(Picture, IdleStretchesAddUpToTheTimesOfTheRank) {
  std::array<int, all_values<IdleReason>.size()> seen = {};
  for (int seed = 0; seed < 240; ++seed) {
    const Case drawn = random_case(seed);
    const Picture picture = picture_of(drawn.program, drawn.step);
    for (const PictureRank& rank : picture.ranks) {
      std::array<double, all_values<IdleReason>.size()> seconds = {};
      std::vector<std::pair<double, double>> cover;
      for (const PictureIdle& idle : rank.idle) {
        EXPECT_LT(idle.start, idle.end);
        seconds[static_cast<std::size_t>(idle.reason)] += idle.end - idle.start;
        ++seen[static_cast<std::size_t>(idle.reason)];
        cover.emplace_back(idle.start, idle.end);
      }
      const RankTimes times = rank_times(drawn.program, drawn.step.simulation, rank.rank, drawn.channels);
      EXPECT_EQ(seconds[0], times.bubble) << "seed " << seed << ", rank " << rank.rank;
      EXPECT_EQ(seconds[1], times.gathers) << "seed " << seed << ", rank " << rank.rank;
      EXPECT_EQ(seconds[2], times.reductions) << "seed " << seed << ", rank " << rank.rank;
      EXPECT_EQ(seconds[3], times.rows) << "seed " << seed << ", rank " << rank.rank;
      for (const PictureBox& box : rank.boxes) {
        if (box.lane == Lane::compute) cover.emplace_back(box.start, box.end);
      }
      std::sort(cover.begin(), cover.end());
      double reached = 0.0;
      for (const auto& [start, end] : cover) {
        EXPECT_EQ(start, reached) << "seed " << seed << ", rank " << rank.rank;
        reached = end;
      }
      EXPECT_EQ(reached, picture.seconds);
    }
  }
  for (int count : seen) EXPECT_GT(count, 100);
}

// Boxes are counted before anything is simulated: all but sends, which on a channel with computation take no time.
// Where boxes are merged, only those of the computations are counted.
TEST(Picture, HasAtLeastTheBoxesThatAreCountedBefore) {
  for (const char* schedule : {"zbv", "dualpipev"}) {
    const Program program = hostile_program(schedule);
    const ProgramCosts costs = hostile_costs(program);
    const SimulatedStep step = hostile_step(program);
    for (const std::optional<int> rank : {std::optional<int>(), std::optional<int>(1)}) {
      for (Detail detail : {Detail::everything, Detail::stages_only, Detail::compute_only}) {
        const PictureOptions options{.detail = detail, .rank = rank};
        const std::size_t boxes = picture_of(program, step, options).box_count();
        const std::size_t least = least_boxes(program, costs, options);
        EXPECT_LE(least, boxes);
        if (detail == Detail::compute_only) {
          EXPECT_GT(2 * least, boxes);
        }
        if (detail != Detail::everything) continue;
        std::size_t sends = 0;
        for (int row = 0; row < 2; ++row) {
          if (rank && *rank != row) continue;
          for (Op op : {Op::send_forward, Op::send_backward})
            sends += static_cast<std::size_t>(count_of(program, row, op));
        }
        EXPECT_EQ(least + sends, boxes);
      }
    }
  }
}

// Merging changes the number of boxes and nothing else: each lane is busy when it was, with as many actions and bytes.
TEST(Picture, MergedBoxesCoverTheSameTime) {
  std::size_t before = 0, after = 0;
  for (int seed = 0; seed < 120; ++seed) {
    const Case drawn = random_case(seed);
    const Picture fine = picture_of(drawn.program, drawn.step);
    const Picture merged = picture_of(drawn.program, drawn.step, {.detail = Detail::stages_only});
    for (std::size_t rank = 0; rank < fine.ranks.size(); ++rank) {
      using Sums = std::map<std::tuple<Lane, BoxKind, int, int>, std::tuple<double, std::int64_t, int>>;
      const auto sums = [](const PictureRank& row) {
        Sums result;
        for (const PictureBox& box : row.boxes) {
          auto& [seconds, bytes, actions] =
              result[{box.lane, box.kind, box.stage.value_or(-1), box.microbatch.value_or(-1)}];
          seconds += box.end - box.start;
          bytes += box.bytes;
          actions += box.actions;
        }
        return result;
      };
      EXPECT_EQ(sums(merged.ranks[rank]), sums(fine.ranks[rank])) << "seed " << seed << ", rank " << rank;
      const auto edges = [](const PictureRank& row) {
        std::map<Lane, std::vector<std::pair<double, double>>> busy;
        for (const PictureBox& box : row.boxes) {
          if (box.kind == BoxKind::reshard) continue;
          auto& stretches = busy[box.lane];
          if (!stretches.empty() && stretches.back().second == box.start) {
            stretches.back().second = box.end;
          } else {
            stretches.emplace_back(box.start, box.end);
          }
        }
        return busy;
      };
      EXPECT_EQ(edges(merged.ranks[rank]), edges(fine.ranks[rank]));
      EXPECT_EQ(merged.ranks[rank].idle, fine.ranks[rank].idle);
      const PictureBox* last = nullptr;
      for (const PictureBox& box : merged.ranks[rank].boxes) {
        if (box.kind == BoxKind::reshard) continue;
        EXPECT_FALSE(last != nullptr && last->action == box.action && last->actions > 1 && box.actions > 1 &&
                     last->end == box.start)
            << box.action;
        last = &box;
      }
    }
    before += fine.box_count();
    after += merged.box_count();
  }
  EXPECT_LT(after, before);
}

// Two ranks, one microbatch, everything known by hand. The forward of rank 1 waits for rank 0, the backward of rank 0
// for rank 1, and the update is free.
TEST(Picture, SaysWhatABoxWaitedFor) {
  const Program program = compiled(stage_tables(2, 2), "1f1b", 1);
  ProgramCosts costs = even_costs(program, {2.0, 1.0, 1.0});
  for (UnitCost& cost : costs.units) cost.gather = 0.5;
  for (double& cost : costs.transfers) cost = 0.25;
  const Picture picture = picture_of(program, simulate_step(program, costs), {.title = "by hand"});
  const auto box_of = [&](std::size_t rank, std::string_view action) {
    for (const PictureBox& box : picture.ranks.at(rank).boxes) {
      if (box.action == action) return box;
    }
    ADD_FAILURE() << action;
    return PictureBox{};
  };
  const PictureBox first = box_of(0, "0F0(blocks.0)");
  EXPECT_EQ(first.kind, BoxKind::forward);
  EXPECT_EQ(std::tuple(first.start, first.end, first.waited), std::tuple(0.5, 1.5, 0.5));
  EXPECT_EQ(first.waited_for, "gather: 0UNSHARD(blocks.0)");
  EXPECT_EQ(first.subject, "blocks.0");
  EXPECT_EQ(first.label(), "0");
  EXPECT_EQ(box_of(0, "0F0(blocks.1)").waited_for, "");
  const PictureBox second = box_of(1, "1F0(blocks.2)");
  EXPECT_EQ(second.start, 2.75);  // 0.5 + 2 + 0.25
  EXPECT_EQ(second.waited_for, "message: 1RECV_F0");
  const PictureBox received = box_of(1, "1RECV_F0");
  EXPECT_EQ(received.start, 2.5);
  EXPECT_EQ(received.waited_for.substr(0, 16), "message: rank 0,");
  EXPECT_EQ(received.label(), "0");
  EXPECT_EQ(picture.ranks[0].idle.front(), (PictureIdle{0.0, 0.5, IdleReason::gather, "gather: 0UNSHARD(blocks.0)"}));
  EXPECT_EQ(picture.ranks[1].idle.front().reason, IdleReason::bubble);
  EXPECT_EQ(picture.ranks[1].idle.front().end, 2.75);
}

// A touching run of one stage is one box; a gap or another microbatch parts it.
TEST(Picture, MergesWhatTouches) {
  const Program program = compiled(stage_tables(1, 3), "1f1b", 2);
  ProgramCosts costs = even_costs(program, {3.0, 3.0, 3.0});
  const Picture whole = picture_of(program, simulate_step(program, costs), {.detail = Detail::compute_only});
  std::vector<std::string> actions;
  for (const PictureBox& box : whole.ranks[0].boxes) {
    actions.push_back(box.action);
    EXPECT_EQ(box.actions, 3);
    EXPECT_EQ(box.subject, "");
  }
  EXPECT_EQ(actions, (std::vector<std::string>{"0F0", "0B0", "0F1", "0B1"}));
  for (UnitCost& cost : costs.units) cost.gather = 1.5;  // more than a segment's forward, so each one waits
  const Picture parted = picture_of(program, simulate_step(program, costs), {.detail = Detail::compute_only});
  EXPECT_EQ(parted.ranks[0].boxes.front().action, "0F0(blocks.0)");
}

TEST(Picture, MarksTheCriticalPath) {
  for (int seed = 0; seed < 60; ++seed) {
    const Case drawn = random_case(seed);
    const Picture picture = picture_of(drawn.program, drawn.step);
    std::multiset<std::tuple<int, double, double, std::string>> expected, found;
    for (const ActionAt& at : drawn.step.critical_path) {
      const auto rank = static_cast<std::size_t>(at.rank);
      const SimulatedAction& time = drawn.step.simulation.ranks[rank][at.index];
      const Action& action = drawn.program.ranks[rank][at.index];
      if (time.start == time.end && !is_reshard(action.op)) continue;
      expected.insert({at.rank, time.start, time.end, format_action(drawn.program, action)});
    }
    for (const PictureRank& rank : picture.ranks) {
      for (const PictureBox& box : rank.boxes) {
        if (box.critical) found.insert({rank.rank, box.start, box.end, box.action});
      }
    }
    EXPECT_EQ(found, expected) << seed;
    // The path has no gaps, nor has what is seen of it where only one rank is shown.
    for (const Picture& shown : {picture, picture_of(drawn.program, drawn.step, {.rank = 0})}) {
      for (const PictureHop& hop : shown.hops) {
        const PictureBox& from = shown.ranks[hop.from_rank].boxes[hop.from_box];
        const PictureBox& to = shown.ranks[hop.to_rank].boxes[hop.to_box];
        EXPECT_TRUE(from.critical && to.critical);
        EXPECT_TRUE(hop.from_rank != hop.to_rank || from.lane != to.lane);
        // A part may begin while its rows are on their way (seconds_before_rows).
        if (from.kind == BoxKind::rows && to.lane == Lane::compute) {
          EXPECT_GE(from.end, to.start) << from.action << ", " << to.action << ", " << seed;
        } else {
          EXPECT_EQ(from.end, to.start) << from.action << ", " << to.action << ", " << seed;
        }
      }
    }
  }
}

// Of the stages of a rank the lower one is chunk 0; in a V rank 1 of 2 runs stages 1 and 2.
TEST(Picture, NumbersTheChunksOfARank) {
  const Picture picture = hostile_picture("zbv");
  for (const PictureRank& rank : picture.ranks) {
    for (const PictureBox& box : rank.boxes) {
      EXPECT_EQ(box.chunk, box.stage.value_or(0) < 2 ? 0 : 1) << box.action;
    }
  }
  EXPECT_EQ(picture.chunks_of_kind()[static_cast<std::size_t>(BoxKind::forward)], 2);
  EXPECT_EQ(picture.chunks_of_kind()[static_cast<std::size_t>(BoxKind::backward)], 0);
}

TEST(Picture, ShowsOneRankAndRefusesOneThatIsNotThere) {
  const Program program = hostile_program();
  const SimulatedStep step = hostile_step(program);
  const Picture one = picture_of(program, step, {.rank = 1});
  ASSERT_EQ(one.ranks.size(), 1u);
  EXPECT_EQ(one.ranks[0].rank, 1);
  EXPECT_EQ(one.ranks[0].boxes, picture_of(program, step).ranks[1].boxes);
  EXPECT_THROW(picture_of(program, step, {.rank = 2}), Error);
  SimulatedStep torn = step;
  torn.memory.pop_back();
  EXPECT_THROW(picture_of(program, torn), Error);
}

TEST(Picture, FiguresAreThoseOfTheRanks) {
  const Program program = hostile_program();
  const SimulatedStep step = hostile_step(program);
  const Picture picture = picture_of(program, step);
  EXPECT_DOUBLE_EQ(picture.bubble(), (step.times[0].bubble + step.times[1].bubble) / (2 * step.simulation.seconds));
  EXPECT_EQ(picture.waits().gathers, std::max(step.times[0].gathers, step.times[1].gathers));
  EXPECT_EQ(picture.waits().reductions, std::max(step.times[0].reductions, step.times[1].reductions));
  std::int64_t peak = 0;
  for (const auto& curve : step.memory) {
    for (const MemorySample& sample : curve) peak = std::max(peak, sample.bytes.total());
  }
  EXPECT_EQ(picture.highest_bytes(), peak);
  EXPECT_EQ(picture.peak_bytes(), std::ranges::max(step.peak_bytes));
  EXPECT_GT(peak, picture.peak_bytes());
}

}  // namespace
}  // namespace weft
