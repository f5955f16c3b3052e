// Strangers at the place where ranks meet over TCP: what they say, what they are told, and that the others meet.
#include <ifaddrs.h>

#include <algorithm>

#include "tests/parallel/meeting_strangers.h"

namespace weft {
namespace {

// Rank 1 comes after the stranger; rank 2 never comes, so that rank 0 says whom it turned away.
TEST_F(RendezvousStrangers, AWrongFirstFrameIsTurnedAwayAndRemembered) {
  const struct {
    std::string bytes, expected;
    bool stays = true;
  } cases[] = {{"GET / HTTP/1.1\r\n\r\n\x1b[2J\xff",
                "is not of Weft and says \"GET / HTTP/1.1\\x0d\\x0a\\x0d\\x0a\\x1b[2J\\xff\""},
               {"weftmeex", "is not of Weft and says \"weftmeex\""},
               {head_of(FrameKind::hello, 16, 1).substr(0, 20) + "2 1 1 weft\nstart", "another version of Weft"},
               {head_of(FrameKind::hello, longest_unproven_frame + 1), "is not of Weft"},
               {head_of(FrameKind::hello, 16) + "half", "did not greet within 150 ms"},
               {"", "did not greet within 150 ms"},
               {"", "closed before it greeted", false},
               {"weftm", "closed before it greeted", false},
               {hello(), "did not greet within 150 ms"},
               {hello() + hello(), "does not know this run's WEFT_RUN_TOKEN"},
               {hello_and_wrong_greeting(), "does not know this run's WEFT_RUN_TOKEN"},
               {hello_and_wrong_greeting().substr(hello().size()), "does not know this run's WEFT_RUN_TOKEN"}};
  for (const auto& [bytes, expected, stays] : cases) {
    const auto host = of(0, 3, milliseconds(300));
    const auto outcomes = run({0, 1, 7}, [&, &text = bytes, stays = stays](int rank) {
      if (rank == 0) return host->meet("start", brought);
      if (rank == 1) {
        std::this_thread::sleep_for(milliseconds(50));
        return of(1, 3)->meet("start");
      }
      const Connection stranger(port_);
      stranger.say(text);
      return stays ? heard(stranger.descriptor) : std::string();
    });
    expect_says(outcomes[0], {"for rank 2, which", "listened at 127.0.0.1", "turned away: 1, of these", expected});
    EXPECT_EQ(outcomes[0].error, outcomes[1].error);
    expect_printable(outcomes[0].error);
    expect_no_secret(outcomes[2].got);
    expect_no_secret(outcomes[0].error, false);
  }
}

TEST_F(RendezvousStrangers, AProcessWithAnotherTokenStaysOutsideWhateverItsRank) {
  const auto host = of(0, 4);
  const auto outcomes = run({0, 1, 2, 3, 13}, [&](int rank) {
    if (rank == 0) return host->meet("start", brought);
    if (rank == 13) return of(3, 4, milliseconds(200), token_of(other_token))->meet("start");
    std::this_thread::sleep_for(milliseconds(300));
    return of(rank, 4)->meet("start");
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(outcomes[rank].got, brought) << outcomes[rank].error;
  expect_says(outcomes[4], {"200 ms", "does not know this run's WEFT_RUN_TOKEN"});
  expect_no_secret(outcomes[4].error);
  EXPECT_EQ(outcomes[4].error.find(other_token), std::string::npos);
}

TEST_F(RendezvousStrangers, ATokenOnOneSideIsRefusedByTheNameOfTheVariable) {
  for (const bool host_has : {true, false}) {
    const auto with = std::optional(token_of(token_text)), without = std::optional<RunToken>();
    const auto outcomes = run({0, 1}, [&](int rank) {
      return of(rank, 2, milliseconds(300), (rank == 0) == host_has ? with : without)->meet("start", brought);
    });
    const std::string reason = host_has ? "a process without WEFT_RUN_TOKEN, which rank 0 has"
                                        : "a process with WEFT_RUN_TOKEN, which rank 0 does not have";
    for (const MeetingOutcome& outcome : outcomes) {
      expect_says(outcome, {reason});
      expect_no_secret(outcome.error);
    }
  }
}

// The one who listens records all that three tries of a rank say.
TEST_F(RendezvousStrangers, AStrangerWhoListensHearsNoSecretAndIsNotBelieved) {
  const std::string nonce(nonce_bytes, 'h');
  const std::string replies[] = {head_of(FrameKind::challenge, nonce_bytes) + nonce,
                                 head_of(FrameKind::answer, 3) + "yes", head_of(FrameKind::request, 4) + "\x1b[2J"};
  Connection listener(port_, true);
  const auto outcomes = run({1, 7}, [&](int rank) {
    if (rank == 1) return of(1, 2, milliseconds(600))->meet("the purpose");
    std::string all;
    for (const std::string& reply : replies) {
      const int descriptor = accept(listener.descriptor, nullptr, nullptr);
      all += heard(descriptor, milliseconds(30));
      static_cast<void>(send(descriptor, reply.data(), reply.size(), MSG_NOSIGNAL));
      all += heard(descriptor, milliseconds(30));
      close(descriptor);
    }
    close(std::exchange(listener.descriptor, -1));
    return all;
  });
  expect_says(outcomes[0], {"600 ms", "rank 0"});
  EXPECT_EQ(outcomes[1].got.size(), std::size(replies) * hello().size());
  expect_no_secret(outcomes[1].got);
  EXPECT_EQ(outcomes[1].got.find("the purpose"), std::string::npos);
}

TEST_F(RendezvousStrangers, ARankWaitsUntilAStrangerLeavesThePlace) {
  for (const bool zero_comes : {true, false}) {
    auto listener = std::make_optional<Connection>(port_, true);
    const auto outcomes = run({0, 1}, [&](int rank) {
      if (rank == 1) return of(1, 2, milliseconds(zero_comes ? 20'000 : 400))->meet("start");
      for (const char* words : {"SSH-2.0 \x1b[2J\n", "weft", "SSH-2.0 \x1b[2J\n"}) {
        const int descriptor = accept(listener->descriptor, nullptr, nullptr);
        static_cast<void>(send(descriptor, words, std::strlen(words), MSG_NOSIGNAL));
        std::this_thread::sleep_for(milliseconds(20));
        close(descriptor);
      }
      listener.reset();
      return zero_comes ? of(0, 2)->meet("start", brought) : std::string();
    });
    if (zero_comes) {
      for (const MeetingOutcome& outcome : outcomes) EXPECT_EQ(outcome.got, brought) << outcome.error;
    } else {
      expect_says(outcomes[1], {"400 ms", "another program listens there and says \"SSH-2.0 \\x1b[2J\\x0a\""});
      expect_printable(outcomes[1].error);
    }
  }
}

TEST(ShownText, IsPrintableAndCut) {
  EXPECT_EQ(shown("plain ~ text"), "plain ~ text");
  EXPECT_EQ(shown(std::string("a\0\n\x1b\x7f\xc3\xa9", 7)), "a\\x00\\x0a\\x1b\\x7f\\xc3\\xa9");
  EXPECT_EQ(shown(std::string(300, 'x')), std::string(200, 'x') + "...");
  EXPECT_EQ(shown("12345", 5), "12345");
}

// Hands on what a rank and rank 0 say to each other, changes the last byte of one message, and records all.
class Relay {
 public:
  Relay(int port, int changed_message) : listener_(0, true) {
    thread_ = std::thread([this, port, changed_message] {
      const int rank = accept(listener_.descriptor, nullptr, nullptr);
      const Connection host(port);
      for (int message = 0; message < 4; ++message) {
        const bool of_rank = message % 2 == 0;
        std::string bytes(4096, '\0');
        const ssize_t count = recv(of_rank ? rank : host.descriptor, bytes.data(), bytes.size(), 0);
        if (count <= 0) break;
        bytes.resize(static_cast<std::size_t>(count));
        recorded[message] = bytes;
        if (message == changed_message) bytes.back() ^= 1;
        static_cast<void>(send(of_rank ? host.descriptor : rank, bytes.data(), bytes.size(), MSG_NOSIGNAL));
      }
      shutdown(host.descriptor, SHUT_RDWR);
      close(std::exchange(listener_.descriptor, -1));
      close(rank);
    });
  }
  ~Relay() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  int port() const { return listener_.own_port; }
  std::string recorded[4];  // hello, challenge, greeting, answer

 private:
  Connection listener_;
  std::thread thread_;
};

TEST_F(RendezvousStrangers, WordsCannotBeChangedOnTheWayNorPlayedBack) {
  std::string recorded[3];
  for (const int changed : {-1, 0, 1, 2, 3}) {
    const auto host = of(0, 2, milliseconds(400));
    Relay relay(port_, changed);
    const auto outcomes = run({0, 1}, [&](int rank) {
      if (rank == 0) return host->meet("start", brought);
      return make_rendezvous(
                 "tcp://127.0.0.1:" + std::to_string(relay.port()),
                 {.rank = 1, .world = 2, .run = run_name, .token = token_of(token_text), .timeout = milliseconds(300)})
          ->meet("start");
    });
    relay.join();
    EXPECT_EQ(outcomes[1].got, changed == -1 ? brought : "") << changed;
    for (const std::string& words : relay.recorded) {
      if (&words != &relay.recorded[3]) expect_no_secret(words, false);
    }
    if (changed == -1) std::copy_n(relay.recorded, 3, recorded);
  }
  const auto host = of(0, 2, milliseconds(300));
  const auto outcomes = run({0, 7}, [&](int rank) {
    if (rank == 0) return host->meet("start", brought);
    const Connection stranger(port_);
    stranger.say(recorded[0] + recorded[2]);
    return heard(stranger.descriptor);
  });
  expect_says(outcomes[0], {"does not know this run's WEFT_RUN_TOKEN"});
  expect_no_secret(outcomes[1].got);
}

TEST_F(RendezvousStrangers, OnlyTheInterfaceOfTheAddressIsOpen) {
  const auto host = of(0, 2);
  EXPECT_TRUE(Connection(port_).connected);
  EXPECT_FALSE(Connection(port_, false, "127.0.0.2").connected);
  ifaddrs* interfaces = nullptr;
  ASSERT_EQ(getifaddrs(&interfaces), 0);
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    char text[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr, text, sizeof text);
    if (std::string(text).starts_with("127.")) continue;
    EXPECT_FALSE(Connection(port_, false, text).connected) << text;
    const int port = free_port();
    const auto outer = make_rendezvous(fmt::format("tcp://{}:{}", text, port), {.rank = 0, .world = 2});
    EXPECT_TRUE(Connection(port, false, text).connected) << text;
    EXPECT_FALSE(Connection(port).connected) << text;
  }
  freeifaddrs(interfaces);
}

TEST_F(RendezvousStrangers, AnAddressOfNoInterfaceOpensAllAndSaysSo) {
  // A network for documentation (RFC 5737).
  const auto host = make_rendezvous("tcp://198.51.100.77:" + std::to_string(port_),
                                    {.rank = 0, .world = 2, .timeout = milliseconds(50)});
  EXPECT_TRUE(Connection(port_, false, "127.0.0.2").connected);
  const auto outcomes = run({0}, [&](int) { return host->meet("start"); });
  expect_says(outcomes[0], {"listened at all interfaces, since this machine has no outside address of 198.51.100.77"});
}

// Debian's /etc/hosts has "127.0.1.1 node7" on node7, and other machines another address of that name.
TEST_F(RendezvousStrangers, ALoopbackAddressIsTakenOnlyOfANameThatMeansIt) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "::1"}) {
    std::string trouble;
    const auto addresses = resolve(address, port_, trouble);
    if (addresses.empty()) continue;  // a machine without IPv6
    for (const char* host : {address, "localhost", "LOCALHOST", "localhost.localdomain", "ip6-localhost"}) {
      EXPECT_TRUE(find_own(host, addresses)) << host << " at " << address;
    }
    for (const char* host : {"node7", "node7.example.org"}) EXPECT_FALSE(find_own(host, addresses)) << address;
    EXPECT_EQ(every_interface(addresses.front()).host(), address == std::string("::1") ? "::" : "0.0.0.0");
  }
}

// What a name may do to a terminal, where without a token every run name is read.
TEST_F(RendezvousStrangers, NamesOfOtherRunsAreShownHarmless) {
  const auto outcomes = run({0, 1}, [&](int rank) {
    return of(rank, 2, milliseconds(300), std::nullopt, rank == 0 ? run_name : "evil\x1b[2J\n")->meet("start");
  });
  for (const MeetingOutcome& outcome : outcomes) {
    expect_says(outcome, {"rank 1 of another run, \"evil\\x1b[2J\\x0a\""});
    expect_printable(outcome.error);
  }
  EXPECT_EQ(outcomes[1].error.find(run_name), std::string::npos);
}

}  // namespace
}  // namespace weft
