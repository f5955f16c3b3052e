// Ranks that meet over MPI, that do not come, or do not belong: processes under mpirun, each a rendezvous_rank.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

namespace weft {
namespace {

constexpr int world = 3;

class MpiRendezvousTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(WEFT_MPIRUN)) GTEST_SKIP() << "there is no " << WEFT_MPIRUN << " to start ranks";
    folder_ = std::filesystem::temp_directory_path() / fmt::format("weft-mpi-{}", getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // What each rank left. mpirun's own code is not looked at: a rank that failed does not finalise MPI.
  std::vector<std::string> run(const std::string& scenario) {
    const std::string log = folder_ / "log";
    // Open MPI asks to be told that root and more ranks than cores are meant.
    const std::string text = fmt::format("'{}' --version", WEFT_MPIRUN);
    const bool open_mpi = std::system((text + " | grep -q 'Open MPI\\|OpenRTE'").c_str()) == 0;
    const std::string options = open_mpi ? "--allow-run-as-root --oversubscribe" : "";
    const auto begin = std::chrono::steady_clock::now();
    static_cast<void>(
        std::system(fmt::format("timeout -k 1 60 '{}' {} -np {} '{}' '{}' '{}' > '{}' 2>&1 < /dev/null", WEFT_MPIRUN,
                                options, world, WEFT_RENDEZVOUS_RANK, scenario, folder_.string(), log)
                        .c_str()));
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::vector<std::string> outcomes;
    for (int rank = 0; rank < world; ++rank) {
      outcomes.push_back(read(folder_ / fmt::format("outcome.{}", rank)));
      EXPECT_NE(outcomes.back(), "") << "rank " << rank << "\n" << read(log);
    }
    return outcomes;
  }
  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void expect_says(const std::string& outcome, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(outcome.find(part), std::string::npos) << part << "\nin " << outcome;
  }

  std::filesystem::path folder_;
  double seconds_ = 0;
};

TEST_F(MpiRendezvousTest, AllGetWhatRankZeroBringsEachTime) {
  const std::string expected = "got " + std::string("a\0b\n c", 6) + std::string(60'000, 'x');
  for (const std::string& outcome : run("meet")) EXPECT_EQ(outcome, expected);
}

TEST_F(MpiRendezvousTest, NobodyLeavesBeforeRankZeroHasCome) {
  for (const std::string& outcome : run("late")) EXPECT_EQ(outcome, "got yes");
}

TEST_F(MpiRendezvousTest, WhoHasNotComeIsNamedToAll) {
  const auto outcomes = run("missing");
  for (const int rank : {0, 1})
    expect_says(outcomes[rank], {"failure", "4000 ms", "\"start\"", "rank 2, which did not"});
  EXPECT_LT(seconds_, 20.0);
}

TEST_F(MpiRendezvousTest, WithoutRankZeroTheOthersSayWhatTheyWaitedFor) {
  const auto outcomes = run("without 0");
  for (const int rank : {1, 2}) expect_says(outcomes[rank], {"failure", "\"start\"", "rank 0, which did not answer"});
}

// MPI's own initialisation waits for all, and has no timeout.
TEST_F(MpiRendezvousTest, ARankThatNeverReachesMpiEndsTheOthers) {
  const auto outcomes = run("uninitialised");
  for (const int rank : {0, 1}) expect_says(outcomes[rank], {"failure", "not ready within 1000 ms"});
  EXPECT_LT(seconds_, 20.0);
}

TEST_F(MpiRendezvousTest, RanksAtDifferentMeetingsEnd) {
  const auto outcomes = run("elsewhere");
  for (const std::string& outcome : outcomes) expect_says(outcome, {"failure", "rank 2 is at", "groups", "start"});
}

TEST_F(MpiRendezvousTest, AnotherNumberOfRanksIsARequestError) {
  const auto outcomes = run("miscounted");
  for (int rank = 0; rank < world; ++rank) {
    expect_says(outcomes[rank], {"request", fmt::format("rank {} of 3", rank), fmt::format("rank {} of 4", rank)});
  }
}

TEST_F(MpiRendezvousTest, MpiIsHadOnceAProcess) {
  for (const std::string& outcome : run("twice")) expect_says(outcome, {"request", "initialised MPI before"});
}

}  // namespace
}  // namespace weft
