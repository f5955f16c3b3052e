// Hundreds of connections of strangers while ranks meet over TCP.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <random>

#include "tests/parallel/meeting_strangers.h"

namespace weft {
namespace {

using RendezvousCrowd = RendezvousStrangers;

// One connection of a random kind. Some stay, and are returned.
std::optional<Connection> disturb(int port, std::mt19937& random) {
  const auto below = [&](int end) { return static_cast<int>(random() % static_cast<unsigned>(end)); };
  const auto noise = [&](int length) {
    std::string bytes;
    for (int i = 0; i < length; ++i) bytes += static_cast<char>(random());
    return bytes;
  };
  Connection stranger(port);
  EXPECT_TRUE(stranger.connected);
  const auto kind = static_cast<FrameKind>(below(9));
  switch (below(9)) {
    case 0:
      return stranger;  // silent
    case 1:
      break;  // closes at once
    case 2:
      stranger.say(noise(1 + below(20'000)));
      break;
    case 3:
      stranger.say(std::string(frame_magic, sizeof frame_magic) + noise(below(200)));
      break;
    case 4: {
      const int length = below(5000);
      stranger.say(head_of(kind, static_cast<std::size_t>(length)) + noise(length));
      break;
    }
    case 5:
      stranger.say(head_of(kind, random()) + noise(below(100)));
      break;
    case 6:
      stranger.say(hello_and_wrong_greeting().substr(0, static_cast<std::size_t>(below(150))));
      return stranger;
    case 7:
      stranger.say(hello() + noise(below(100)));
      break;
    default: {
      // Ends without the usual farewell.
      const linger at_once{1, 0};
      setsockopt(stranger.descriptor, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      stranger.say(hello());
    }
  }
  return std::nullopt;
}

TEST_F(RendezvousCrowd, SixHundredOfRandomKindsDisturbNoMeetingAndAllAreCounted) {
  constexpr int strangers = 600, world = 4;
  std::atomic<bool> over = false;
  const auto host = of(0, world, milliseconds(1500));
  std::thread crowd([&] {
    std::mt19937 random(7);
    std::vector<std::optional<Connection>> stay;
    for (int i = 0; i < strangers; ++i) {
      stay.push_back(disturb(port_, random));
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    }
    std::this_thread::sleep_for(milliseconds(300));
    over = true;
  });
  const auto outcomes = run({0, 1, 2, 3}, [&](int rank) {
    // Ranks come at different times, so that the host waits among strangers.
    std::this_thread::sleep_for(milliseconds(100 * rank));
    std::unique_ptr<Rendezvous> own = rank == 0 ? nullptr : of(rank, world, milliseconds(20'000));
    Rendezvous& meeting = rank == 0 ? *host : *own;
    std::string got;
    for (int i = 0; !got.ends_with("last"); ++i) {
      if (rank == i % world) std::this_thread::sleep_for(milliseconds(30));
      got += meeting.meet("start " + std::to_string(i), over ? "last" : std::to_string(i) + " ");
    }
    if (rank == 3) {
      // Stays connected and does not come, until the others have given up.
      std::this_thread::sleep_for(milliseconds(1800));
      return got;
    }
    try {
      return got + meeting.meet("end");
    } catch (const Error& error) {
      return got + "\n" + error.what();
    }
  });
  crowd.join();
  const std::string met = outcomes[0].got.substr(0, outcomes[0].got.find('\n'));
  EXPECT_GT(std::count(met.begin(), met.end(), ' '), 5) << met;
  for (const MeetingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.error, "");
    EXPECT_TRUE(outcome.got.starts_with(met)) << outcome.got;
  }
  for (const int rank : {0, 1, 2}) {
    const std::string& got = outcomes[rank].got;
    EXPECT_NE(got.find("rank 3, which did not come"), std::string::npos) << got;
    EXPECT_NE(got.find(fmt::format("turned away: {}, ", strangers)), std::string::npos) << got;
    EXPECT_LT(got.size() - met.size(), 2000u);
    expect_printable(got.substr(met.size() + 1));
  }
}

TEST_F(RendezvousCrowd, ACrowdOfIdleConnectionsLeavesRoomForRanks) {
  constexpr std::size_t crowd = 600, most = 256;
  const auto open_descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  };
  const std::size_t before = open_descriptors();
  const auto host = make_rendezvous(
      address_,
      {.rank = 0, .world = 2, .run = run_name, .token = token_of(token_text), .greet_within = milliseconds(60'000)});
  std::size_t held = 0;
  const auto outcomes = run({0, 1, 7}, [&](int rank) {
    if (rank == 0) return host->meet("start", brought);
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(800));
      return of(1, 2)->meet("start");
    }
    std::vector<Connection> idle;
    for (std::size_t i = 0; i < crowd; ++i) idle.emplace_back(port_);
    std::this_thread::sleep_for(milliseconds(400));
    held = open_descriptors() - before;
    std::this_thread::sleep_for(milliseconds(1200));
    return std::string(brought);
  });
  for (const MeetingOutcome& outcome : outcomes) EXPECT_EQ(outcome.got, brought) << outcome.error;
  EXPECT_LT(outcomes[0].seconds, 1.5);
  EXPECT_GE(held, crowd + most);
  EXPECT_LE(held, crowd + most + 4);
}

TEST_F(RendezvousCrowd, WithoutDescriptorsTheOldestGuestsLeave) {
  const auto host = make_rendezvous(address_, {.rank = 0,
                                               .world = 2,
                                               .run = run_name,
                                               .token = token_of(token_text),
                                               .timeout = milliseconds(5000),
                                               .greet_within = milliseconds(60'000)});
  const pid_t crowd = fork();
  if (crowd == 0) {
    for (int i = 0; i < 200; ++i) new Connection(port_);
    pause();
  }
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const Connection highest(port_);
  const rlimit tight{static_cast<rlim_t>(highest.descriptor) + 30, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const auto outcomes = run({0, 1}, [&](int rank) {
    if (rank == 0) return host->meet("start", brought);
    std::this_thread::sleep_for(milliseconds(500));
    return of(1, 2, milliseconds(5000))->meet("start");
  });
  setrlimit(RLIMIT_NOFILE, &before);
  kill(crowd, SIGKILL);
  waitpid(crowd, nullptr, 0);
  for (const MeetingOutcome& outcome : outcomes) {
    EXPECT_EQ(outcome.got, brought) << outcome.error;
    EXPECT_LT(outcome.seconds, 3.0);
  }
}

}  // namespace
}  // namespace weft
