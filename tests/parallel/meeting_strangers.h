// The messages of strangers at the place where ranks meet over TCP, and the ones that they must not hear.
#pragma once

#include <cstring>

#include "parallel/comm/rendezvous_channel.h"
#include "tests/parallel/meeting_ranks.h"

namespace weft {

using std::chrono::milliseconds;

inline constexpr const char *token_text = "5eC2e70000000000000000000000cafe", *run_name = "the-name-of-the-run",
                            *brought = "what rank 0 brought: the unique id";

inline RunToken token_of(const std::string& text) {
  return *run_token([&](const char*) { return std::optional(text); });
}
const char* const other_token = "0123456789abcdef0123456789abcdef";

inline std::string head_of(FrameKind kind, std::size_t length, std::uint32_t version = frame_version) {
  FrameHead head{{}, version, kind, static_cast<std::uint32_t>(length), 1, 0};
  std::memcpy(head.magic, frame_magic, sizeof frame_magic);
  return fmt::format("{}", std::string_view(reinterpret_cast<const char*>(&head), sizeof head));
}
inline std::string hello() {
  return head_of(FrameKind::hello, nonce_bytes) + std::string(nonce_bytes, 'n');
}
inline std::string hello_and_wrong_greeting() {
  const std::string greeting = Greeting{4, 3, 1, run_name, "start"}.bytes();
  return hello() + head_of(FrameKind::greeting, greeting.size()) + greeting;
}

// Everything that comes until the other side closes or `time` has passed.
inline std::string heard(int descriptor, milliseconds time = milliseconds(300)) {
  std::string bytes(1 << 16, '\0');
  std::size_t size = 0;
  const timeval limit{time.count() / 1000, time.count() % 1000 * 1000};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  for (ssize_t count = 0; (count = recv(descriptor, bytes.data() + size, bytes.size() - size, 0)) > 0;) {
    size += static_cast<std::size_t>(count);
  }
  bytes.resize(size);
  return bytes;
}

inline void expect_no_secret(const std::string& bytes, bool name_is_secret = true) {
  const RunToken token = token_of(token_text);
  const std::string raw(reinterpret_cast<const char*>(token.bytes.data()), token.bytes.size());
  std::vector<std::string> secrets{token_text, "5ec2e70000000000000000000000cafe", raw, raw.substr(0, 8), brought};
  if (name_is_secret) secrets.push_back(run_name);
  for (const std::string& secret : secrets) EXPECT_EQ(bytes.find(secret), std::string::npos) << shown(secret);
}

inline void expect_printable(const std::string& text) {
  for (const char byte : text) EXPECT_TRUE(byte >= ' ' && byte <= '~') << static_cast<int>(byte);
}

class RendezvousStrangers : public testing::Test {
 protected:
  std::unique_ptr<Rendezvous> of(int rank, int world, milliseconds timeout = milliseconds(20'000),
                                 std::optional<RunToken> token = token_of(token_text),
                                 const std::string& name = run_name) const {
    return make_rendezvous(address_, {.rank = rank,
                                      .world = world,
                                      .run = name,
                                      .token = token,
                                      .timeout = timeout,
                                      .greet_within = milliseconds(150)});
  }

  const int port_ = free_port();
  const std::string address_ = "tcp://127.0.0.1:" + std::to_string(port_);
};

}  // namespace weft
