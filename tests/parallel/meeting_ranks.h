// Ranks that meet as threads, and connections to where they do.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "parallel/comm/rendezvous.h"
#include "parallel/runtime/error.h"

namespace weft {

struct Connection {
  explicit Connection(int port, bool listening = false, const char* host = "127.0.0.1")
      : descriptor(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, host, &address.sin_addr);
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (listening) {
      const int yes = 1;
      setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      const timeval patience{5, 0};  // of accept
      setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
      EXPECT_EQ(bind(descriptor, generic, sizeof address), 0);
      EXPECT_EQ(listen(descriptor, 1), 0);
    } else {
      connected = connect(descriptor, generic, sizeof address) == 0;
    }
    socklen_t size = sizeof address;
    if (getsockname(descriptor, generic, &size) == 0) own_port = ntohs(address.sin_port);
  }
  Connection(Connection&& other) noexcept
      : descriptor(std::exchange(other.descriptor, -1)), own_port(other.own_port), connected(other.connected) {}
  ~Connection() {
    if (descriptor >= 0) close(descriptor);
  }
  void say(std::string_view bytes) const {
    static_cast<void>(send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  int descriptor, own_port = 0;
  bool connected = false;
};

inline int free_port() {
  return Connection(0, true).own_port;
}

struct MeetingOutcome {
  std::string got, error;
  ErrorKind kind = ErrorKind::failure;
  double seconds = 0;
};

// Runs `of_rank` on a thread each for `ranks`.
inline std::vector<MeetingOutcome> run(const std::vector<int>& ranks,
                                       const std::function<std::string(int rank)>& of_rank) {
  std::vector<MeetingOutcome> outcomes(ranks.size());
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        outcomes[i].got = of_rank(ranks[i]);
      } catch (const Error& error) {
        outcomes[i].error = error.what();
        outcomes[i].kind = error.kind();
      }
      outcomes[i].seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

inline void expect_says(const MeetingOutcome& outcome, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.error.find(part), std::string::npos) << part << "\nin: " << outcome.error;
  }
}

}  // namespace weft
