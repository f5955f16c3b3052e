// Programs of forwards alone: complete and sound for any placement and policy, and nothing else let in.
#include <gtest/gtest.h>

#include <iterator>
#include <set>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/simulation/memory_curve.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/peak_at_any_times.h"
#include "tests/parallel/random_program.h"

namespace weft {
namespace {

int ranks_of_tables(const ProgramTables& tables) {
  int ranks = 0;
  for (const ProgramStage& stage : tables.stages) ranks = std::max(ranks, stage.rank + 1);
  return ranks;
}

ProgramTables forward_tables(ProgramTables tables) {
  tables.forward_only = true;
  return tables;
}

// Stages dealt to ranks in any way that leaves none without one.
ProgramTables scattered_tables(Dice& dice) {
  const int ranks = dice.between(1, 4), chunks = dice.between(1, 3);
  ProgramTables tables = random_tables(dice, find_schedule("looped_bfs"), {.ranks = ranks, .chunks = chunks});
  for (std::size_t stage = tables.stages.size(); stage > 1; --stage) {
    std::swap(tables.stages[stage - 1].rank,
              tables.stages[static_cast<std::size_t>(dice.below(static_cast<int>(stage)))].rank);
  }
  return forward_tables(tables);
}

TEST(ForwardProgram, RunsEverySegmentOnceForAnyPlacementAndPolicy) {
  Dice dice(41);
  for (int round = 0; round < 400; ++round) {
    const ProgramTables tables = scattered_tables(dice);
    const int microbatches = dice.between(1, 7);
    const Program program = compile_forward(tables, ranks_of_tables(tables), microbatches);
    const auto findings = find_violations(program);
    ASSERT_TRUE(findings.empty()) << round << ": " << findings.front().message << "\n"
                                  << to_csv(program, Detail::everything);
    std::set<std::pair<int, int>> forwards;
    for (const auto& list : program.ranks) {
      for (const Action& action : list) {
        if (action.op != Op::forward) continue;
        EXPECT_TRUE(forwards.insert({*action.segment, *action.microbatch}).second);
      }
    }
    EXPECT_EQ(forwards.size(), tables.segments.size() * static_cast<std::size_t>(microbatches));
    // It runs in time, too: the simulator waits for nothing that never comes.
    EXPECT_GT(simulate(program, even_costs(program)).seconds, 0.0);
  }
}

// The most microbatches of which stage 0 has begun and the last stage not ended, at any time.
int most_under_way(const Program& program, const Simulation& simulation) {
  std::vector<std::pair<double, int>> changes;  // ends before beginnings of the same time
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    for (std::size_t i = 0; i < program.ranks[rank].size(); ++i) {
      const int stage = *program.ranks[rank][i].stage;
      const SimulatedAction& times = simulation.ranks[rank][i];
      if (stage == 0) changes.emplace_back(times.start, 1);
      if (stage + 1 == static_cast<int>(program.stages.size())) changes.emplace_back(times.end, -1);
    }
  }
  std::sort(changes.begin(), changes.end());
  int now = 0, most = 0;
  for (const auto& [time, change] : changes) most = std::max(most, now += change);
  return most;
}

// Without backwards a pipeline of p stages is full after p - 1 forwards and never empty in between. Forwards of one
// second make m + p - 1 seconds. With c chunks a rank they make c m + p - 1 where m is a multiple of p. A microbatch
// takes c p seconds and one ends every c, so that p of them are under way, however many there are.
TEST(ForwardProgram, LeavesNoMoreBubbleThanFillingThePipeline) {
  for (Placement placement : {Placement::looped, Placement::v}) {
    for (int ranks : {1, 2, 3, 4}) {
      for (int chunks : {1, 2, 3}) {
        for (int groups : {1, 2, 3}) {
          const int microbatches = groups * ranks;
          const ProgramTables tables = forward_tables(schedule_only_tables(ranks, ranks * chunks, placement));
          std::vector<int> stage_ranks;
          for (const ProgramStage& stage : tables.stages) stage_ranks.push_back(stage.rank);
          const Program order{tables, microbatches, forward_order(stage_ranks, ranks, microbatches)};
          ProgramCosts costs = even_costs(order);
          for (ComputeCost& cost : costs.stages) cost.forward = 1.0;
          const Simulation simulation = simulate(order, costs);
          const double seconds = simulation.seconds;
          EXPECT_LE(most_under_way(order, simulation), placement == Placement::looped ? ranks : 2 * ranks)
              << ranks << " x " << chunks << ", " << microbatches;
          if (placement == Placement::looped) {
            EXPECT_EQ(seconds, chunks * microbatches + ranks - 1) << ranks << " x " << chunks << ", " << microbatches;
          } else {
            // On the way down a V rank 0 comes last: its first chunk is over before the other begins.
            EXPECT_LE(seconds, chunks * (microbatches + ranks) + ranks) << ranks << " x " << chunks;
          }
        }
      }
    }
  }
}

Program sound() {
  return compile_forward(
      forward_tables(stage_tables(2, 2, {.residency = Residency::reshard_after_use, .lookahead = 0})), 2, 2);
}

TEST(ForwardProgram, WhatDoesNotBelongToAForwardIsFoundWhereItStands) {
  ASSERT_TRUE(find_violations(sound()).empty());
  for (Op op : {Op::backward, Op::backward_input, Op::backward_weight, Op::send_backward, Op::receive_backward,
                Op::reduce_gradient, Op::scatter_gradient, Op::wait_reduction, Op::gradient_norm, Op::optimizer_step}) {
    for (std::size_t at : {std::size_t{0}, std::size_t{3}}) {
      Program program = sound();
      Action action{.op = op, .stage = 0};
      if (takes_unit(op)) action.unit = 0;
      if (is_compute(op)) action.segment = 0;
      if (is_compute(op) || is_send(op) || is_receive(op)) action.microbatch = 0;
      if (op == Op::gradient_norm || op == Op::optimizer_step) action.stage.reset();
      auto& list = program.ranks[0];
      list.insert(list.begin() + static_cast<std::ptrdiff_t>(at), action);
      const auto findings = find_violations(program);
      ASSERT_FALSE(findings.empty()) << name_of(op);
      const bool named = std::ranges::any_of(findings, [&](const Finding& finding) {
        return finding.violation == Violation::beyond_forward && finding.rank == 0 && finding.index == at;
      });
      EXPECT_TRUE(named) << name_of(op) << ": " << findings.front().message;
    }
  }
}

TEST(ForwardProgram, AForwardLeftOutIsMissed) {
  Program program = sound();
  auto& list = program.ranks[1];
  const auto last = std::find_if(list.rbegin(), list.rend(), [](const Action& a) { return a.op == Op::forward; });
  list.erase(std::next(last).base());
  const auto findings = find_violations(program);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings.front().violation, Violation::missing_compute);
}

TEST(ForwardProgram, ATrainingStepIsNoForwardAndAForwardNoTrainingStep) {
  Program training = compiled(stage_tables(2, 2), "1f1b", 2);
  ASSERT_TRUE(find_violations(training).empty());
  training.forward_only = true;
  EXPECT_EQ(find_violations(training).front().violation, Violation::beyond_forward);
  Program forward = sound();
  forward.forward_only = false;
  EXPECT_EQ(find_violations(forward).front().violation, Violation::missing_compute);
  EXPECT_THROW(compile_forward(stage_tables(2, 2), 2, 2), Error);
}

// Activations are there while their segment runs, beside the one unit that it reads.
TEST(ForwardProgram, NothingIsKeptOfASegmentThatHasRun) {
  ProgramTables tables =
      forward_tables(stage_tables(1, 3, {.residency = Residency::reshard_after_use, .lookahead = 0}));
  const std::int64_t kept[] = {10, 70, 40};
  for (std::size_t s = 0; s < 3; ++s) {
    tables.segments[s].activation_bytes = kept[s];
    tables.segments[s].pending_bytes = 1000;
    tables.units[s].unsharded_bytes = 5;
    tables.units[s].gradient_bytes = 1000;
  }
  const Program program = compile_forward(tables, 1, 4);
  const TransientPeak peak = transient_peak(program, 0);
  EXPECT_EQ(peak.bytes, 70 + 5);
  EXPECT_EQ(peak.buckets[Bucket::activations], 70);
  std::int64_t largest = 0;
  for (const MemorySample& sample : memory_curve(program, simulate(program, even_costs(program)), 0)) {
    largest = std::max(largest, sample.bytes.total());
    EXPECT_EQ(sample.bytes[Bucket::unsharded_gradients], 0);
  }
  EXPECT_EQ(largest, 70 + 5);
  EXPECT_GE(peak_at_any_times(program, 0), 70 + 5);
  EXPECT_LE(peak_at_any_times(program, 0), 70 + 2 * 5);
}

}  // namespace
}  // namespace weft
