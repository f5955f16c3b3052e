// A unit with a copy on another stage: where TIE_GRAD stands, how it reads and prints, and when it runs. The checker
// says where it is missing or stands wrong.
#include <gtest/gtest.h>

#include <array>

#include "parallel/pipeline/check/check.h"
#include "parallel/pipeline/execute/execute.h"
#include "parallel/pipeline/simulation/cost_model.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/traffic.h"

namespace weft {
namespace {

constexpr std::int64_t tie_bytes = 64;

// The first and the last unit of all stages are copies.
ProgramTables tied_tables(ProgramTables tables) {
  ProgramUnit &first = tables.units.front(), &last = tables.units.back();
  first.copies = last.copies = {0, static_cast<int>(tables.units.size()) - 1};
  if (tied_ranks(tables, first).size() < 2) return tables;
  for (ProgramUnit* unit : {&first, &last}) {
    unit->tie_bytes = tie_bytes;
    unit->collectives.push_back({Op::tie_gradient, CollectiveOp::all_reduce, Group::tied, 1, tie_bytes});
  }
  return tables;
}

Program tied_program(int ranks = 3) {
  return compiled(tied_tables(stage_tables(ranks, 2)), "1f1b", 2);
}
// Both copies on rank 0.
Program tied_on_one_rank() {
  const Schedule& schedule = find_schedule("zbv");
  const ProgramTables tables = tied_tables(stage_tables(2, 1, {}, 2, schedule.placement));
  return compile(tables, schedule, {.ranks = 2, .chunks = 2, .microbatches = 2});
}

// The same with a reduction behind the tie.
Program tied_unreduced(ProgramTables tables, const std::string& schedule, int ranks, int chunks) {
  for (ProgramUnit* unit : {&tables.units.front(), &tables.units.back()}) unit->tied_unreduced = true;
  return compile(tables, find_schedule(schedule), {.ranks = ranks, .chunks = chunks, .microbatches = 2});
}

std::vector<Action>& list(Program& program, int rank) {
  return program.ranks[static_cast<std::size_t>(rank)];
}

std::size_t place(const Program& program, int rank, Op op, bool last = true) {
  const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
  std::size_t found = actions.size();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].op == op && (last || found == actions.size())) found = i;
  }
  EXPECT_LT(found, actions.size()) << name_of(op);
  return found;
}

void move_tie(Program& program, int rank, std::size_t to) {
  auto& actions = list(program, rank);
  const std::size_t from = place(program, rank, Op::tie_gradient);
  const Action tie = actions[from];
  actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
  actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), tie);
}

std::vector<Violation> violations(const Program& program) {
  std::vector<Violation> found;
  for (const Finding& finding : find_violations(program)) found.push_back(finding.violation);
  return found;
}
using Violations = std::vector<Violation>;

TEST(Tie, StandsBehindAllElseBeforeTheNorm) {
  const Program program = tied_program();
  EXPECT_TRUE(find_violations(program).empty());
  EXPECT_TRUE(cells(program, 0).ends_with(" 0TIE_GRAD(blocks.0) GRAD_NORM STEP")) << cells(program, 0);
  EXPECT_TRUE(cells(program, 2).ends_with(" 2TIE_GRAD(blocks.5) GRAD_NORM STEP")) << cells(program, 2);
  EXPECT_EQ(count_of(program, 1, Op::tie_gradient), 0);
  EXPECT_EQ(program.ranks[0][place(program, 0, Op::tie_gradient)].bytes, tie_bytes);
}

TEST(Tie, OfCopiesOnOneRankIsOneAction) {
  const Program program = tied_on_one_rank();
  EXPECT_TRUE(find_violations(program).empty());
  EXPECT_EQ(count_of(program, 0, Op::tie_gradient), 1);
  EXPECT_EQ(count_of(program, 1, Op::tie_gradient), 0);
}

TEST(Tie, OfEveryScheduleIsSound) {
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : inputs_of(schedule, 4, 2, 8)) {
      const ProgramTables tables =
          tied_tables(stage_tables(input.ranks, 2, {.reduce_every = 1}, input.chunks, schedule.placement));
      EXPECT_TRUE(find_violations(compile(tables, schedule, input)).empty()) << described(schedule, input);
    }
  }
}

TEST(Tie, MayNotBeMissing) {
  for (int rank : {0, 2}) {
    Program program = tied_program();
    list(program, rank)
        .erase(list(program, rank).begin() + static_cast<std::ptrdiff_t>(place(program, rank, Op::tie_gradient)));
    EXPECT_EQ(violations(program), Violations{Violation::missing_tie});
  }
  // One action would have served both copies.
  Program program = tied_on_one_rank();
  list(program, 0).erase(list(program, 0).begin() + static_cast<std::ptrdiff_t>(place(program, 0, Op::tie_gradient)));
  EXPECT_EQ(violations(program), (Violations{Violation::missing_tie, Violation::missing_tie}));
}

TEST(Tie, MayNotBeDoubled) {
  for (Program program : {tied_program(), tied_on_one_rank()}) {
    const std::size_t at = place(program, 0, Op::tie_gradient);
    list(program, 0).insert(list(program, 0).begin() + static_cast<std::ptrdiff_t>(at), list(program, 0)[at]);
    EXPECT_EQ(violations(program),
              Violations(count_of(program, 1, Op::tie_gradient) + (program.ranks.size() == 2 ? 2 : 1),
                         Violation::repeated_tie));
  }
  // The other copy of the same rank is tied by the first one's action.
  Program program = tied_on_one_rank();
  Action second = list(program, 0)[place(program, 0, Op::tie_gradient)];
  second.unit = program.units[static_cast<std::size_t>(*second.unit)].copies.back();
  second.stage = program.units[static_cast<std::size_t>(*second.unit)].stage;
  list(program, 0)
      .insert(list(program, 0).begin() + static_cast<std::ptrdiff_t>(place(program, 0, Op::gradient_norm)), second);
  EXPECT_EQ(violations(program), (Violations{Violation::repeated_tie, Violation::repeated_tie}));
}

TEST(Tie, IsOfAUnitWithACopy) {
  Program program = tied_program();
  Action other = list(program, 0)[place(program, 0, Op::tie_gradient)];
  other.unit = 1;
  list(program, 0)
      .insert(list(program, 0).begin() + static_cast<std::ptrdiff_t>(place(program, 0, Op::gradient_norm)), other);
  EXPECT_EQ(violations(program), Violations{Violation::repeated_tie});
}

TEST(Tie, ComesBehindEveryReductionOfItsUnit) {
  for (Program program : {tied_program(), tied_on_one_rank()}) {
    std::size_t reduction = 0;
    for (std::size_t i = 0; i < list(program, 0).size(); ++i) {
      const Action& action = list(program, 0)[i];
      if (action.op == Op::reduce_gradient && action.unit == 0) reduction = i;
    }
    move_tie(program, 0, reduction);
    const Violations found = violations(program);
    ASSERT_FALSE(found.empty());
    for (Violation violation : found) EXPECT_EQ(violation, Violation::tied_too_early) << name_of(violation);
  }
}

// Rank 2 would stand still in its tie, while rank 0 waits for the gradient that it has yet to send.
TEST(Tie, ComesBehindWhatItsOtherRankMayWaitFor) {
  Program program = tied_program();
  std::size_t reduction = 0;
  for (std::size_t i = 0; i < list(program, 2).size(); ++i) {
    const Action& action = list(program, 2)[i];
    if (action.op == Op::reduce_gradient && action.unit == 5) reduction = i;
  }
  move_tie(program, 2, reduction + 1);
  const auto found = find_violations(program);
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.front().violation, Violation::tied_too_early);
  EXPECT_NE(found.front().message.find("whose other ranks may wait for it"), std::string::npos);
}

TEST(Tie, ComesBeforeTheNorm) {
  Program program = tied_program();
  move_tie(program, 2, place(program, 2, Op::gradient_norm));
  const auto found = violations(program);
  EXPECT_EQ(found, (Violations{Violation::missing_tie, Violation::step_too_early, Violation::repeated_tie}));
}

TEST(Tie, HasOneOrderAmongReplicas) {
  const Schedule& schedule = find_schedule("looped_bfs");
  Program program =
      compile(tied_tables(stage_tables(1, 2, {}, 2)), schedule, {.ranks = 1, .chunks = 2, .microbatches = 2});
  program.ranks.push_back(program.ranks[0]);
  const CheckOptions options{.replica_rows = {{0, 1}}};
  EXPECT_TRUE(find_violations(program, options).empty());
  move_tie(program, 1, place(program, 1, Op::reduce_gradient));
  const auto found = find_violations(program, options);
  EXPECT_TRUE(std::ranges::any_of(found, [](const Finding& f) { return f.violation == Violation::collective_order; }));
}

TEST(Tie, IsTracedOnTheReduceLane) {
  const Program program = tied_program();
  const std::size_t at = place(program, 0, Op::tie_gradient);
  EXPECT_EQ(range_names(program, program.ranks[0])[at], "tie_grad blocks.0");
  EXPECT_EQ(lane_of(program, program.ranks[0][at]), Lane::reduce);
}

TEST(Tie, ReadsAsItPrints) {
  for (const Program& program : {tied_program(), tied_on_one_rank()}) {
    for (Detail detail : {Detail::everything, Detail::stages_only}) {
      const std::string text = to_csv(program, detail);
      EXPECT_NE(text.find(detail == Detail::everything ? "0TIE_GRAD(blocks.0)" : "0TIE_GRAD,"), std::string::npos)
          << text;
      const Program read = from_csv(program, text);
      EXPECT_EQ(to_csv(read, detail), text);
      if (detail == Detail::everything) {
        EXPECT_EQ(read.ranks, program.ranks);
      } else {
        EXPECT_EQ(read.ranks[0][place(read, 0, Op::tie_gradient)].bytes, program.units[0].tie_bytes);
        EXPECT_TRUE(find_violations(read).empty());
      }
    }
  }
  EXPECT_THROW(parse_action(tied_program(), "0TIE_GRAD1"), Error);
  EXPECT_THROW(parse_action(tied_program(), "TIE_GRAD"), Error);
}

// Rank 0 has reduced at 9, rank 1 at 27: both ties last from 27 to 30, and the norms begin behind them.
TEST(Tie, WaitsForTheOtherRank) {
  Program program{tied_tables(stage_tables(2, 1)), 1, {}};
  for (int rank = 0; rank < 2; ++rank) {
    program.ranks.push_back({{.op = Op::backward_weight, .stage = rank, .microbatch = 0, .segment = rank},
                             {.op = Op::reduce_gradient, .stage = rank, .unit = rank},
                             {.op = Op::tie_gradient, .stage = rank, .unit = rank},
                             {.op = Op::gradient_norm}});
  }
  ProgramCosts costs = even_costs(program);
  costs.segments = {{0.0, 0.0, 4.0}, {0.0, 0.0, 7.0}};
  costs.units[0] = {.reduce = 5.0, .tie = 3.0};
  costs.units[1] = {.reduce = 20.0, .tie = 3.0};
  const Simulation simulation = simulate(program, costs);
  for (const auto& actions : simulation.ranks) {
    EXPECT_EQ(actions[2].start, 27.0);
    EXPECT_EQ(actions[2].end, 30.0);
    EXPECT_EQ(actions[3].start, 30.0);
  }
  EXPECT_EQ(simulation.ranks[0][2].wait, Wait::peers);
  EXPECT_EQ(simulation.ranks[0][2].waited, 18.0);
  EXPECT_EQ(simulation.ranks[0][2].after, (ActionAt{1, 1}));
  EXPECT_EQ(simulation.ranks[1][2].wait, Wait::nothing);
  EXPECT_EQ(simulation.seconds, 30.0);
  // A rank whose partner never comes.
  program.ranks[1].erase(program.ranks[1].begin() + 2);
  EXPECT_THROW(simulate(program, costs), Error);
}

TEST(Tie, OnOneRankWaitsForNobody) {
  const Program program = tied_on_one_rank();
  const Simulation simulation = simulate(program, even_costs(program));
  const std::size_t tie = place(program, 0, Op::tie_gradient);
  EXPECT_NE(simulation.ranks[0][tie].wait, Wait::peers);
  EXPECT_EQ(simulation.ranks[0][tie].start, simulation.ranks[0][tie].end);
}

// 1 second of latency and 64 bytes at 32 a second: an all-reduce of two ranks is two steps, each with half the payload.
TEST(Tie, CostsAnAllReduceOverThePipelinesLink) {
  const ProgramTables tables = tied_tables(stage_tables(2, 1));
  const UnitCost cost = unit_cost(tables, tables.units[0], {{Group::pp, {1.0, 32.0}}}, {{Group::pp, 2}});
  EXPECT_EQ(cost.tie, 2.0 * (1.0 + 64.0 / 2.0 / 32.0));
  EXPECT_EQ(cost.reduce, 0.0);
}

TEST(Tie, IsCountedOnTheRanksThatHoldACopy) {
  const Program program = tied_program();
  const Mesh mesh(Degrees{.pipeline = 3, .data_shard = 2});
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Traffic traffic = traffic_of(program, mesh, rank);
    const auto found = traffic.exact.find({"tied", CollectiveOp::all_reduce});
    const bool holds = mesh.coordinates(rank).pp != 1;
    ASSERT_EQ(found != traffic.exact.end(), holds) << rank;
    if (holds) {
      EXPECT_EQ(found->second, (CommunicationCount{1, tie_bytes}));
    }
  }
}

TEST(Tie, JoinsRanksThatDifferInTheirStageAlone) {
  const Mesh mesh(Degrees{.pipeline = 3, .data_shard = 2, .tensor = 2});
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const Coordinates at = mesh.coordinates(rank);
    const std::vector<int> tied = mesh.tied_of(rank, std::array{2, 0});
    if (at.pp == 1) {
      EXPECT_EQ(tied, std::vector<int>{rank});
      continue;
    }
    EXPECT_EQ(tied,
              (std::vector{mesh.rank_at(2, 0, at.dp_shard, 0, at.tp), mesh.rank_at(0, 0, at.dp_shard, 0, at.tp)}));
  }
}

// What is reduced in 16 bits is reduced behind the sum of both copies, once, on each rank.
TEST(TiedUnreduced, IsReducedBehindItsTie) {
  const Program apart = tied_unreduced(tied_tables(stage_tables(3, 2)), "1f1b", 3, 1);
  const Program together =
      tied_unreduced(tied_tables(stage_tables(2, 1, {}, 2, find_schedule("zbv").placement)), "zbv", 2, 2);
  EXPECT_EQ(violations(apart), Violations{});
  EXPECT_EQ(violations(together), Violations{});
  for (const auto& [program, rank, copies] : {std::tuple(&apart, 0, 1), {&apart, 2, 1}, {&together, 0, 2}}) {
    const auto& actions = program->ranks[static_cast<std::size_t>(rank)];
    const std::size_t tie = place(*program, rank, Op::tie_gradient);
    int behind = 0;
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].op != Op::reduce_gradient) continue;
      const bool tied = program->units[static_cast<std::size_t>(*actions[i].unit)].copies.size() > 1;
      EXPECT_EQ(i > tie, tied);
      behind += tied;
    }
    EXPECT_EQ(behind, copies);
  }
}

TEST(TiedUnreduced, IsRefusedInAnotherOrder) {
  Program program = tied_unreduced(tied_tables(stage_tables(3, 2)), "1f1b", 3, 1);
  auto& actions = list(program, 0);
  const std::size_t tie = place(program, 0, Op::tie_gradient);
  ASSERT_EQ(actions[tie + 1].op, Op::reduce_gradient);
  std::swap(actions[tie], actions[tie + 1]);
  EXPECT_EQ(violations(program), (Violations{Violation::missing_tie, Violation::repeated_tie}));
  // Before the last microbatch has been added.
  program = tied_unreduced(tied_tables(stage_tables(3, 2)), "1f1b", 3, 1);
  std::size_t last = 0;
  for (std::size_t i = 0; i < list(program, 0).size(); ++i) {
    if (is_compute(list(program, 0)[i].op)) last = i;
  }
  move_tie(program, 0, last);
  const Violations found = violations(program);
  EXPECT_EQ(std::ranges::count(found, Violation::tied_too_early), 2);  // and compute behind a tie
}

// The tie waits for compute, the reduction for the tie.
TEST(TiedUnreduced, RunsBehindTheCompute) {
  const Program program = tied_unreduced(tied_tables(stage_tables(3, 2)), "1f1b", 3, 1);
  ProgramCosts costs = even_costs(program, {1.0, 1.0, 1.0});
  for (UnitCost& cost : costs.units) cost = {.reduce = 2.0, .tie = 4.0};
  const Simulation simulation = simulate(program, costs);
  double computed = 0.0;
  for (const int rank : {0, 2}) {
    const auto& actions = program.ranks[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      const SimulatedAction& at = simulation.ranks[static_cast<std::size_t>(rank)][i];
      if (is_compute(actions[i].op)) computed = std::max(computed, at.end);
    }
  }
  for (const int rank : {0, 2}) {
    const std::size_t tie = place(program, rank, Op::tie_gradient);
    const auto& simulated = simulation.ranks[static_cast<std::size_t>(rank)];
    EXPECT_GE(simulated[tie].start, computed);
    EXPECT_EQ(simulated[tie + 1].start, simulated[tie].end);
  }
}

}  // namespace
}  // namespace weft
