// Costs back from traces: of runs that were simulated, whose costs are known, and of one that really ran.
#include "trainer/measure/measured_costs.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <mutex>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/random.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"
#include "trainer/run/run_directory.h"

namespace weft {
namespace {

struct KnownCosts {
  explicit KnownCosts(const Config& run) : config(run), mesh(run.parallelism), tables(program_tables(run, mesh, {})) {
    const RandomStream random(1, "known costs");
    std::uint64_t next = 0;
    const auto seconds = [&] { return random.uniform(next++); };
    // A whole backward is one span, which is shared out evenly.
    for (const ProgramSegment& segment : tables.segments) {
      const double half = seconds();
      table.segments[segment.name] = {seconds(), half, half};
    }
    for (const ProgramUnit& unit : tables.units) {
      UnitCost& cost = table.units[unit.name];
      if (unit.unsharded_bytes > 0) cost.gather = seconds();
      cost.reduce = seconds();
    }
    for (std::size_t s = 0; s + 1 < tables.stages.size(); ++s) table.messages[std::to_string(s)] = seconds();
    table.gradient_norm = seconds();
    table.optimizer_step = seconds();
  }

  // As threads would have run it, `slack` added to some collectives of all ranks but one: a wait for the last that
  // came.
  std::vector<RankTrace> traces(double slack) const {
    const RandomStream random(2, "slack");
    std::uint64_t next = 0;
    std::vector<RankTrace> traces;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      const auto at = mesh.coordinates(rank);
      const Program program = step_program(ResolvedRun(config), at);
      const Simulation simulation =
          simulate(program, table_costs(table, program, group_sizes(mesh)), LaneChannels::serial());
      const auto& actions = program.ranks[static_cast<std::size_t>(at.pp)];
      const auto names = range_names(program, actions);
      RankTrace trace{rank, {}};
      for (std::int64_t step = 3; step <= 5; ++step) {
        const double begin = 1e4 + 1e3 * static_cast<double>(step);
        trace.spans.push_back({"step", std::nullopt, step, std::nullopt, 0, begin, begin + simulation.seconds});
        for (std::size_t i = 0; i < actions.size(); ++i) {
          const SimulatedAction& action = simulation.ranks[static_cast<std::size_t>(at.pp)][i];
          double waited = action.waited;
          if ((is_gather(actions[i].op) || is_reduction(actions[i].op)) && step != 4)
            waited += slack * random.uniform(next++);
          trace.spans.push_back({names[i], lane_of(program, actions[i]), step, actions[i].microbatch, actions[i].bytes,
                                 begin + action.start - waited, begin + action.end});
        }
      }
      traces.push_back(std::move(trace));
    }
    return traces;
  }

  Config config;
  Mesh mesh;
  ProgramTables tables;
  CostTable table;
};

// Times lie near 1e4 seconds, so differences of two are good to about 4e-12.
void expect_near(const CostTable& measured, const CostTable& known, double tolerance = 1e-11) {
  ASSERT_EQ(measured.segments.size(), known.segments.size());
  for (const auto& [name, cost] : known.segments) {
    const ComputeCost& is = measured.segments.at(name);
    EXPECT_NEAR(is.forward, cost.forward, tolerance) << name;
    EXPECT_NEAR(is.backward_input, cost.backward_input, tolerance) << name;
    EXPECT_NEAR(is.backward_weight, cost.backward_weight, tolerance) << name;
  }
  ASSERT_EQ(measured.units.size(), known.units.size());
  for (const auto& [name, cost] : known.units) {
    EXPECT_NEAR(measured.units.at(name).gather, cost.gather, tolerance) << name;
    EXPECT_NEAR(measured.units.at(name).reduce, cost.reduce, tolerance) << name;
  }
  ASSERT_EQ(measured.messages.size(), known.messages.size());
  for (const auto& [stage, seconds] : known.messages) EXPECT_NEAR(measured.messages.at(stage), seconds, tolerance);
  EXPECT_NEAR(measured.gradient_norm, known.gradient_norm, tolerance);
  EXPECT_NEAR(measured.optimizer_step, known.optimizer_step, tolerance);
}

TEST(MeasuredCosts, AreThoseOfTheRunThatWasTraced) {
  for (const TinyLayout& layout :
       {TinyLayout{.layers = "d*2"}, TinyLayout{.layers = "d*3", .degrees = {.pipeline = 3}},
        TinyLayout{.layers = "de", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}, .schedule = "gpipe"}}) {
    const KnownCosts known(config_of(layout));
    expect_near(measured_costs(known.config, known.mesh, known.traces(0.0)), known.table);
    expect_near(measured_costs(known.config, known.mesh, known.traces(5.0)), known.table);
  }
}

// A slow microbatch here and there does not count, as long as most are not.
TEST(MeasuredCosts, AreMediansOfComputation) {
  const KnownCosts known(config_of({.layers = "d*2"}));
  auto traces = known.traces(0.0);
  for (TraceSpan& span : traces[0].spans) {
    if (span.lane == Lane::compute && span.microbatch == 0) span.begin -= 7.0;
  }
  ASSERT_GE(known.config.microbatches(), 3);
  expect_near(measured_costs(known.config, known.mesh, traces), known.table);
}

// The file of a trace tells times in microseconds, as decimal numbers that read back as they were. The sum of a begin
// and a duration rounds once more.
TEST(MeasuredCosts, CanBeTakenFromTheFilesOfATrace) {
  const KnownCosts known(config_of({.layers = "d*2", .degrees = {.pipeline = 2}}));
  std::vector<RankTrace> read;
  for (const RankTrace& trace : known.traces(0.0)) {
    const RankTrace again = parse_chrome_trace(to_chrome_trace(trace.rank, trace.spans), "trace");
    EXPECT_EQ(again.rank, trace.rank);
    ASSERT_EQ(again.spans.size(), trace.spans.size());
    for (std::size_t i = 0; i < trace.spans.size(); ++i) {
      EXPECT_EQ(again.spans[i].name, trace.spans[i].name);
      EXPECT_EQ(again.spans[i].lane, trace.spans[i].lane);
      EXPECT_EQ(again.spans[i].step, trace.spans[i].step);
      EXPECT_EQ(again.spans[i].microbatch, trace.spans[i].microbatch);
      EXPECT_EQ(again.spans[i].bytes, trace.spans[i].bytes);
      EXPECT_NEAR(again.spans[i].begin, trace.spans[i].begin, 1e-11);
      EXPECT_NEAR(again.spans[i].end, trace.spans[i].end, 1e-11);
    }
    read.push_back(again);
  }
  expect_near(measured_costs(known.config, known.mesh, read), known.table, 4e-11);
}

TEST(MeasuredCosts, AreReadFromWhatARunLeaves) {
  const auto directory = std::filesystem::temp_directory_path() / fmt::format("weft_traces_{}", getpid());
  std::filesystem::create_directories(directory);
  const KnownCosts known(config_of({.layers = "d*2", .degrees = {.pipeline = 2}}));
  EXPECT_THROW(read_traces(directory, 2), Error);
  for (const RankTrace& trace : known.traces(0.0)) write_trace(directory, trace.rank, trace.spans);
  const auto traces = read_traces(directory, 3);
  std::filesystem::remove_all(directory);
  ASSERT_EQ(traces.size(), 2u);
  EXPECT_EQ(traces[1].rank, 1);
  expect_near(measured_costs(known.config, known.mesh, traces), known.table, 4e-11);
}

std::string refusal(const Config& config, std::span<const RankTrace> traces) {
  try {
    measured_costs(config, Mesh(config.parallelism), traces);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(MeasuredCosts, RefuseTracesOfSomethingElse) {
  Config config = config_of({.layers = "d*2", .degrees = {.pipeline = 2}});
  config.pipeline.layout = std::vector<std::int64_t>{1, 1};  // dealt by cost, the stage with the head has no block
  const KnownCosts known(config);
  auto traces = known.traces(0.0);
  EXPECT_EQ(refusal(known.config, {}), "costs are measured from the traces of a run, and none is given");
  EXPECT_TRUE(refusal(known.config, std::span(traces).first(1)).starts_with("no rank traced segment blocks.1."));
  EXPECT_TRUE(refusal(config_of({.layers = "d*2"}), traces).find("the trace is of another configuration") !=
              std::string::npos);
  auto cut = traces;
  cut[1].spans.pop_back();
  EXPECT_TRUE(refusal(known.config, cut).find("which is no whole number of steps") != std::string::npos);
  cut[1].rank = 9;
  EXPECT_EQ(refusal(known.config, cut), "there is a trace of rank 9; the configuration has 2 ranks");
  for (const char* text : {"", "{}", "{\"traceEvents\": [{\"ph\": \"X\"}]}", "{\"traceEvents\": []}"}) {
    EXPECT_THROW(parse_chrome_trace(text, "trace_rank0.json"), Error);
  }
}

// The lists of these configurations are the same, and so are the names in the traces.
TEST(MeasuredCosts, RefuseTracesOfOtherWork) {
  const KnownCosts known(config_of({.layers = "d e", .degrees = {.data_shard = 2}}));
  const auto traces_of = [&](const Config& traced) {
    std::vector<RankTrace> traces;
    for (const RankTrace& trace : known.traces(0.0)) {
      const std::string text = to_chrome_trace(trace.rank, trace.spans, {}, {{"work", work_hash(traced)}});
      traces.push_back(parse_chrome_trace(text, "trace"));
    }
    return traces;
  };
  const std::function<void(Config&)> other_work[] = {
      [](Config& config) { config.training.microbatch_size *= 2; },
      [](Config& config) { config.training.sequence_length *= 2; },
      [](Config& config) { config.training.recompute = Recompute::selective; },
      [](Config& config) { config.training.frozen = {Family::head}; },
      [](Config& config) { config.model.hidden_size *= 2; },
      [](Config& config) { config.model.moe.num_experts_per_tok += 1; },
      [](Config& config) { std::swap(config.model.blocks[0], config.model.blocks[1]); },
      [](Config& config) { std::swap(config.parallelism.data_shard, config.parallelism.data_replicate); },
      [](Config& config) { config.precision.compute.dtype = DType::bfloat16; },
      [](Config& config) { config.precision_by_family[Family::head].parameters = DType::bfloat16; },
      [](Config& config) { config.run.device = DeviceKind::cuda; }};
  int number = 0;
  for (const auto& change : other_work) {
    Config traced = known.config;
    change(traced);
    EXPECT_NE(refusal(known.config, traces_of(traced)).find("the trace is of another configuration"), std::string::npos)
        << "change " << number;
    ++number;
  }
  Config same = known.config;
  same.run.steps += 5;
  same.layers_text = "(d e)*1";
  same.optimizer.learning_rate *= 2.0;
  same.parallelism.pipeline = 2;
  same.training.recompute = Recompute::full;
  EXPECT_EQ(refusal(known.config, traces_of(same)), "accepted");
}

// A run of two stages and two replicas, as threads: everything that runs is measured, and the table simulates it.
TEST(MeasuredCosts, OfARunCoverItsProgram) {
  Config config = config_of({.layers = "de", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}});
  config.run.steps = 3;
  config.profiling = {.first_step = 2, .last_step = 3};
  std::mutex mutex;
  std::vector<RankTrace> traces;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    if (metrics.step < 3) return;
    const std::lock_guard lock(mutex);
    traces.push_back({run.rank(), run.profiler().trace()->spans()});
  };
  learn(config, observer);
  ASSERT_EQ(traces.size(), 4u);
  const Mesh mesh(config.parallelism);
  const CostTable table = measured_costs(config, mesh, traces);
  const Program program = step_program(ResolvedRun(config), {});
  for (const ProgramSegment& segment : program.segments) {
    EXPECT_GT(table.segments.at(segment.name).forward, 0.0) << segment.name;
    EXPECT_GT(table.segments.at(segment.name).backward_input, 0.0) << segment.name;
  }
  for (const ProgramUnit& unit : program.units) EXPECT_GT(table.units.at(unit.name).reduce, 0.0) << unit.name;
  EXPECT_GE(table.messages.at("0"), 0.0);
  const ProgramCosts costs = table_costs(table, program, group_sizes(mesh));
  EXPECT_GT(simulate(program, costs, LaneChannels::serial()).seconds, 0.0);
  EXPECT_EQ(parse_cost_table(to_toml(table), "measured"), table);
}

}  // namespace
}  // namespace weft
