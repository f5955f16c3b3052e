// The runs that may start: one run in a directory, and all processes of a run or none.
#include "trainer/rank/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>
#include <thread>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/run/run_directory.h"

namespace weft {
namespace {

std::string launch_refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request) << error.what();
    return error.what();
  }
  return "accepted";
}

// Ranks that share a GPU would time each other, and the choice is remembered for runs that have it to themselves.
TEST(Launch, RanksThatShareAGpuTimeNoProducts) {
  Config config;
  EXPECT_TRUE(gpu_kernel_options(config).measured_products);
  config.run.ranks_per_device = 2;
  EXPECT_FALSE(gpu_kernel_options(config).measured_products);
}

TEST(Launch, AProcessThatIsNoRankIsToldHowRanksStart) {
  Config config;
  config.run.launch = LaunchKind::processes;
  config.parallelism.data_shard = 4;
  const std::string why = launch_refusal([&] { first_rank_of_process(config); });
  EXPECT_NE(why.find("weft launch --ranks 4 -- COMMAND"), std::string::npos) << why;
}

TEST(RunLock, ASecondHolderIsToldOfTheFirst) {
  const TemporaryFolder folder;
  const std::filesystem::path directory = folder.path() / "run";
  {
    const RunLock first(directory, "run.directory");
    EXPECT_TRUE(first.held());
    const std::string held = read_file(directory / run_lock_name);
    const std::string why = launch_refusal([&] { RunLock(directory, "run.directory"); });
    std::array<char, 256> host{};
    gethostname(host.data(), host.size() - 1);
    for (const std::string& part : {fmt::format("run.directory {} is in use", directory.string()),
                                    fmt::format("process {} on {} since ", getpid(), host.data())}) {
      EXPECT_NE(why.find(part), std::string::npos) << part << "\n" << why;
    }
    EXPECT_EQ(read_file(directory / run_lock_name), held);
  }
  EXPECT_EQ(launch_refusal([&] { RunLock(directory, "run.directory"); }), "accepted");
}

TEST(RunLock, WhatAKilledHolderLeavesIsNoObstacle) {
  const TemporaryFolder folder;
  std::array<int, 2> ready{};
  ASSERT_EQ(pipe(ready.data()), 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const RunLock lock(folder.path(), "run.directory");
    if (::write(ready[1], "x", 1) != 1) _exit(1);
    pause();
    _exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_NE(launch_refusal([&] { RunLock(folder.path(), "run.directory"); }).find(fmt::format("process {}", holder)),
            std::string::npos);
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  EXPECT_NE(read_file(folder.path() / run_lock_name).find(fmt::format("process {}", holder)), std::string::npos);
  EXPECT_EQ(launch_refusal([&] { RunLock(folder.path(), "run.directory"); }), "accepted");
  close(ready[0]);
  close(ready[1]);
}

// Ranks are threads that meet over files, as processes do. Each says what became of its request.
std::array<std::string, 3> outcomes(const TemporaryFolder& folder, const Admission& admit) {
  std::array<std::string, 3> said;
  std::array<std::thread, 3> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks[static_cast<std::size_t>(rank)] = std::thread([&, rank] {
      const auto rendezvous =
          make_rendezvous("file://" + (folder.path() / "meeting").string(), {.rank = rank, .world = 3});
      said[static_cast<std::size_t>(rank)] = launch_refusal([&] { admit_everywhere(*rendezvous, rank, admit); });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return said;
}

TEST(Admission, WhatRankZeroRefusesAllRanksRefuse) {
  int asked = 0;
  const auto refused = outcomes(TemporaryFolder(), [&] {
    ++asked;
    fail_request("in use");
  });
  EXPECT_EQ(refused, (std::array<std::string, 3>{"in use", "in use", "in use"}));
  EXPECT_EQ(asked, 1);
  const auto admitted = outcomes(TemporaryFolder(), [&] { ++asked; });
  EXPECT_EQ(admitted, (std::array<std::string, 3>{"accepted", "accepted", "accepted"}));
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace weft
