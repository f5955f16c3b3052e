// Traces on a device that runs behind the host, and the profiler's window. What a whole run leaves behind is in
// tests/tools/profile_test.cpp.
#include "trainer/rank/step_trace.h"

#include <gtest/gtest.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "parallel/comm/local.h"
#include "tests/parallel/clocked_device.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/measure/measured_costs.h"
#include "trainer/rank/run_hashes.h"

namespace weft {
namespace {

Program two_actions() {
  Program program;
  static_cast<ProgramTables&>(program) = schedule_only_tables(1, 1);
  program.units = {{.name = "head"}};
  program.ranks = {
      {{.op = Op::unshard, .stage = 0, .unit = 0, .bytes = 64}, {.op = Op::forward, .stage = 0, .microbatch = 5}}};
  return program;
}

// Times are the lanes' own, counted from the fence at the begin of the step.
TEST(StepTrace, TakesTheTimeOfEachActionsLane) {
  const Program program = two_actions();
  ClockedDevice device;
  Lanes lanes(device);
  ClockedStream &compute = clocked(lanes[Lane::compute]), &gather = clocked(lanes[Lane::gather]);
  StepTrace trace(program, program.ranks[0], lanes);
  for (const int step : {3, 4}) {
    compute.time = gather.time = 1000.0 * step;
    trace.begin_step(step);
    gather.time += 2.0;
    trace.begin(0);
    gather.time += 5.0;
    trace.end(0);
    compute.time += 1.0;
    trace.begin(1);
    compute.time += 0.5;
    trace.end(1);
    trace.end_step();
  }
  ASSERT_EQ(trace.spans().size(), 6u);
  for (const int step : {3, 4}) {
    const std::size_t first = step == 3 ? 0 : 3;
    const TraceSpan &whole = trace.spans()[first], &unshard = trace.spans()[first + 1],
                    &forward = trace.spans()[first + 2];
    EXPECT_EQ(whole.name, "step");
    EXPECT_EQ(whole.lane, std::nullopt);
    const double begin = whole.begin;
    EXPECT_EQ(unshard, (TraceSpan{"unshard head", Lane::gather, step, std::nullopt, 64, begin + 2.0, begin + 7.0}));
    EXPECT_EQ(forward, (TraceSpan{"PP:0F", Lane::compute, step, 5, 0, begin + 1.0, begin + 1.5}));
  }
}

// Work of an action lasts on the compute lane, and is kept apart from actions.
TEST(StepTrace, TakesTheTimeOfWorkInsideAnAction) {
  const Program program = two_actions();
  ClockedDevice device;
  Lanes lanes(device);
  ClockedStream& compute = clocked(lanes[Lane::compute]);
  StepTrace trace(program, program.ranks[0], lanes);
  for (const int step : {3, 4}) {
    trace.begin_step(step);
    trace.begin(0);
    trace.end(0);
    trace.begin(1);
    for (const Work work : {Work::route, Work::products}) {
      compute.time += 1.0;
      trace.begin_work(work);
      compute.time += 0.5;
      trace.end_work();
    }
    trace.end(1);
    trace.end_step();
  }
  ASSERT_EQ(trace.spans().size(), 6u);
  ASSERT_EQ(trace.work().size(), 4u);
  for (const int step : {3, 4}) {
    const std::size_t first = step == 3 ? 0 : 2;
    const double begin = trace.spans()[step == 3 ? 0 : 3].begin;
    EXPECT_EQ(trace.work()[first], (TraceSpan{"route", Lane::compute, step, 5, 0, begin + 1.0, begin + 1.5, "PP:0F"}));
    EXPECT_EQ(trace.work()[first + 1],
              (TraceSpan{"products", Lane::compute, step, 5, 0, begin + 2.5, begin + 3.0, "PP:0F"}));
  }
  const RankTrace read = parse_chrome_trace(to_chrome_trace(2, trace.spans(), trace.work()), "trace");
  EXPECT_EQ(read.spans.size(), 6u);
  ASSERT_EQ(read.work.size(), 4u);
  EXPECT_EQ(read.work[1].inside, "PP:0F");
  EXPECT_EQ(read.work[1].name, "products");
}

TEST(StepTrace, BecomesATraceOfChrome) {
  const std::vector<TraceSpan> spans = {{"step", std::nullopt, 3, std::nullopt, 0, 2.0, 3.0},
                                        {"unshard \"head\"", Lane::gather, 3, std::nullopt, 64, 2.25, 2.75},
                                        {"PP:0F", Lane::compute, 3, 5, 0, 2.5, 2.625}};
  EXPECT_FALSE(nlohmann::json::parse(to_chrome_trace(7, spans)).contains("otherData"));
  const auto trace = nlohmann::json::parse(to_chrome_trace(7, spans, {}, RunHashes{"a", "b", "c"}.named()));
  EXPECT_EQ(trace["otherData"],
            nlohmann::json({{"configuration_hash", "a"}, {"program_hash", "b"}, {"layout_hash", "c"}}));
  std::vector<nlohmann::json> events;
  std::map<int, std::string> threads;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") events.push_back(event);
    if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "rank 7");
    }
    EXPECT_EQ(event["pid"], 7);
  }
  EXPECT_EQ(threads.size(), 1 + all_lanes.size());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(threads.at(events[0]["tid"]), "host");
  EXPECT_EQ(threads.at(events[1]["tid"]), "gather");
  EXPECT_EQ(threads.at(events[2]["tid"]), "compute");
  EXPECT_EQ(events[1]["name"], "unshard \"head\"");
  EXPECT_EQ(events[1]["ts"], 2.25e6);
  EXPECT_EQ(events[1]["dur"], 0.5e6);
  EXPECT_EQ(events[1]["args"], (nlohmann::json{{"step", 3}, {"bytes", 64}}));
  EXPECT_EQ(events[2]["args"], (nlohmann::json{{"step", 3}, {"microbatch", 5}}));
}

class ProfiledDevice final : public ClockedDevice {
 public:
  explicit ProfiledDevice(std::vector<std::string>& log) : log_(log) {}
  void start_profiler() override { log_.push_back("start"); }
  void stop_profiler() override { log_.push_back("stop"); }

 private:
  std::vector<std::string>& log_;
};

TEST(StepProfiler, TellsTheDeviceAroundTheChosenSteps) {
  using Log = std::vector<std::string>;
  const auto log_of = [](const ProfilingConfig& config) {
    Log log;
    run_local_ranks(1, [&](Communicator& world) {
      ProfiledDevice device(log);
      Lanes lanes(device);
      NvtxDomain domain;
      const Program program = two_actions();
      StepProfiler profiler(config, domain, program, program.ranks[0], lanes, world);
      for (int step = 1; step <= 4; ++step) {
        profiler.begin_step(step);
        log.push_back(fmt::format("{}:{}", step, profiler.observers().size()));
        profiler.end_step();
      }
      EXPECT_EQ(profiler.trace() != nullptr, config.first_step > 0 && config.trace);
    });
    return log;
  };
  EXPECT_EQ(log_of({}), (Log{"1:1", "2:1", "3:1", "4:1"}));
  EXPECT_EQ(log_of({2, 3, true}), (Log{"1:1", "start", "2:2", "3:2", "stop", "4:1"}));
  EXPECT_EQ(log_of({1, 0, false}), (Log{"start", "1:1", "stop", "2:1", "3:1", "4:1"}));
}

// What is recorded changes nothing: neither losses, nor weights, nor what is counted.
TEST(StepProfiler, ProfiledRunsLearnTheSame) {
  Config config = tiny_config("de");
  config.parallelism = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2};
  config.run.steps = 3;
  const LearnedRun plain = learn(config);
  config.profiling = {.first_step = 2, .last_step = 3};
  std::mutex mutex;
  std::map<int, std::size_t> recorded;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    const std::lock_guard lock(mutex);
    const auto actions = run.program().ranks[run.rank() < 4 ? 0 : 1].size();
    const std::size_t steps = metrics.step == 1 ? 0 : static_cast<std::size_t>(metrics.step) - 1;
    // The step, and five things that the host does; the last step reads no text for another.
    const std::size_t last = metrics.step == config.run.steps ? 1 : 0;
    EXPECT_EQ(run.profiler().trace()->spans().size(), steps * (actions + 6) - last) << run.rank();
    recorded[run.rank()] = steps;
  };
  const LearnedRun profiled = learn(config, observer);
  EXPECT_TRUE(difference(plain, profiled).bitwise_equal);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plain.result.steps[i].communication, profiled.result.steps[i].communication);
  }
  EXPECT_EQ(recorded.size(), 8u);
}

}  // namespace
}  // namespace weft
