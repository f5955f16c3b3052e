// The program as it is used: ranks that are processes and exchange over NCCL, here all on one GPU. They learn what
// ranks that are threads learn, and what one rank on the CPU learns. When one of them dies the others do not wait for
// ever.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/cuda/schedule_layouts.h"
#include "tests/tools/program.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/config/config_schema.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

// As in training_test.cpp: NCCL adds the same float32 terms in yet another order.
constexpr double cuda_process_training_tolerance = 1e-5;

class ProcessTraining : public ProgramTest {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
    // Names of parametrised tests have slashes.
    folder_ = std::filesystem::temp_directory_path() / fmt::format("weft-processes-{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  static Config on_gpu(Config config) {
    config.run.device = DeviceKind::cuda;
    config.run.ranks_per_device = config.parallelism.world();
    return config;
  }
  // Writes run.toml for the processes of `config`.
  void put_processes(Config config) const {
    config = on_gpu(std::move(config));
    config.run.launch = LaunchKind::processes;
    config.run.directory = (folder_ / "run").string();
    put("run.toml", write_config(config, config_schema(), [](const ConfigKey&) { return std::string(); }));
  }
  // What metrics.jsonl holds so far.
  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / "run" / "metrics.jsonl");
    for (std::string text; std::getline(file, text);) {
      auto line = nlohmann::json::parse(text, nullptr, false);
      if (!line.is_discarded()) lines.push_back(std::move(line));  // the last one may be half written
    }
    return lines;
  }
  std::string content(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

class ProcessLayouts : public ProcessTraining, public ::testing::WithParamInterface<TinyLayout> {};

TEST_P(ProcessLayouts, LearnWhatThreadsAndTheCpuLearn) {
  Config config = config_of(GetParam());
  config.run.steps = 3;
  put_processes(config);
  const int ranks = config.parallelism.world();
  const auto result = weft(fmt::format("launch --ranks {0} --ranks-per-device {0} -- train run.toml", ranks));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.messages;
  const auto lines = metrics();
  ASSERT_EQ(lines.size(), 3u);
  const KeptRun threads = run_kept(on_gpu(config), {}, [](int) { return make_cuda_backend(0); });
  Config alone = tiny_config(GetParam().layers);
  alone.run.steps = 3;
  const KeptRun cpu = run_kept(alone);
  const auto expect_close = [](double value, double expected, const char* what) {
    EXPECT_NEAR(value, expected, cuda_process_training_tolerance * expected) << what;
  };
  for (std::size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(fmt::format("step {}", i + 1));
    const double loss = lines[i].at("loss").get<double>(), norm = lines[i].at("grad_norm").get<double>();
    expect_close(loss, threads.steps[i].loss, "loss of threads");
    expect_close(loss, cpu.steps[i].loss, "loss of the CPU");
    expect_close(norm, threads.steps[i].gradient_norm, "norm of threads");
    expect_close(norm, cpu.steps[i].gradient_norm, "norm of the CPU");
    // The same list of actions: what threads send each other, processes do.
    const auto expected = nlohmann::json::parse(to_json(threads.steps[i]));
    EXPECT_EQ(lines[i].at("communication"), expected.at("communication"));
    EXPECT_EQ(lines[i].at("memory"), expected.at("memory"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ProcessLayouts,
    ::testing::Values(TinyLayout{.name = "pp2", .degrees = {.pipeline = 2}},
                      TinyLayout{.name = "tp2", .degrees = {.tensor = 2}},
                      TinyLayout{.name = "shard2", .degrees = {.data_shard = 2}},
                      TinyLayout{.name = "ep2", .layers = "e*4", .degrees = {.data_shard = 2, .expert = 2}},
                      TinyLayout{.name = "pp2_tp2", .degrees = {.pipeline = 2, .tensor = 2}},
                      TinyLayout{
                          .name = "mixed_shard4_ep2", .layers = "d e d e", .degrees = {.data_shard = 4, .expert = 2}}),
    [](const auto& instance) { return instance.param.name; });

// Messages between stages over NCCL, on one GPU too. A kernel that waits for a message must hold up neither those
// behind it nor the host. In each schedule that parts backwards or has several stages a rank, that would be the end.
class ProcessSchedules : public ProcessTraining, public ::testing::WithParamInterface<TinyLayout> {};

TEST_P(ProcessSchedules, LearnWhatOneRankLearns) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  config.run.communication_timeout_seconds = 20;
  put_processes(config);
  const auto result =
      weft(fmt::format("launch --ranks {0} --ranks-per-device {0} -- train run.toml", config.parallelism.world()));
  ASSERT_EQ(result.exit_code, 0) << result.output << result.messages;
  const auto lines = metrics();
  Config alone = config_of({.layers = GetParam().layers, .tied = GetParam().tied});
  alone.run.steps = config.run.steps;
  const KeptRun cpu = run_kept(alone);
  ASSERT_EQ(lines.size(), cpu.steps.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(fmt::format("step {}", i + 1));
    const double loss = cpu.steps[i].loss, norm = cpu.steps[i].gradient_norm;
    EXPECT_NEAR(lines[i].at("loss").get<double>(), loss, cuda_process_training_tolerance * loss);
    EXPECT_NEAR(lines[i].at("grad_norm").get<double>(), norm, cuda_process_training_tolerance * norm);
  }
}

// Of two ranks: more processes on one GPU take seconds a step.
INSTANTIATE_TEST_SUITE_P(Schedules, ProcessSchedules, ::testing::ValuesIn([] {
                           auto layouts = schedule_layouts();
                           std::erase_if(layouts, [](const TinyLayout& layout) { return layout.degrees.world() > 2; });
                           return layouts;
                         }()),
                         [](const auto& instance) { return instance.param.name; });

// A process that sees one GPU may have it to itself. If it has not, NCCL says so, and the message tells the way out.
TEST_F(ProcessTraining, TwoOnOneGpuAreRefusedUnlessTheyMayShare) {
  if (cuda_devices() > 1) GTEST_SKIP() << "needs a machine with one GPU";
  put_processes(config_of({.degrees = {.data_shard = 2}}));
  const auto result = weft("launch --ranks 2 -- train run.toml --run.ranks_per_device=1");
  EXPECT_EQ(result.exit_code, 3) << result.output << result.messages;
  const std::string all = result.output + result.messages;
  EXPECT_NE(all.find("if these ranks see the same GPU: 2 ranks on this machine at ranks_per_device 1 need 2 GPUs, but "
                     "it shows 1; for a trial set ranks_per_device 2"),
            std::string::npos)
      << all;
}

// Where gathered parameters lie decides nothing but how they travel: a gather adds nothing.
TEST_F(ProcessTraining, RegisteredBuffersChangeNoBit) {
  Config config =
      config_of({.layers = "d e", .degrees = {.data_shard = 2, .expert = 2}, .residency = "reshard_after_use"});
  config.run.steps = 3;
  std::vector<std::vector<nlohmann::json>> runs;
  for (const bool registered : {false, true}) {
    config.run.registered_buffers = registered;
    put_processes(config);
    const auto result = weft("launch --ranks 2 --ranks-per-device 2 -- train run.toml");
    ASSERT_EQ(result.exit_code, 0) << result.output << result.messages;
    runs.push_back(metrics());
    ASSERT_EQ(runs.back().size(), 3u);
    std::filesystem::remove_all(folder_ / "run");
  }
  for (std::size_t i = 0; i < 3; ++i) {
    for (const char* what : {"loss", "grad_norm"}) EXPECT_EQ(runs[0][i].at(what), runs[1][i].at(what)) << what;
  }
}

// A rank dies during the run, without a word. The ranks are started one by one here: weft launch would end the others
// itself, before they find out.
class ProcessFailure : public ProcessTraining {
 protected:
  static constexpr int timeout_seconds = 5;

  void TearDown() override {
    for (const pid_t rank : ranks_) {
      if (rank <= 0) continue;
      kill(rank, SIGKILL);
      waitpid(rank, nullptr, 0);
    }
    ProcessTraining::TearDown();
  }
  // A run without end.
  void put_long_run(const Degrees& degrees) const {
    Config config = config_of({.degrees = degrees});
    config.run.steps = 1'000'000;
    config.run.communication_timeout_seconds = timeout_seconds;
    put_processes(config);
  }
  void start_ranks(int world) {
    const std::string program = weft_program(), meeting = "WEFT_RENDEZVOUS=file://" + (folder_ / "meeting").string();
    for (int rank = 0; rank < world; ++rank) {
      const std::string log = (folder_ / fmt::format("log{}", rank)).string();
      const std::string command = fmt::format(
          "cd '{}' && RANK={} WORLD_SIZE={} LOCAL_RANK={} LOCAL_WORLD_SIZE={} {} exec '{}' train run.toml "
          ">'{}' 2>&1 </dev/null",
          folder_.string(), rank, world, rank, world, meeting, program, log);
      const pid_t process = fork();
      if (process == 0) {
        execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
        _exit(127);
      }
      ranks_.push_back(process);
    }
  }
  bool wait_for_steps(std::size_t count) const {
    for (const auto begin = Clock::now(); Clock::now() - begin < seconds(120);) {
      if (metrics().size() >= count) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  // How `rank` ended, or nothing when it still runs after `patience`.
  std::optional<int> status_of(std::size_t rank, seconds patience) {
    int status = 0;
    for (const auto begin = Clock::now(); Clock::now() - begin < patience;) {
      if (waitpid(ranks_[rank], &status, WNOHANG) > 0) {
        ranks_[rank] = -1;
        return status;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return std::nullopt;
  }

  std::vector<pid_t> ranks_;
};

TEST_F(ProcessFailure, AKilledRankEndsAllNamingActionAndGroup) {
  const std::pair<Degrees, std::vector<std::string>> cases[] = {
      {{.data_shard = 2}, {"group dp_shard", "group world"}},
      {{.pipeline = 2}, {"group pp", "group world"}},
      {{.pipeline = 2, .tensor = 2}, {"group pp", "group tp", "group world"}},
  };
  for (const auto& [degrees, groups] : cases) {
    SCOPED_TRACE(groups.front());
    std::filesystem::remove_all(folder_ / "run");
    std::filesystem::remove_all(folder_ / "meeting");
    ranks_.clear();
    put_long_run(degrees);
    start_ranks(degrees.world());
    ASSERT_TRUE(wait_for_steps(3)) << content("log0");
    const std::size_t victim = ranks_.size() - 1;
    kill(ranks_[victim], SIGKILL);
    const auto begin = Clock::now();
    ASSERT_TRUE(status_of(victim, seconds(10)));
    for (std::size_t rank = 0; rank < victim; ++rank) {
      SCOPED_TRACE(fmt::format("rank {}", rank));
      // The watch looks every 50 ms and then aborts NCCL; the rest is room for a process to end with its GPU.
      const auto status = status_of(rank, seconds(timeout_seconds + 25));
      const std::string log = content(fmt::format("log{}", rank));
      ASSERT_TRUE(status) << "still runs: " << log;
      EXPECT_TRUE(WIFEXITED(*status) && WEXITSTATUS(*status) != 0) << *status;
      EXPECT_NE(log.find(fmt::format("rank {}: in ", rank)), std::string::npos) << log;
      EXPECT_TRUE(std::ranges::any_of(groups, [&](const auto& group) { return log.find(group) != std::string::npos; }))
          << log;
    }
    fmt::print("{} and {}: all had ended {:.1f} s after the kill, at a timeout of {} s\n{}\n", groups.front(),
               groups.back(), std::chrono::duration<double>(Clock::now() - begin).count(), timeout_seconds,
               content("log0"));
  }
}

TEST_F(ProcessFailure, TheLauncherEndsTheOthersOfAKilledRank) {
  put_long_run({.data_shard = 2});
  const pid_t launcher = fork();
  if (launcher == 0) {
    const std::string command =
        fmt::format("cd '{}' && exec '{}' launch --ranks 2 -- train run.toml >log 2>&1 </dev/null", folder_.string(),
                    weft_program());
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  ranks_.push_back(launcher);
  ASSERT_TRUE(wait_for_steps(3)) << content("log");
  pid_t victim = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream status(entry.path() / "stat");
    std::string number, name, state;
    pid_t parent = 0;
    if (status >> number >> name >> state >> parent && parent == launcher) victim = std::max(victim, std::stoi(number));
  }
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const auto status = status_of(0, seconds(20));
  ASSERT_TRUE(status) << content("log");
  EXPECT_EQ(WEXITSTATUS(*status), 128 + SIGKILL);
  EXPECT_NE(content("log").find("was ended by signal 9"), std::string::npos) << content("log");
}

}  // namespace
}  // namespace weft
