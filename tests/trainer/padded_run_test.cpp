// The simulator's claims of a step, held against runs in which computation lasts known times. Step, bubble and starts
// agree within 3 % on every kind of schedule. Costs measured from such a run are the padding again.
//
// Disturbances of a run only add to it, so no action takes less than its padding. The simulated start of an action is
// the least that its list and the padding allow. So no action may ever begin before its simulated start. That is asked
// of every step without allowance. Added time (waking up, the model's own work, other programs on the machine) is some
// time an action whatever the padding is. So its part of the step goes down as the padding goes up, while a simulator
// that is wrong stays wrong by the same part. So the undisturbed step is looked for, the least of several. If that is
// too far off, it is that of another run with twice the padding. Faults are asked of a step that was found so.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "tests/parallel/lane_channels.h"
#include "tests/trainer/padded_run.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

constexpr double allowed_deviation = 0.03;
// Of the padding, in turn. A thread wakes up about 0.1 ms late, which is 3 % of the shortest action at 2; many times
// that where other programs want the cores.
constexpr std::array<double, 5> scales = {2.0, 4.0, 8.0, 12.0, 16.0};

struct PaddedCase {
  std::string schedule;
  int pipeline = 2, chunks = 1;

  std::string name() const { return fmt::format("{}_pp{}_v{}", schedule, pipeline, chunks); }
};
const std::vector<PaddedCase> cases = {
    {"1f1b", 2},  {"1f1b", 4},  {"gpipe", 2},  {"gpipe", 4},  {"interleaved", 2, 2}, {"interleaved", 4, 2},
    {"zb_h1", 2}, {"zb_h1", 4}, {"zbv", 2, 2}, {"zbv", 4, 2}, {"dualpipev", 2, 2},   {"dualpipev", 4, 2},
};

// Enough for dualpipev, and a multiple of the ranks for interleaved. The first stage has the embedding, the last one
// the head, and with one block more than stages one stage has two.
Config padded_config(const PaddedCase& the_case) {
  Config config = config_of(TinyLayout{.layers = fmt::format("d*{}", the_case.pipeline * the_case.chunks + 1),
                                       .degrees = {.pipeline = the_case.pipeline},
                                       .schedule = the_case.schedule,
                                       .chunks = the_case.chunks});
  config.training.global_batch_size = 2 * the_case.pipeline;
  config.run.steps = 3;
  config.profiling = {.first_step = 2, .last_step = 3};
  return config;
}

// Milliseconds times `scale`. All differ, so that no two mistakes cancel.
CostTable padding_of(double scale, double transfer = 0.0) {
  CostTable table;
  const auto add = [&](const char* kind, double forward, double backward_input, double backward_weight) {
    table.segments[kind] = {1e-3 * scale * forward, 1e-3 * scale * backward_input, 1e-3 * scale * backward_weight};
  };
  add("embedding", 2.0, 2.5, 3.0);
  add("attention", 4.0, 5.5, 3.5);
  add("mlp", 6.0, 7.5, 5.0);
  add("head", 7.0, 8.0, 6.0);
  table.units["*"] = {};
  table.messages["*"] = 1e-3 * scale * transfer;
  return table;
}

Simulation as_threads(const PaddedRun& run, const ProgramCosts& costs) {
  return simulate(run.program, costs, delayed());
}

// Seconds by which an action of computation began before its simulated start; 0 unless the simulator is wrong.
double most_early(const PaddedRun& run, const Simulation& simulation) {
  double early = 0.0;
  for (const Simulation& step : run.steps) {
    for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
      for (std::size_t i = 0; i < step.ranks[rank].size(); ++i) {
        if (!is_compute(run.program.ranks[rank][i].op)) continue;
        early = std::max(early, simulation.ranks[rank][i].start - step.ranks[rank][i].start);
      }
    }
  }
  return early;
}

// Sums of a few hundred times in another order than the clock's, which counts nanoseconds.
constexpr double rounding = 1e-6;

struct MeasuredCosts {
  double costs = 0.0;  // largest relative distance from the padding
  SimulationError error;
};

MeasuredCosts measured(const Config& config, const PaddedRun& run) {
  const Mesh mesh(config.parallelism);
  const ProgramCosts costs = table_costs(measured_costs(config, mesh, run.traces), run.program, group_sizes(mesh));
  MeasuredCosts result;
  const auto compare = [&](double is, double padding) {
    result.costs = std::max(result.costs, std::abs(is - padding) / padding);
  };
  std::set<int> split;  // segments whose backward is not one span
  for (const auto& actions : run.program.ranks) {
    for (const Action& action : actions) {
      if (action.op == Op::backward_input) split.insert(*action.segment);
    }
  }
  for (std::size_t s = 0; s < costs.segments.size(); ++s) {
    const ComputeCost &is = costs.segments[s], &padding = run.costs.segments[s];
    compare(is.forward, padding.forward);
    if (split.contains(static_cast<int>(s))) {
      compare(is.backward_input, padding.backward_input);
      compare(is.backward_weight, padding.backward_weight);
    } else {
      compare(is.backward_input + is.backward_weight, padding.backward_input + padding.backward_weight);
    }
  }
  result.error = simulation_error(run.program, as_threads(run, costs), least_disturbed(run));
  return result;
}

class PaddedRuns : public ::testing::TestWithParam<PaddedCase> {};

TEST_P(PaddedRuns, TakeWhatTheirSimulationSays) {
  const Config config = padded_config(GetParam());
  for (double scale : scales) {
    const PaddedRun run = run_padded(config, padding_of(scale));
    const Simulation simulation = as_threads(run, run.costs);
    ASSERT_LT(most_early(run, simulation), rounding);
    const SimulationError error = simulation_error(run.program, simulation, least_disturbed(run));
    const MeasuredCosts from_traces = measured(config, run);
    fmt::print(
        "{}, padding x {}: step {:.2f} %, bubble {:.2f} %, start {:.2f} %; costs {:.2f} %, simulated with them "
        "{:.2f} %\n",
        GetParam().name(), scale, 100 * error.step, 100 * error.bubble, 100 * error.start, 100 * from_traces.costs,
        100 * from_traces.error.most());
    const double most = std::max({error.most(), from_traces.costs, from_traces.error.most()});
    if (most >= allowed_deviation && scale < scales.back()) continue;
    EXPECT_LT(error.step, allowed_deviation);
    EXPECT_LT(error.bubble, allowed_deviation);
    EXPECT_LT(error.start, allowed_deviation);
    EXPECT_LT(from_traces.costs, allowed_deviation);
    EXPECT_LT(from_traces.error.most(), allowed_deviation);
    return;
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, PaddedRuns, ::testing::ValuesIn(cases),
                         [](const auto& instance) { return instance.param.name(); });

// A run that agrees with its simulation, or the last of several that do not.
PaddedRun undisturbed_run(const Config& config, double transfer = 0.0) {
  PaddedRun run;
  double error = 1.0;
  for (double scale : scales) {
    run = run_padded(config, padding_of(scale, transfer));
    error = simulation_error(run.program, as_threads(run, run.costs), least_disturbed(run)).most();
    if (error < allowed_deviation) break;
  }
  EXPECT_LT(error, allowed_deviation);
  return run;
}

// What 3 % tell apart: halves of the backward exchanged, embedding and head exchanged, messages that take as long as
// the forward of an attention part.
TEST(PaddedRun, FaultsOfASimulationAreSeen) {
  const Config config = padded_config(PaddedCase{"zb_h1", 4});
  const PaddedRun run = undisturbed_run(config);
  const Simulation& step = least_disturbed(run);
  const auto error_with = [&](const ProgramCosts& costs) {
    return simulation_error(run.program, as_threads(run, costs), step).most();
  };
  ProgramCosts swapped = run.costs, elsewhere = run.costs, messages = run.costs;
  for (ComputeCost& cost : swapped.segments) std::swap(cost.backward_input, cost.backward_weight);
  std::swap(elsewhere.segments.front(), elsewhere.segments.back());
  for (double& seconds : messages.transfers) seconds = run.costs.segments[1].forward;
  EXPECT_GT(error_with(swapped), allowed_deviation);
  EXPECT_GT(error_with(elsewhere), allowed_deviation);
  EXPECT_GT(error_with(messages), allowed_deviation);
}

// Messages that are as long under way as an attention part computes, beside the work of both ranks. They arrive as
// simulated, never before the simulated time. It is not the step with nothing under way, nor the one in which the
// receiver copies.
TEST(PaddedRun, MessagesTakeTheirTimeBesideComputation) {
  for (const PaddedCase& one : {PaddedCase{"gpipe", 4}, PaddedCase{"1f1b", 4}, PaddedCase{"interleaved", 2, 2}}) {
    SCOPED_TRACE(one.name());
    const PaddedRun run = undisturbed_run(padded_config(one), 4.0);
    EXPECT_LT(most_early(run, as_threads(run, run.costs)), rounding);
    ProgramCosts at_once = run.costs;
    for (double& seconds : at_once.transfers) seconds = 0.0;
    EXPECT_GT(simulation_error(run.program, as_threads(run, at_once), least_disturbed(run)).most(), allowed_deviation);
    const Simulation copied = simulate(run.program, run.costs, LaneChannels::serial());
    EXPECT_GT(simulation_error(run.program, copied, least_disturbed(run)).most(), allowed_deviation);
  }
}

// A first stage of one block before one of four. Threads block in a send until the message before it is taken, so the
// fast stage is held back. On lanes of its own it would run ahead.
TEST(PaddedRun, LanesOfTheirOwnAreAnotherStep) {
  Config config = padded_config(PaddedCase{"gpipe", 2});
  config.training.global_batch_size = 6;
  config.model.blocks = parse_layers(config.layers_text = "d*5").blocks;
  config.pipeline.layout = std::vector<std::int64_t>{1, 4};
  const PaddedRun run = undisturbed_run(config);
  const Simulation own = simulate(run.program, run.costs, LaneChannels::own());
  EXPECT_GT(simulation_error(run.program, own, least_disturbed(run)).start, allowed_deviation);
}

// Experts over two ranks of each stage, with exchanges that take as long as an attention part computes. They run beside
// the other half of an overlapped pair, and for a while beside their own segment. They do so as simulated, never before
// the simulated time. It is not the step in which computation waits for them, nor the one in which they take no time.
// Nor is it the one in which their own segment waits from its begin.
TEST(PaddedRun, RowsOfExpertsTravelBesideTheOtherHalf) {
  for (const char* schedule : {"dualpipev", "combined_1f1b"}) {
    SCOPED_TRACE(schedule);
    Config config = config_of(TinyLayout{
        .layers = "e*5", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}, .schedule = schedule, .chunks = 2});
    config.training.global_batch_size = 12;
    config.run.steps = 3;
    PaddedRun run;
    SimulationError error;
    for (const double scale : scales) {
      CostTable padding = padding_of(scale);
      padding.segments["experts"] = {.forward = 13e-3 * scale,
                                     .backward_input = 15e-3 * scale,
                                     .backward_weight = 5e-3 * scale,
                                     .forward_out = 3.5e-3 * scale,
                                     .forward_back = 4.0e-3 * scale,
                                     .backward_out = 3.0e-3 * scale,
                                     .backward_back = 4.5e-3 * scale,
                                     .forward_covered = 2.5e-3 * scale,
                                     .backward_covered = 2.0e-3 * scale};
      run = run_padded(config, padding);
      const Simulation simulation = as_threads(run, run.costs);
      ASSERT_LT(most_early(run, simulation), rounding);
      error = simulation_error(run.program, simulation, least_disturbed(run));
      fmt::print("{}, padding x {}: step {:.2f} %, bubble {:.2f} %, start {:.2f} %\n", schedule, scale,
                 100 * error.step, 100 * error.bubble, 100 * error.start);
      if (error.most() < allowed_deviation) break;
    }
    EXPECT_LT(error.most(), allowed_deviation);
    EXPECT_TRUE(std::ranges::any_of(run.program.ranks[0], [](const Action& a) { return a.op == Op::rows_backward; }));
    LaneChannels waiting = delayed();
    waiting.channel[static_cast<std::size_t>(Lane::exchange)] = waiting.of(Lane::compute);
    EXPECT_GT(simulation_error(run.program, simulate(run.program, run.costs, waiting), least_disturbed(run)).step,
              allowed_deviation);
    ProgramCosts at_once = run.costs;
    for (ComputeCost& cost : at_once.segments) {
      cost.forward -= cost.forward_out - cost.forward_covered + cost.forward_back;
      cost.backward_input -= cost.backward_out - cost.backward_covered + cost.backward_back;
      cost.forward_out = cost.forward_back = cost.backward_out = cost.backward_back = 0.0;
      cost.forward_covered = cost.backward_covered = 0.0;
    }
    EXPECT_GT(simulation_error(run.program, as_threads(run, at_once), least_disturbed(run)).most(), allowed_deviation);
    ProgramCosts uncovered = run.costs;
    for (ComputeCost& cost : uncovered.segments) {
      cost.forward += std::exchange(cost.forward_covered, 0.0);
      cost.backward_input += std::exchange(cost.backward_covered, 0.0);
    }
    EXPECT_GT(simulation_error(run.program, as_threads(run, uncovered), least_disturbed(run)).most(),
              allowed_deviation);
  }
}

// The same model with the same padding in another order is another step.
TEST(PaddedRun, AnotherScheduleIsAnotherStep) {
  const PaddedRun plain = undisturbed_run(padded_config(PaddedCase{"1f1b", 4}));
  const Config split = padded_config(PaddedCase{"zb_h1", 4});
  const Program program = step_program(ResolvedRun(split), {});
  const Simulation simulation = simulate(program, plain.costs, LaneChannels::serial());
  const double seconds = least_disturbed(plain).seconds;
  EXPECT_GT(std::abs(seconds - simulation.seconds) / simulation.seconds, allowed_deviation);
}

}  // namespace
}  // namespace weft
