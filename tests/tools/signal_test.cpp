// Signals to `weft train`, and the state that it leaves behind.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "tests/tools/started_run.h"

namespace weft {
namespace {

class SignalledRun : public StartedRun {
 protected:
  // More steps than any test waits for.
  pid_t start_long(const std::string& directory) const {
    return start({"--run.steps=1000000", "--run.directory=" + directory});
  }
};

TEST_F(SignalledRun, SavesAndLeavesOrGoesOn) {
  for (const int leave : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    const std::string directory = "signal" + std::to_string(leave);
    const pid_t process = start_long(directory);
    ASSERT_TRUE(comes_true([&] { return steps_taken(directory) > 2; })) << log();
    EXPECT_TRUE(saved(directory).empty());
    kill(process, SIGUSR2);
    ASSERT_TRUE(comes_true([&] { return saved(directory).size() == 1; })) << log();
    const std::int64_t asked_at = saved(directory).front().step;
    ASSERT_TRUE(comes_true([&] { return steps_taken(directory) > asked_at + 2; })) << "it goes on";
    kill(process, leave);
    ASSERT_EQ(wait_for(process), 75) << log();
    const std::int64_t left_at = saved(directory).front().step;
    const std::string last = fmt::format(
        "\nstopped by SIG{} after step {} of 1000000, saved as {}/checkpoints/{}; the same command goes on\n",
        sigabbrev_np(leave), left_at, directory, checkpoint_name(left_at));
    EXPECT_TRUE(log().ends_with(last)) << log().substr(log().size() - 300);
    EXPECT_EQ(steps_taken(directory), left_at) << "it leaves behind the step that was saved";
    EXPECT_GT(left_at, asked_at);

    // The same command goes on behind it, and its metrics behind those of before.
    const std::string more = std::to_string(left_at + 2);
    ASSERT_EQ(wait_for(start({"--run.steps=" + more, "--run.directory=" + directory, "--checkpoint.interval=1000"})), 0)
        << log();
    EXPECT_EQ(saved(directory).front().step, left_at + 2);
    std::ifstream metrics(folder_ / directory / "metrics.jsonl");
    std::int64_t step = 0;
    for (std::string line; std::getline(metrics, line);) EXPECT_EQ(nlohmann::json::parse(line)["step"], ++step);
    EXPECT_EQ(step, left_at + 2);
  }
}

TEST_F(SignalledRun, KeepsWhatItHasRecorded) {
  const pid_t process = start(
      {"--run.steps=1000000", "--run.directory=recorded", "--profiling.first_step=2", "--profiling.last_step=1000000"});
  ASSERT_TRUE(comes_true([&] { return steps_taken("recorded") > 3; })) << log();
  kill(process, SIGTERM);
  ASSERT_EQ(wait_for(process), 75) << log();
  for (int rank = 0; rank < 4; ++rank) {
    std::ifstream file(folder_ / fmt::format("recorded/trace_rank{}.json", rank));
    const nlohmann::json trace = nlohmann::json::parse(file);
    std::set<std::int64_t> steps;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      if (event["args"].contains("step")) steps.insert(event["args"]["step"].get<std::int64_t>());
    }
    ASSERT_FALSE(steps.empty());
    EXPECT_EQ(*steps.begin(), 2);
    EXPECT_EQ(*steps.rbegin(), saved("recorded").front().step) << "the step that was saved is the last";
  }
}

// Metrics of steps that no checkpoint has behind it are taken again.
TEST_F(SignalledRun, MetricsGoBackToTheCheckpoint) {
  ASSERT_EQ(wait_for(start({"--run.steps=4", "--checkpoint.interval=4", "--run.directory=out"})), 0) << log();
  std::ofstream(folder_ / "out" / "metrics.jsonl", std::ios::app) << "{\"step\": 5, \"loss\": 1.0}\n{\"step\": 6, \"lo";
  ASSERT_EQ(wait_for(start({"--run.steps=7", "--checkpoint.interval=4", "--run.directory=out"})), 0) << log();
  std::ifstream metrics(folder_ / "out" / "metrics.jsonl");
  std::int64_t step = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto entry = nlohmann::json::parse(line);
    EXPECT_EQ(entry["step"], ++step);
    EXPECT_TRUE(entry.contains("tokens")) << line;
  }
  EXPECT_EQ(step, 7);
}

// There is nothing to save, and a start may last: of 60 moments in it, none keeps the signal.
TEST_F(SignalledRun, AlwaysEndsAStart) {
  std::mt19937 random(3);
  int before_first_step = 0;
  for (int i = 0; i < 60; ++i) {
    const std::string directory = "start" + std::to_string(i);
    const int signal = std::array{SIGTERM, SIGINT, SIGHUP}[static_cast<std::size_t>(i % 3)];
    const pid_t process = start_long(directory);
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    kill(process, signal);
    const int code = wait_for(process);
    if (code == 75) {
      EXPECT_EQ(saved(directory).size(), 1u);
      continue;
    }
    EXPECT_TRUE(code == 128 + signal || code == -signal) << code;
    EXPECT_TRUE(saved(directory).empty());
    ++before_first_step;
  }
  EXPECT_GT(before_first_step, 5);
}

// Before the first step too: the plan of many blocks takes long, and what a run warns of comes before it.
TEST_F(SignalledRun, SavesWhereAskedInTheSetUp) {
  const pid_t process = start({"--run.steps=1", "--run.directory=out", "--checkpoint.at_end=false",
                               "--model.layers=d*20 e*60", "--hardware.memory=1GiB"});
  ASSERT_TRUE(comes_true([&] { return log().find("weft: warning: ") != std::string::npos; }));
  kill(process, SIGUSR2);
  EXPECT_EQ(wait_for(process), 0) << log();
  EXPECT_EQ(saved("out").size(), 1u) << log();
}

// nohup, and a shell's background.
TEST_F(SignalledRun, IgnoredSignalsStayIgnored) {
  const pid_t process = start({"--run.steps=1000000", "--run.directory=out"}, SIG_IGN);
  ASSERT_TRUE(comes_true([&] { return steps_taken("out") > 1; })) << log();
  kill(process, SIGHUP);
  kill(process, SIGINT);
  const std::int64_t then = steps_taken("out");
  EXPECT_TRUE(comes_true([&] { return steps_taken("out") > then + 3; })) << log();
  kill(process, SIGTERM);
  EXPECT_EQ(wait_for(process), 75) << log();
}

// Whoever asks twice does not want to wait for the save.
TEST_F(SignalledRun, ASecondSignalEndsItAtOnce) {
  const pid_t process = start_long("out");
  ASSERT_TRUE(comes_true([&] { return steps_taken("out") > 1; })) << log();
  // Stopped, it takes both when it goes on, before it has had time to save.
  kill(process, SIGSTOP);
  kill(process, SIGTERM);
  kill(process, SIGUSR1);
  kill(process, SIGCONT);
  const int code = wait_for(process);
  EXPECT_TRUE(code == 128 + SIGTERM || code == 128 + SIGUSR1) << code;
}

}  // namespace
}  // namespace weft
