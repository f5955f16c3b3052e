// Code shared by both sides of the TCP rendezvous: addresses, sockets, frames, and the proof that the other side knows
// the token.
//
//   rank -> rank 0   hello       a nonce
//   rank 0 -> rank   challenge   a nonce; its tag proves rank 0
//   rank -> rank 0   greeting    run, number of ranks, rank and meeting; its tag proves the rank
//   rank 0 -> rank   answer      when all have come; or the reason why they cannot
//
// The tag of a frame is SipHash-2-4 under the token, over both nonces, the sender, its count of frames, the kind and
// the bytes. No frame can be replayed to either side, moved or changed. Without a token the key is zero, and tags prove
// only that the other side speaks this protocol.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/rendezvous_kinds.h"
#include "parallel/runtime/file_descriptor.h"

namespace weft {

using MeetingClock = std::chrono::steady_clock;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;  // numeric
};

// The addresses of host:port. If there are none, the result is empty and `trouble` holds the resolver's error text.
std::vector<SocketAddress> resolve(const std::string& host, int port, std::string& trouble);

// The first of `addresses`, those of `host`, that belongs to this machine, or nothing. A loopback address belongs to it
// only if `host` is a number or has "localhost" in it. Debian's /etc/hosts maps the name of a machine to 127.0.1.1 on
// the machine itself, and ranks of others would not reach that.
std::optional<SocketAddress> find_own(const std::string& host, const std::vector<SocketAddress>& addresses);

// The address of all interfaces, with the family and port of `address`.
SocketAddress every_interface(const SocketAddress& address);

struct Socket : FileDescriptor {
  using FileDescriptor::FileDescriptor;
  bool wait_for(short events, MeetingClock::time_point deadline) const;
};

enum class FrameKind : std::uint32_t {
  hello,
  challenge,
  greeting,
  answer,   // the bytes of rank 0
  failure,  // like request: the text of an error of this ErrorKind, which ends this rank
  request,
  refusal,  // the reason why rank 0 refuses this process, which may try again
};

// In the byte order of the machine, which is little-endian on all machines that Weft supports.
struct FrameHead {
  char magic[8];
  std::uint32_t version;
  FrameKind kind;
  std::uint32_t length;
  std::uint32_t with_token;  // 1: the sender has a token; only for error messages, proves nothing
  std::uint64_t tag;
};
inline constexpr char frame_magic[] = {'w', 'e', 'f', 't', 'm', 'e', 'e', 't'};
inline constexpr std::uint32_t frame_version = 2;
inline constexpr std::size_t nonce_bytes = 16;
// Most bytes of a frame: for the bytes of rank 0, and from a side that has not proven that it knows the token.
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
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_ = Socket(); }

  // Returns false if the other side is gone or does not read.
  bool send(FrameKind kind, std::string_view bytes, MeetingClock::time_point deadline);
  // Reads up to 4 KiB of the received bytes, without waiting. Returns false if the other side has closed.
  bool receive_some();
  // Takes the next frame from the bytes read so far.
  Parsed parse(Frame& frame);
  // The bytes read so far that belong to no complete frame yet.
  const std::string& unparsed() const { return buffer_; }

  // Both sides add the nonce of the rank, then the nonce of rank 0. Earlier frames have no tag.
  void add_nonce(std::string_view nonce) { nonces_ += nonce; }
  bool has_nonces() const { return nonces_.size() == 2 * nonce_bytes; }
  // Whether the sender of the frame knows the token. Later frames may then be long.
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
