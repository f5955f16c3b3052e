// The view of tools and people on a run: NVTX ranges and trace files against the program, and the command lines that
// `weft train --help` prints.
#include <algorithm>
#include <set>

#include "parallel/runtime/lane.h"
#include "tests/tools/nvtx_recording.h"
#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class Profile : public TinyTraining {
 protected:
  // Trains with the recorder listening.
  NvtxRecording record(const std::string& arguments) const {
    // Several recordings of one directory: none goes on from another.
    const auto result = weft("train run.toml --checkpoint.at_end=false " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    std::ifstream file(folder_ / "recording");
    return NvtxRecording(file);
  }
  SortedJson program(const std::string& arguments = "") const {
    return SortedJson::parse(weft("program run.toml --json " + arguments).output)["ranks"];
  }
};

#ifdef WEFT_NVTX_RECORDER

const std::string with_shared = "--model.moe.shared_expert_intermediate_size=16";

// For the programs that this process starts.
class Nvtx : public Profile {
 protected:
  void SetUp() override {
    Profile::SetUp();
    setenv("NVTX_INJECTION64_PATH", WEFT_NVTX_RECORDER, 1);
    setenv("WEFT_NVTX_RECORDING", (folder_ / "recording").c_str(), 1);
  }
  void TearDown() override {
    unsetenv("NVTX_INJECTION64_PATH");
    unsetenv("WEFT_NVTX_RECORDING");
    Profile::TearDown();
  }
};

TEST_F(Nvtx, RangesOfEveryRankAreTheProgram) {
  const SortedJson ranks = program();
  const NvtxRecording recording = record("");
  ASSERT_EQ(recording.events.size(), 8u);
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(fault_of(recording.events.at(fmt::format("rank {}", rank)), ranks[rank], 3), "") << "rank " << rank;
  }
}

TEST_F(Nvtx, WorkInsideExpertsIsToldApart) {
  for (const char* schedule : {"", " --pipeline.schedule=zb_h1"}) {
    const std::string arguments = with_shared + " --training.recompute=full" + schedule;
    const SortedJson ranks = program(arguments);
    const NvtxRecording recording = record(arguments);
    std::size_t experts = 0;
    for (int rank = 0; rank < 8; ++rank) {
      EXPECT_EQ(fault_of(recording.events.at(fmt::format("rank {}", rank)), ranks[rank], 3, true), "") << rank;
      for (const SortedJson& action : ranks[rank]) experts += work_of(action, true).empty() ? 0 : 1;
    }
    EXPECT_GT(experts, 0u);
  }
}

TEST_F(Nvtx, OneDomainWithCategoriesAndOneSchema) {
  const NvtxRecording recording = record("");
  EXPECT_EQ(recording.domains, std::vector<std::string>{"weft"});
  EXPECT_EQ(recording.categories, (std::map<int, std::string>{{1, "step"},
                                                              {2, "compute"},
                                                              {3, "gather"},
                                                              {4, "reduce"},
                                                              {5, "send_activations_up"},
                                                              {6, "receive_activations_up"},
                                                              {7, "send_activations_down"},
                                                              {8, "receive_activations_down"},
                                                              {9, "send_gradients_up"},
                                                              {10, "receive_gradients_up"},
                                                              {11, "send_gradients_down"},
                                                              {12, "receive_gradients_down"},
                                                              {13, "exchange"},
                                                              {14, "to_host"},
                                                              {15, "from_host"}}));
  // Types by their numbers in nvToolsExtPayload.h: 17 is INT64, 15 INT32, 80 the handle of a registered string.
  ASSERT_EQ(recording.schemas.size(), 1u);
  EXPECT_EQ(recording.schemas[0],
            "schema\tweft.range\t40\tbytes:17:0\tmicrobatch:15:8\tstep:15:12\tstage:15:16\tphase:80:24\tfamily:80:32");
}

// Names are registered once, and neither more microbatches nor more steps make more of them.
TEST_F(Nvtx, NamesAreFew) {
  const auto names = [](const NvtxRecording& recording) {
    return std::set<std::string>(recording.strings.begin(), recording.strings.end());
  };
  const NvtxRecording few = record(with_shared);
  EXPECT_EQ(names(few).size(), few.strings.size());
  std::set<std::string> pushed;
  for (const auto& [rank, events] : few.events) {
    for (const RecordedEvent& event : events) {
      if (event.begins) pushed.insert({event.range.name, event.range.phase, event.range.family});
    }
  }
  EXPECT_EQ(pushed, names(few));
  EXPECT_EQ(names(record(with_shared + " --training.global_batch_size=32 --run.steps=5")), names(few));
}

TEST_F(Nvtx, TheCheckSeesActionsSwappedMissingOrNestedWrongly) {
  const SortedJson actions = program()[0];
  const std::vector<RecordedEvent> good = record("").events.at("rank 0");
  ASSERT_EQ(fault_of(good, actions, 3), "");
  const auto broken = [&](auto change) {
    auto events = good;
    change(events);
    return fault_of(events, actions, 3);
  };
  // Event 0 begins the step, 1 and 2 are the first action, 3 and 4 the second.
  EXPECT_NE(broken([](auto& events) { std::swap(events[1], events[3]); }), "");
  EXPECT_NE(broken([](auto& events) { events.erase(events.begin() + 1, events.begin() + 3); }), "");
  EXPECT_NE(broken([](auto& events) { std::swap(events[2], events[3]); }), "");
  EXPECT_NE(broken([](auto& events) { events.pop_back(); }), "");
  EXPECT_NE(broken([](auto& events) { ++events[1].range.bytes; }), "");
  EXPECT_NE(broken([](auto& events) { events[3].range.microbatch = 1; }), "");
}

#endif

TEST_F(Profile, TraceHoldsTheProgramOfTheChosenSteps) {
  const SortedJson ranks = program();
  ASSERT_EQ(weft("train run.toml --profiling.first_step=2 --profiling.last_step=3").exit_code, 0);
  for (int rank = 0; rank < 8; ++rank) {
    const SortedJson trace =
        SortedJson::parse(std::ifstream(folder_ / fmt::format("out/tiny/trace_rank{}.json", rank)));
    std::map<int, std::string> threads;
    std::map<int, std::vector<RecordedRange>> actions;  // by step
    std::map<int, std::vector<std::string>> work;
    std::map<std::string, std::pair<double, double>> when;  // by step, microbatch and action
    std::map<std::pair<int, std::string>, double> free;     // by step and lane: when it has done what it was given
    std::map<int, std::pair<double, double>> steps;
    for (const SortedJson& event : trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], rank);
      if (event["name"] == "thread_name") threads[event["tid"]] = event["args"]["name"];
      if (event["ph"] != "X") continue;
      const std::string lane = threads.at(event["tid"]);
      const int step = event["args"]["step"];
      const double begin = event["ts"], end = begin + event["dur"].get<double>();
      EXPECT_EQ(event["cat"], lane);
      if (event["name"] == "step") steps[step] = {begin, end};
      // Nanoseconds, in double microseconds since the machine started.
      EXPECT_GE(begin, steps.at(step).first - 1e-2) << event;
      EXPECT_LE(end, steps.at(step).second + 1e-2) << event;
      if (lane == "host") continue;
      if (event["args"].contains("inside")) {
        const std::string inside = event["args"]["inside"];
        work[step].push_back(inside + " " + event["name"].get<std::string>());
        const auto& [from, to] = when.at(fmt::format("{} {} {}", step, event["args"]["microbatch"].get<int>(), inside));
        EXPECT_GE(begin, from - 1e-2) << event;
        EXPECT_LE(end, to + 1e-2) << event;
        continue;
      }
      double& done = free[{step, lane}];
      EXPECT_GE(begin, done - 1e-2) << event;
      done = end;
      const int microbatch = event["args"].value("microbatch", -1);
      when[fmt::format("{} {} {}", step, microbatch, event["name"].get<std::string>())] = {begin, end};
      actions[step].push_back({event["name"], lane, event["args"].value("bytes", std::int64_t{0}), microbatch, step});
    }
    ASSERT_EQ(actions.size(), 2u);
    for (const int step : {2, 3}) {
      std::vector<RecordedRange> expected;
      std::vector<std::string> expected_work;
      for (const SortedJson& action : ranks[rank]) {
        const RecordedRange range = range_of(action, step);
        expected.push_back({range.name, range.category, range.bytes, range.microbatch, step});
        for (const std::string& name : work_of(action, false)) expected_work.push_back(range.name + " " + name);
      }
      EXPECT_EQ(actions.at(step), expected) << "rank " << rank << ", step " << step;
      EXPECT_EQ(work[step], expected_work) << "rank " << rank << ", step " << step;
    }
  }
}

TEST_F(Profile, TracesAreWrittenOnlyWhereAsked) {
  const auto traces = [&](const std::string& directory, const std::string& arguments) {
    const auto result = weft("train run.toml --run.directory=" + directory + " " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / directory)) {
      count += entry.path().filename().string().starts_with("trace_") ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(traces("never", ""), 0);
  EXPECT_EQ(traces("tools", "--profiling.first_step=1 --profiling.trace=false"), 0);
  EXPECT_EQ(traces("one", "--profiling.first_step=3"), 8);
}

// A recording replaces one of more ranks; steps that a run has behind it are not recorded, and that is said.
TEST_F(Profile, ARecordingIsOfOneSessionOfTheRun) {
  const auto trained = [&](const std::string& arguments) {
    const auto result = weft("train run.toml " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return result.output;
  };
  const auto traces = [&] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "out/tiny")) {
      if (entry.path().extension() == ".json") names.insert(entry.path().filename().string());
    }
    return names;
  };
  EXPECT_EQ(trained("--profiling.first_step=3").find("WARNING"), std::string::npos);
  EXPECT_EQ(traces().size(), 8u + 1);
  const std::string behind = trained("--run.steps=4 --profiling.first_step=2 --profiling.last_step=3");
  EXPECT_NE(behind.find("profiling   WARNING: nothing is recorded: the last step to record is 3, and the run goes on "
                        "behind step 3."),
            std::string::npos)
      << behind;
  EXPECT_EQ(traces().size(), 8u + 1);
  trained(
      "--run.steps=5 --profiling.first_step=5 --parallelism.tensor=1 --parallelism.data_shard=1 "
      "--parallelism.expert=1");
  EXPECT_EQ(traces(), (std::set<std::string>{"summary.json", "trace_rank0.json", "trace_rank1.json"}));
  // A run that begins anew has none of the one before.
  std::filesystem::remove_all(folder_ / "out/tiny/checkpoints");
  trained("--training.sequence_length=16");
  EXPECT_EQ(traces(), (std::set<std::string>{"summary.json"}));
}

TEST_F(Profile, HelpTellsTheCommandLinesOfTheTools) {
  const std::string help = weft("train --help").output;
  for (const char* part :
       {"nsys profile --trace=cuda,nvtx,cublas,cudnn --capture-range=cudaProfilerApi", "--nvtx-domain-include=weft",
        "ncu --profile-from-start off --nvtx --nvtx-include \"weft@PP:0F blocks.1.experts]\"",
        "--profiling.first_step=10", "trace_rank<R>.json"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  }
}

TEST_F(Profile, BenchAsksStreamsForTheTime) {
  const auto result = weft("bench step run.toml --warmup 1 --steps 2 --clock stream --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const SortedJson report = SortedJson::parse(result.output);
  double sum = 0.0;
  for (const auto& [phase, share] : report["share_of_rank_time"].items()) sum += share.get<double>();
  // What the compute lane did and what is left: eight roundings of doubles near 1.
  EXPECT_NEAR(sum, 1.0, 8 * 0x1p-52);
  EXPECT_GT(report["share_of_rank_time"]["products"], 0.0);
  EXPECT_EQ(report["communication_by_lane"].size(), all_lanes.size() - 1);
  for (const char* lane : {"gather", "reduce", "receive_activations_up", "exchange"}) {
    EXPECT_GT(report["communication_by_lane"][lane], 0.0) << lane;
  }
  EXPECT_FALSE(SortedJson::parse(weft("bench step run.toml --warmup 0 --steps 1 --json").output)
                   .contains("communication_by_lane"));
  EXPECT_EQ(weft("bench step run.toml --clock sun").exit_code, 2);
}

}  // namespace
}  // namespace weft
