// What both sides of the rendezvous over TCP share: sockets, frames, and the proof that the other side knows the token.
//
//   rank -> rank 0   hello       a nonce
//   rank 0 -> rank   challenge   a nonce; its tag proves rank 0
//   rank -> rank 0   greeting    which run, how many ranks, which of them, which meeting; its tag proves the rank
//   rank 0 -> rank   answer      once all have come; or why they cannot
//
// The tag of a frame is SipHash-2-4 under the token of both nonces, the sender, its count of frames, the kind and the
// bytes: no frame can be played back to either side, moved or changed. Without a token the key is zero, so that tags
// prove only that the other side speaks this protocol.
#pragma once

#include <chrono>
#include <utility>

#include "parallel/comm/rendezvous.h"

namespace weft {

using MeetingClock = std::chrono::steady_clock;

// Rank 0 gives up first and says who is missing; the others wait for its word a little longer.
inline constexpr std::chrono::milliseconds rendezvous_grace{5000};

// Closes its descriptor.
class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();
  int get() const { return descriptor_; }
  bool wait_for(short events, MeetingClock::time_point deadline) const;

 private:
  int descriptor_;
};

enum class FrameKind : std::uint32_t {
  hello,
  challenge,
  greeting,
  answer,   // what rank 0 brought
  failure,  // the text of an error that ends this rank, by its kind
  request,
  refusal,  // the text why this process does not belong here; it may try again
};

// In the byte order of the machines, which is little-endian on all that Weft runs on.
struct FrameHead {
  char magic[8];
  std::uint32_t version;
  FrameKind kind;
  std::uint32_t length;
  std::uint32_t with_token;  // 1: the sender has a token; tells people what differs and proves nothing
  std::uint64_t tag;
};
inline constexpr char frame_magic[] = {'w', 'e', 'f', 't', 'm', 'e', 'e', 't'};
inline constexpr std::uint32_t frame_version = 2;
inline constexpr std::size_t nonce_bytes = 16;
// Bytes of a frame: what rank 0 may bring, and what a side takes that is not proven.
inline constexpr std::size_t longest_frame = 1u << 16, longest_unproven_frame = 4096;

struct Frame {
  FrameKind kind = FrameKind::refusal;
  bool with_token = false;
  std::uint64_t tag = 0, number = 0;
  std::string bytes;
};
enum class Parsed { incomplete, complete, foreign, other_version };

// A connection that carries frames.
class FrameChannel {
 public:
  FrameChannel() = default;
  FrameChannel(Socket socket, bool of_host, const std::optional<RunToken>& token)
      : socket_(std::move(socket)), of_host_(of_host), token_(token) {}

  const Socket& socket() const { return socket_; }
  bool open() const { return socket_.get() >= 0; }
  void close() { socket_ = Socket(); }

  // False: the other side is gone or does not read.
  bool send(FrameKind kind, std::string_view bytes, MeetingClock::time_point deadline);
  // Takes in up to 4 KiB of what has come, without waiting. False: the other side has closed.
  bool receive_some();
  // The next frame of what was taken in.
  Parsed parse(Frame& frame);
  // What was taken in and is in no frame yet.
  const std::string& unparsed() const { return buffer_; }

  // Both sides add the nonce of the rank, then that of rank 0. Frames before that have no tag.
  void add_nonce(std::string_view nonce) { nonces_ += nonce; }
  bool has_nonces() const { return nonces_.size() == 2 * nonce_bytes; }
  // Whether the sender of the frame knows the token. From then on frames may be long.
  bool proves(const Frame& frame);

 private:
  std::uint64_t tag(bool by_host, std::uint64_t number, FrameKind kind, std::string_view bytes) const;

  Socket socket_;
  bool of_host_ = false, proven_ = false;
  std::optional<RunToken> token_;
  std::string nonces_, buffer_;
  std::uint64_t sent_ = 0, received_ = 0;
};

struct Greeting {
  int world = 0, rank = 0;
  std::int64_t meeting = 0;  // counted by each rank
  std::string run, purpose;

  std::string bytes() const;
  static std::optional<Greeting> from(std::string_view bytes);
};

}  // namespace weft
