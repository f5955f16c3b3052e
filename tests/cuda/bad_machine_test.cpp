// Machines on which a run on GPUs cannot go well, and runs that go wrong there. All ranks end, and the error says what
// was asked for, what was found and what to do. Needs the emulator, which can be any machine.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <sstream>

#include "parallel/runtime/error.h"
#include "parallel/runtime/staging.h"
#include "tests/cuda_emulator/machine.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/config/config_schema.h"
#include "trainer/run/console.h"
#include "trainer/run/train.h"

namespace weft {
namespace {

using cuda_emulator::Machine;
using cuda_emulator::MachineConfig;

Config on_gpu(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = config.parallelism.world();
  return config;
}

std::string failure_of(ErrorKind kind, const std::function<void()>& act) {
  try {
    act();
    ADD_FAILURE() << "nothing fails";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return {};
}

class BadMachine : public ::testing::Test {
 protected:
  void TearDown() override { Machine::instance().configure({}); }
};

struct Refusal {
  MachineConfig machine;
  std::string reason;
};

// `weft train` says so before it writes anything.
TEST_F(BadMachine, WithoutAGpuATrainingEndsBeforeItBegins) {
  static_assert(CUDART_VERSION == 13000, "the words below name this version");
  const Refusal refusals[] = {
      {{.driver = 0}, "no NVIDIA driver is installed"},
      {{.driver = 12080}, "the driver supports CUDA 12.8, but this build needs 13.0"},
      {{.devices = 0}, "the driver sees no GPU"},
  };
  for (const auto& [machine, reason] : refusals) {
    Machine::instance().configure(machine);
    EXPECT_EQ(why_no_cuda(), reason);
    EXPECT_EQ(failure_of(ErrorKind::request, [] { make_cuda_backend(0); }), "device cuda cannot be used: " + reason);
    Config config = on_gpu({.degrees = {.data_shard = 2}});
    const auto folder = std::filesystem::temp_directory_path() / fmt::format("weft-bad-machine-{}", getpid());
    config.run.directory = folder.string();
    const auto no_comment = [](const ConfigKey&) { return std::string(); };
    const ResolvedConfig resolved = read_config_text(write_config(config, config_schema(), no_comment), "run.toml");
    std::ostringstream out;
    Console console(out, false);
    EXPECT_EQ(failure_of(ErrorKind::request,
                         [&] {
                           train(resolved, {"weft train run.toml", "weft"}, console);
                         }),
              "run.device is \"cuda\", which cannot be used here: " + reason);
    EXPECT_EQ(out.str(), "");
    EXPECT_FALSE(std::filesystem::exists(folder));
  }
}

TEST_F(BadMachine, AGpuThatIsNotThereIsNamed) {
  Machine::instance().configure({.devices = 2});
  for (const int index : {2, 7, -1}) {
    const std::string expected = fmt::format("GPU {} was asked for, but this machine shows 2", index);
    EXPECT_EQ(failure_of(ErrorKind::request, [&] { make_cuda_backend(index); }), expected);
    // On one rank of two: the other ends too.
    const std::string message = failure_of(ErrorKind::request, [&] {
      run_steps(on_gpu({.degrees = {.data_shard = 2}}), {},
                [&](int rank) { return make_cuda_backend(rank == 1 ? index : 0); });
    });
    EXPECT_EQ(message, "rank 1: " + expected);
  }
}

// Processes of one machine, more than it has GPUs; nobody said that they may share.
TEST_F(BadMachine, MoreProcessesThanGpusAreRefusedWithAWayOut) {
  Machine::instance().configure({.devices = 2});
  const std::pair<const char*, const char*> place[] = {
      {"RANK", "0"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}};
  for (const auto& [name, value] : place) setenv(name, value, 1);
  Config config = on_gpu({.degrees = {.data_shard = 4}});
  config.run.launch = LaunchKind::processes;
  config.run.ranks_per_device = 1;
  EXPECT_EQ(
      failure_of(ErrorKind::request, [&] { run_steps(config); }),
      "4 ranks on this machine at ranks_per_device 1 need 4 GPUs, but it shows 2; for a trial set ranks_per_device "
      "2");
  config.parallelism.data_shard = 2;
  EXPECT_EQ(
      failure_of(ErrorKind::request, [&] { run_steps(config); }),
      "4 processes were started, but the configuration has 2 ranks = pipeline 1 x data_replicate 1 x data_shard 2 x "
      "context 1 x tensor 1");
  for (const auto& [name, value] : place) unsetenv(name);
}

// Slurm's --gpus-per-task=1 shows each process its own GPU alone: the other process is waited for.
TEST_F(BadMachine, AProcessThatSeesOneGpuTakesIt) {
  Machine::instance().configure({.devices = 1});
  const auto meeting = std::filesystem::temp_directory_path() / fmt::format("weft-one-gpu-{}", getpid());
  std::filesystem::create_directories(meeting);
  const std::string address = "file://" + (meeting / "run").string();
  const std::pair<const char*, const char*> place[] = {{"SLURM_PROCID", "1"},
                                                       {"SLURM_NTASKS", "2"},
                                                       {"SLURM_LOCALID", "1"},
                                                       {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                                       {"SLURM_STEP_ID", "0"},
                                                       {"SLURM_JOB_ID", "1"},
                                                       {"WEFT_RENDEZVOUS", address.c_str()}};
  for (const auto& [name, value] : place) setenv(name, value, 1);
  Config config = on_gpu({.degrees = {.data_shard = 2}});
  config.run.launch = LaunchKind::processes;
  config.run.ranks_per_device = 1;
  config.run.communication_timeout_seconds = 1;
  const std::string message = failure_of(ErrorKind::failure, [&] { run_steps(config); });
  EXPECT_NE(message.find("rank 0"), std::string::npos) << message;
  for (const auto& [name, value] : place) unsetenv(name);
  std::filesystem::remove_all(meeting);
}

class PoisonOnGpu : public ::testing::TestWithParam<TinyLayout> {
 protected:
  void TearDown() override { Machine::instance().configure({}); }
};

// One weight of the last rank becomes a NaN after the first step. Every weight of the model in turn would take minutes
// here, and failure_test.cpp does it on the CPU.
TEST_P(PoisonOnGpu, ANanInOneWeightEndsAllRanksNamingAParameter) {
  const Config config = on_gpu(GetParam());
  const int last = config.parallelism.world() - 1;
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    EXPECT_EQ(metrics.step, 1) << "the run goes on";
    if (run.rank() != last) return;
    const auto units = run.stages().planned_units();
    // The last unit's first rows: not the embedding's, of which not every row is read.
    const OwnedRows rows = run.stages().owned_rows(units.size() - 1).front();
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    write<float>(run.stream(), {&nan, 1}, rows.values.reshaped(rows.values.size(), 1).rows_from(0, 1));
  };
  const std::string message =
      failure_of(ErrorKind::failure, [&] { run_steps(config, observer, [](int) { return make_cuda_backend(0); }); });
  EXPECT_TRUE(message.starts_with("rank ")) << message;
  EXPECT_NE(message.find(": in step 2 the gradient of "), std::string::npos) << message;
  EXPECT_NE(message.find(" holds a NaN or an infinity on this rank, before its reduction"), std::string::npos)
      << message;
  EXPECT_EQ(Machine::instance().reports(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Layouts, PoisonOnGpu,
                         ::testing::Values(TinyLayout{.name = "alone", .layers = "d"},
                                           TinyLayout{.name = "shard2", .layers = "d", .degrees = {.data_shard = 2}},
                                           TinyLayout{
                                               .name = "pp2_experts", .layers = "d e", .degrees = {.pipeline = 2}}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
