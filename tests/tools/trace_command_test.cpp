// `weft trace sum` on the traces of a run of the program, and on an export as Nsight Systems writes it. `weft trace
// costs` on the traces of a run.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#ifdef WEFT_HAVE_SQLITE
#include <sqlite3.h>
#endif

#include "parallel/runtime/input_file.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class TraceCommand : public ProgramTest {
 protected:
  // Seconds by the labels, joined.
  std::map<std::string, double> sums(const std::string& arguments) const {
    const auto result = weft("trace sum " + arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    const Json json = Json::parse(result.output);
    std::map<std::string, double> sums;
    double all = 0.0;
    for (const Json& entry : json["sums"]) {
      std::string labels;
      for (const auto& [key, value] : entry.items()) {
        if (value.is_string()) labels += (labels.empty() ? "" : " ") + value.get<std::string>();
      }
      sums[labels] = entry["seconds"].get<double>();
      all += sums[labels];
    }
    EXPECT_NEAR(all, json["seconds"].get<double>(), 1e-12);
    return sums;
  }
};

TEST_F(TraceCommand, AddsUpTheStepsOfARun) {
  put("run.toml", small_run);
  put("text.txt", std::string(20'000, 'w'));
  const auto trained = weft(
      "train run.toml --model.layers='d e' --pipeline.schedule=combined_1f1b --training.recompute=experts "
      "--profiling.first_step=2 --profiling.last_step=3");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  std::string directory;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
    if (entry.path().filename() == "trace_rank0.json") directory = entry.path().parent_path().string();
  }
  ASSERT_FALSE(directory.empty());
  // Against the spans of the files.
  std::map<std::string, double> lanes;
  double all = 0.0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (!entry.path().filename().string().starts_with("trace_rank")) continue;
    std::ifstream in(entry.path());
    const Json trace = Json::parse(in);
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["name"] == "step" || event["args"].contains("inside")) continue;
      lanes[event["cat"].get<std::string>()] += 1e-6 * event["dur"].get<double>();
      all += 1e-6 * event["dur"].get<double>();
    }
  }
  const auto by_lane = sums("'" + directory + "' --by lane");
  ASSERT_EQ(by_lane.size(), lanes.size());
  for (const auto& [lane, seconds] : lanes) EXPECT_NEAR(by_lane.at(lane), seconds, 1e-9 + 1e-6 * seconds) << lane;
  const auto by_phase = sums("'" + directory + "'");
  for (const char* labels : {"F dense", "F experts", "F embedding", "F head", "update -"}) {
    EXPECT_TRUE(by_phase.contains(labels)) << labels;
  }
  // Work is a part of its action, never counted beside it.
  const auto by_work = sums("'" + directory + "' --by phase,family,work");
  double experts = 0.0, told = 0.0;
  for (const auto& [labels, seconds] : by_work) {
    if (labels.starts_with("F experts ")) experts += seconds;
    told += seconds;
  }
  EXPECT_NEAR(experts, by_phase.at("F experts"), 1e-9);
  EXPECT_NEAR(told, all, 1e-9 + 1e-6 * all);
  for (const char* labels :
       {"F experts -", "F experts route", "F experts products", "B experts combine", "F dense -"}) {
    EXPECT_TRUE(by_work.contains(labels)) << labels;
  }
  EXPECT_TRUE(sums("'" + directory + "/trace_rank0.json' --by step").contains("2"));
  EXPECT_NE(weft("trace sum '" + directory + "' --by lane,lane").messages.find("told apart by lane twice"),
            std::string::npos);
  const std::string text = weft("trace sum '" + directory + "' --by phase").output;
  EXPECT_TRUE(text.starts_with("phase")) << text;
}

// The table says what the traces say, and a later run reads it.
TEST_F(TraceCommand, WritesTheCostsOfARun) {
  put("run.toml", small_run);
  put("text.txt", std::string(20'000, 'w'));
  const std::string traced =
      "--run.directory=traced --checkpoint.at_end=false --profiling.first_step=2 --profiling.last_step=3";
  const auto trained = weft("train run.toml " + traced + " --run.steps=3");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  const auto written = weft("trace costs traced --output costs.toml");
  ASSERT_EQ(written.exit_code, 0) << written.messages;
  EXPECT_EQ(weft("trace costs traced").output, run("cat costs.toml").output);
  const auto simulated = [&](const std::string& arguments) {
    const auto result = weft("layout simulate run.toml --json " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    Json json = Json::parse(result.output)["variants"][0];
    for (const char* source : {"title", "costs", "certainty"}) json.erase(source);
    return json;
  };
  const Json measured = simulated("--costs traced");
  EXPECT_EQ(simulated("--costs costs.toml"), measured);
  // Without a layout, blocks would be dealt by these costs.
  const std::string layout = measured["layout"];
  EXPECT_EQ(simulated("--pipeline.costs=costs.toml --pipeline.layout='\"" + layout + "\"'"), measured);
  EXPECT_NE(simulated(""), measured);
  const auto again = weft(
      "train run.toml --run.directory=again --run.steps=2 --pipeline.costs=costs.toml --shard.residency=auto "
      "--shard.memory_budget='4 MiB' --pipeline.layout=auto");
  EXPECT_EQ(again.exit_code, 0) << again.messages;
  EXPECT_EQ(weft("trace costs again").exit_code, 2);
  // A run that gathers nothing does not say that gathers are free.
  const auto whole = weft(
      "train run.toml --run.directory=whole --shard.strategy=no_shard --run.steps=2 "
      "--profiling.first_step=2 --profiling.last_step=2");
  ASSERT_EQ(whole.exit_code, 0) << whole.messages;
  const std::string warned = weft("trace costs whole").messages;
  EXPECT_NE(warned.find("the run never gathered embedding, blocks.0.dense,"), std::string::npos) << warned;
  EXPECT_EQ(warned.find("experts"), std::string::npos) << "each rank has its own: " << warned;
  const auto refused = weft("layout simulate run.toml --costs whole");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("no UNSHARD of"), std::string::npos) << refused.messages;
  EXPECT_EQ(weft("layout simulate run.toml --costs whole --shard.strategy=no_shard").exit_code, 0);
  EXPECT_EQ(weft("trace costs nothing").exit_code, 2);
}

// The blocks are dealt by the costs of their segments: units of another layout, which the run never had, need none.
TEST_F(TraceCommand, CostsOfARunDealItsBlocksWhateverItsUnits) {
  put("run.toml", small_run);
  put("text.txt", std::string(20'000, 'w'));
  for (const std::string keys : {"--shard.replicate_below=1000", "--shard.wrap='\"blocks 2\"'"}) {
    const std::string run = "run.toml --model.layers='d e d e' --parallelism.pipeline=2 " + keys;
    const auto trained = weft("train " + run + " --run.steps=2 --run.directory=traced --checkpoint.at_end=false " +
                              "--profiling.first_step=2 --profiling.last_step=2");
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
    ASSERT_EQ(weft("trace costs traced --output costs.toml").exit_code, 0);
    std::string costs = read_whole_file((folder_ / "costs.toml").string());
    const std::string first = "\"blocks.0.mlp\" = { forward = ";
    const std::size_t at = costs.find(first);
    ASSERT_NE(at, std::string::npos) << costs;
    // More than all others, so that it is alone.
    put("costs.toml", costs.replace(at + first.size(), costs.find(',', at) - at - first.size(), "100.0"));
    const auto dealt = weft("layout show " + run + " --pipeline.costs=costs.toml --pipeline.layout=auto");
    EXPECT_EQ(dealt.exit_code, 0) << keys << dealt.messages;
    EXPECT_TRUE(dealt.output.starts_with("layout \"Ed|edeL\"")) << keys << dealt.output;
    std::filesystem::remove_all(folder_ / "traced");
  }
}

// A run that goes on keeps its traces. They are no measurements of its later part if that has other work.
TEST_F(TraceCommand, RefusesTheTracesOfOtherWork) {
  put("run.toml", small_run);
  put("text.txt", std::string(20'000, 'w'));
  const auto train = [&](const std::string& arguments) {
    const auto trained = weft("train run.toml --run.directory=traced " + arguments);
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  };
  train("--run.steps=2 --profiling.first_step=2 --profiling.last_step=2");
  train("--run.steps=3");
  EXPECT_EQ(weft("trace costs traced").exit_code, 0);
  EXPECT_EQ(weft("diagnose traced").exit_code, 0);
  EXPECT_EQ(weft("trace sum traced").exit_code, 0);
  train("--run.steps=4 --precision.compute=bfloat16");
  for (const char* command :
       {"trace costs traced", "trace sum traced", "diagnose traced", "layout simulate run.toml --costs traced"}) {
    const auto refused = weft(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_NE(refused.messages.find("was recorded with other work"), std::string::npos) << command << refused.messages;
  }
  EXPECT_EQ(weft("trace sum traced/trace_rank0.json").exit_code, 0) << "a file says what it is of";
}

// The rank in the file counts, so a copy would count a rank twice.
TEST_F(TraceCommand, RefusesTheTraceOfAnotherRank) {
  put("run.toml", small_run);
  put("text.txt", std::string(20'000, 'w'));
  const auto trained =
      weft("train run.toml --run.directory=traced --run.steps=2 --profiling.first_step=2 --profiling.last_step=2");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  std::filesystem::copy_file(folder_ / "traced/trace_rank0.json", folder_ / "traced/trace_rank1.json",
                             std::filesystem::copy_options::overwrite_existing);
  for (const char* command : {"trace sum traced", "trace costs traced", "diagnose traced"}) {
    const auto refused = weft(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_NE(refused.messages.find("trace_rank1.json is the trace of rank 0"), std::string::npos) << refused.messages;
  }
  std::filesystem::remove(folder_ / "traced/config.toml");
  EXPECT_EQ(weft("trace sum traced").exit_code, 2);
  std::filesystem::remove(folder_ / "traced/trace_rank1.json");
  EXPECT_EQ(weft("trace sum traced").exit_code, 0);
}

TEST_F(TraceCommand, RefusesWhatIsNoTrace) {
  put("run.toml", "x");
  std::filesystem::create_directory(folder_ / "empty");
  for (const char* words : {"run.toml", "empty", "missing.json", "empty --by phases", "run.toml --by", ""}) {
    const auto result = weft(std::string("trace sum ") + words);
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_FALSE(result.messages.empty());
  }
  put("no.sqlite",
      "this is no database, and long enough to be looked at as one: it has more than a hundred bytes in it");
  EXPECT_EQ(weft("trace sum no.sqlite").exit_code, 2);
}

#ifdef WEFT_HAVE_SQLITE
// Two processes; kernels queued inside ranges, inside nested ones, by a thread without ranges, and outside.
TEST_F(TraceCommand, AddsUpKernelsByTheActionThatQueuedThem) {
  const std::int64_t one = std::int64_t{7} << 24, two = std::int64_t{9} << 24;
  const auto range = [](std::int64_t begin, std::int64_t end, std::int64_t thread, int domain,
                        const std::string& text) {
    return fmt::format("INSERT INTO NVTX_EVENTS VALUES({}, {}, 59, '{}', {}, NULL, {});", begin, end, text, thread,
                       domain);
  };
  const auto call = [](std::int64_t begin, std::int64_t thread, int correlation) {
    return fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES({}, {}, {}, {});", begin, begin + 2, thread,
                       correlation);
  };
  const auto kernel = [](std::int64_t begin, std::int64_t nanoseconds, std::int64_t process, int correlation,
                         int name) {
    return fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES({}, {}, {}, {}, 7, {});", begin,
                       begin + nanoseconds, process, correlation, name);
  };
  std::string script =
      "CREATE TABLE StringIds(id INTEGER, value TEXT);"
      "INSERT INTO StringIds VALUES(1, 'gemm'), (2, 'norm'), (3, 'weft');"
      "CREATE TABLE NVTX_EVENTS(start INTEGER, \"end\" INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, "
      "textId INTEGER, domainId INTEGER);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME(start INTEGER, \"end\" INTEGER, globalTid INTEGER, correlationId "
      "INTEGER);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, \"end\" INTEGER, globalPid INTEGER, correlationId "
      "INTEGER, "
      "streamId INTEGER, shortName INTEGER);"
      "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET(start INTEGER, \"end\" INTEGER, globalPid INTEGER, correlationId "
      "INTEGER, "
      "streamId INTEGER, bytes INTEGER);";
  // Our domain is number 1 of the one process and 2 of the other; 1 is somebody else's there.
  script += fmt::format("INSERT INTO NVTX_EVENTS VALUES(0, NULL, 75, 'weft', {}, NULL, 1);", one + 5);
  script += fmt::format("INSERT INTO NVTX_EVENTS VALUES(0, NULL, 75, NULL, {}, 3, 2);", two + 6);
  script += fmt::format("INSERT INTO NVTX_EVENTS VALUES(0, NULL, 75, 'NCCL', {}, NULL, 1);", two + 6);
  script += range(100, 900, one + 5, 1, "step 2") + range(100, 300, one + 5, 1, "PP:0F blocks.0.mlp") +
            range(300, 500, one + 5, 1, "PP:0B blocks.0.mlp") + range(100, 500, two + 6, 2, "PP:1F blocks.1.experts") +
            range(120, 400, two + 6, 1, "ncclAllReduce") + range(410, 420, two + 6, 2, "route") +
            range(420, 440, two + 6, 2, "products") + range(600, 700, two + 6, 2, "products");
  script += call(110, one + 5, 1) + call(290, one + 5, 2) + call(310, one + 5, 3) + call(600, one + 5, 4) +
            call(950, one + 5, 5) + call(150, one + 8, 6) + call(150, two + 6, 1) + call(155, two + 6, 9) +
            call(415, two + 6, 10) + call(430, two + 6, 11) + call(450, two + 6, 12) + call(650, two + 6, 13);
  script += kernel(1000, 100, one, 1, 1) + kernel(1100, 20, one, 2, 2) + kernel(1200, 300, one, 3, 1) +
            kernel(1500, 7, one, 4, 2) + kernel(1600, 9, one, 5, 2) + kernel(1700, 11, one, 6, 2) +
            kernel(1000, 1000, two, 1, 1) + kernel(3000, 30, two, 10, 2) + kernel(3100, 50, two, 11, 1) +
            kernel(3200, 6, two, 12, 2) + kernel(3300, 2, two, 13, 2);
  script += fmt::format("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES(2000, 2004, {}, 9, 7, 64);", two);
  sqlite3* data = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ / "run.sqlite").c_str(), &data), SQLITE_OK);
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(data, script.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
  sqlite3_close(data);

  using Sums = std::map<std::string, double>;
  const auto near = [](const Sums& found, const Sums& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [labels, nanoseconds] : expected) {
      ASSERT_TRUE(found.contains(labels)) << labels;
      EXPECT_NEAR(found.at(labels), 1e-9 * nanoseconds, 1e-15) << labels;
    }
  };
  near(sums("run.sqlite"), {{"F dense", 120.0}, {"B dense", 300.0}, {"F experts", 1090.0}, {"other -", 29.0}});
  near(sums("run.sqlite --by name,kernel"), {{"PP:0F blocks.0.mlp gemm", 100.0},
                                             {"PP:0F blocks.0.mlp norm", 20.0},
                                             {"PP:0B blocks.0.mlp gemm", 300.0},
                                             {"PP:1F blocks.1.experts gemm", 1050.0},
                                             {"PP:1F blocks.1.experts norm", 36.0},
                                             {"products norm", 2.0},
                                             {"PP:1F blocks.1.experts fill", 4.0},
                                             {"step 2 norm", 7.0},
                                             {"outside norm", 20.0}});
  near(sums("run.sqlite --by family,work"),
       {{"dense -", 420.0}, {"experts -", 1010.0}, {"experts route", 30.0}, {"experts products", 50.0}, {"- -", 29.0}});
  near(sums("run.sqlite --by rank"), {{"0", 447.0}, {"1", 1092.0}});
}
#endif

}  // namespace
}  // namespace weft
