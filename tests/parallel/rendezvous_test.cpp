// Ranks that come, come late, do not come, or do not belong: over TCP on loopback and over files. Ranks are threads.
#include "parallel/comm/rendezvous.h"

#include <filesystem>
#include <fstream>

#include "tests/parallel/meeting_ranks.h"

namespace weft {
namespace {

using std::chrono::milliseconds;

// Each test with either kind of address.
class RendezvousTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    folder_ = std::filesystem::temp_directory_path() /
              ("weft-meeting-" + test.substr(0, test.find('/')) + "-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    address_ = GetParam() ? "tcp://127.0.0.1:" + std::to_string(free_port()) : "file://" + (folder_ / "meet").string();
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Rendezvous> of(int rank, int world = 5, milliseconds timeout = milliseconds(20'000),
                                 const std::string& run = "test") const {
    return make_rendezvous(address_, {.rank = rank, .world = world, .run = run, .timeout = timeout});
  }

  std::filesystem::path folder_;
  std::string address_;
};
INSTANTIATE_TEST_SUITE_P(Ways, RendezvousTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "Tcp" : "File"; });

TEST_P(RendezvousTest, AllGetWhatRankZeroBringsEachTime) {
  const std::string large(60'000, 'x');
  const auto outcomes = run({0, 1, 2, 3, 4}, [&](int rank) {
    const auto meeting = of(rank);
    const std::string id = meeting->meet("id", rank == 0 ? std::string("a\0b\n c", 6) : "not this");
    const std::string nothing = meeting->meet("start");
    return id + nothing + meeting->meet("large", rank == 0 ? large : "");
  });
  for (const MeetingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(outcome.got, std::string("a\0b\n c", 6) + large);
  }
}

TEST_P(RendezvousTest, NobodyLeavesBeforeRankZeroHasCome) {
  const auto outcomes = run({0, 1, 2, 3, 4}, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(milliseconds(400));
    return of(rank)->meet("start", "yes");
  });
  for (const MeetingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.got, "yes") << outcome.error;
    EXPECT_GE(outcome.seconds, 0.4);
  }
}

TEST_P(RendezvousTest, WhoHasNotComeIsNamedToAll) {
  const auto outcomes = run({0, 1, 3}, [&](int rank) { return of(rank, 5, milliseconds(500))->meet("start"); });
  for (const MeetingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.kind, ErrorKind::failure);
    expect_says(outcome, {"500 ms", "\"start\"", "ranks 2, 4", "did not come"});
    EXPECT_LT(outcome.seconds, 3.0);
  }
}

TEST_P(RendezvousTest, WithoutRankZeroTheOthersSayWhatTheyWaitedFor) {
  const auto outcomes = run({1, 2}, [&](int rank) { return of(rank, 3, milliseconds(300))->meet("start"); });
  for (const MeetingOutcome& outcome : outcomes) {
    expect_says(outcome, {"300 ms", "rank 0", GetParam() ? "Connection refused" : "did not come"});
    EXPECT_LT(outcome.seconds, 2.0);
  }
}

TEST_P(RendezvousTest, ARankOfAnotherRunStaysOutside) {
  const auto outcomes = run({0, 1, 2}, [&](int rank) {
    if (rank == 2) return of(1, 2, milliseconds(400), "yesterday")->meet("start");
    // The stranger comes first.
    if (rank == 1) std::this_thread::sleep_for(milliseconds(200));
    return of(rank, 2)->meet("start", "yes");
  });
  EXPECT_EQ(outcomes[0].got, "yes") << outcomes[0].error;
  EXPECT_EQ(outcomes[1].got, "yes") << outcomes[1].error;
  EXPECT_NE(outcomes[2].error, "");
}

TEST_P(RendezvousTest, RanksAtDifferentMeetingsEnd) {
  const auto outcomes =
      run({0, 1}, [&](int rank) { return of(rank, 2, milliseconds(500))->meet(rank == 0 ? "groups" : "start"); });
  for (const MeetingOutcome& outcome : outcomes) expect_says(outcome, {"rank 1", "groups"});
}

TEST(TcpRendezvous, AWrongNumberOfRanksEndsThatRankAtOnce) {
  const std::string address = "tcp://localhost:" + std::to_string(free_port());
  const auto outcomes = run({0, 1, 2}, [&](int rank) {
    return make_rendezvous(address, {.rank = rank, .world = rank == 2 ? 4 : 3, .timeout = milliseconds(1000)})
        ->meet("start");
  });
  for (const MeetingOutcome& outcome : outcomes) expect_says(outcome, {"rank 2 counts 4 ranks and rank 0 counts 3"});
  for (const int rank : {0, 1}) expect_says(outcomes[rank], {"1000 ms", "rank 2, which did not come"});
  EXPECT_EQ(outcomes[2].kind, ErrorKind::request);
  EXPECT_LT(outcomes[2].seconds, 0.9);
}

TEST(TcpRendezvous, OfTwoOfOneRankTheSecondEnds) {
  const std::string address = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto outcomes = run({0, 1, 1, 2}, [&](int rank) {
    if (rank == 2) std::this_thread::sleep_for(milliseconds(300));
    return make_rendezvous(address, {.rank = rank, .world = 3, .timeout = milliseconds(5000)})->meet("start", "yes");
  });
  const MeetingOutcome& second = outcomes[outcomes[1].error.empty() ? 2 : 1];
  expect_says(second, {"two processes call themselves rank 1"});
  EXPECT_EQ(second.kind, ErrorKind::request);
  for (const MeetingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.got, &outcome == &second ? "" : "yes") << outcome.error;
  }
}

TEST(TcpRendezvous, ATakenPortIsARequestError) {
  const Connection taken(0, true);
  try {
    make_rendezvous("tcp://127.0.0.1:" + std::to_string(taken.own_port), {.rank = 0, .world = 2});
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("in use"), std::string::npos) << error.what();
  }
}

TEST(TcpRendezvous, StrayAndSilentClientsDoNotDisturb) {
  const int port = free_port();
  const std::string address = "tcp://127.0.0.1:" + std::to_string(port);
  const auto host = make_rendezvous(address, {.rank = 0, .world = 2, .timeout = milliseconds(5000)});
  const Connection silent(port, false), stray(port, false);
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(stray.descriptor, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  const auto outcomes = run({0, 1}, [&](int rank) {
    if (rank == 0) return host->meet("start", "yes");
    std::this_thread::sleep_for(milliseconds(100));
    return make_rendezvous(address, {.rank = 1, .world = 2})->meet("start");
  });
  EXPECT_EQ(outcomes[0].got, "yes") << outcomes[0].error;
  EXPECT_EQ(outcomes[1].got, "yes") << outcomes[1].error;
}

TEST(TcpRendezvous, ARankThatEndsIsNoticedAtOnce) {
  const std::string address = "tcp://127.0.0.1:" + std::to_string(free_port());
  const auto outcomes = run({0, 1, 2}, [&](int rank) {
    const auto meeting = make_rendezvous(address, {.rank = rank, .world = 3});
    meeting->meet("id");
    if (rank == 1) return std::string();
    return meeting->meet("start");
  });
  expect_says(outcomes[0], {"rank 1 ended", "start"});
  EXPECT_NE(outcomes[2].error, "");
  EXPECT_LT(outcomes[2].seconds, 6.0);
}

TEST(FileRendezvous, WhatAnEarlierRunLeftIsPassedOver) {
  const auto folder = std::filesystem::temp_directory_path() / ("weft-stale-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  const std::string address = "file://" + (folder / "meet").string();
  // Every file of a whole meeting of the same name, one with a rank that came in vain.
  for (const char* brought : {"old", "new"}) {
    if (std::string(brought) == "old") {
      run({0, 1}, [&](int rank) {
        return make_rendezvous(address, {.rank = rank, .world = 3, .timeout = milliseconds(200)})->meet("start");
      });
      std::ofstream(folder / "meet.rank2") << "half a file";
    }
    const auto outcomes = run({0, 1, 2}, [&](int rank) {
      // The others find only old files at first.
      if (rank == 0) std::this_thread::sleep_for(milliseconds(150));
      return make_rendezvous(address, {.rank = rank, .world = 3})->meet("start", brought);
    });
    for (const MeetingOutcome& outcome : outcomes) EXPECT_EQ(outcome.got, brought) << outcome.error;
  }
  std::filesystem::remove_all(folder);
}

TEST(Rendezvous, AddressesThatMakeNoSenseAreRequestErrors) {
  for (const char* address : {"", "udp://a:1", "tcp://a", "tcp://:1", "tcp://a:0", "tcp://a:70000", "tcp://a:x",
                              "file://relative/path", "file:///", "mpi://host"}) {
    EXPECT_THROW(make_rendezvous(address, {.rank = 0, .world = 2}), Error) << address;
  }
  EXPECT_EQ(make_rendezvous("tcp://nowhere.invalid:1", {})->meet("start", "alone"), "alone");
}

}  // namespace
}  // namespace weft
