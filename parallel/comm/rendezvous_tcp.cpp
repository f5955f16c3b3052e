// The protocol: a rank says (Greeting) which run, how many ranks, which of them, and which meeting it comes to; rank 0
// answers when all have come or cannot come any more. Both are one frame: magic, version, kind, length, bytes.
#include "parallel/comm/rendezvous_tcp.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

enum class FrameKind : std::uint32_t {
  greeting,
  answer,   // what rank 0 brought
  failure,  // the text of an error that ends all ranks, by its kind
  request,
  refusal,  // the text why this process does not belong here; the others go on
};

// In the byte order of the machines, which is little-endian on all that Weft runs on.
struct FrameHead {
  char magic[8];
  std::uint32_t version;
  FrameKind kind;
  std::uint32_t length;
};
constexpr char magic[] = {'w', 'e', 'f', 't', 'm', 'e', 'e', 't'};
constexpr std::uint32_t version = 1;
constexpr std::uint32_t longest = 1u << 16;
// Rank 0 gives up first and says who is missing; the others wait for its word a little longer.
constexpr milliseconds grace{5000};

std::string framed(FrameKind kind, std::string_view bytes) {
  FrameHead head{{}, version, kind, static_cast<std::uint32_t>(bytes.size())};
  std::memcpy(head.magic, magic, sizeof magic);
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + std::string(bytes);
}

struct Frame {
  FrameKind kind;
  std::string bytes;
};
enum class Parsed { incomplete, complete, foreign, other_version };

// Takes a frame off the front of `buffer`.
Parsed parse(std::string& buffer, Frame& frame) {
  if (std::memcmp(buffer.data(), magic, std::min(buffer.size(), sizeof magic)) != 0) return Parsed::foreign;
  if (buffer.size() < sizeof(FrameHead)) return Parsed::incomplete;
  FrameHead head;
  std::memcpy(&head, buffer.data(), sizeof head);
  if (head.version != version) return Parsed::other_version;
  if (head.length > longest) return Parsed::foreign;
  if (buffer.size() < sizeof head + head.length) return Parsed::incomplete;
  frame = {head.kind, buffer.substr(sizeof head, head.length)};
  buffer.erase(0, sizeof head + head.length);
  return Parsed::complete;
}

struct Greeting {
  int world = 0, rank = 0;
  std::int64_t meeting = 0;  // counted by each rank
  std::string run, purpose;

  std::string text() const { return fmt::format("{} {} {} {}\n{}", world, rank, meeting, run, purpose); }
  static std::optional<Greeting> from(const std::string& text) {
    Greeting greeting;
    int at = 0;
    long long number = 0;
    if (std::sscanf(text.c_str(), "%d %d %lld %n", &greeting.world, &greeting.rank, &number, &at) != 3) {
      return std::nullopt;
    }
    const std::size_t line = text.find('\n');
    if (line == std::string::npos || line < static_cast<std::size_t>(at)) return std::nullopt;
    greeting.meeting = number;
    greeting.run = text.substr(static_cast<std::size_t>(at), line - static_cast<std::size_t>(at));
    greeting.purpose = text.substr(line + 1);
    return greeting;
  }
};

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

class Socket {
 public:
  explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }
  bool open() const { return descriptor_ >= 0; }

  bool wait_for(short events, Clock::time_point deadline) const {
    pollfd entry{descriptor_, events, 0};
    return poll(&entry, 1, milliseconds_until(deadline)) > 0;
  }
  // False: the other side is gone or does not read.
  bool send_all(std::string_view bytes, Clock::time_point deadline) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if ((errno != EAGAIN && errno != EINTR) || !wait_for(POLLOUT, deadline)) {
        return false;
      }
    }
    return true;
  }
  // What has come, without waiting. False: the other side has closed.
  bool receive_some(std::string& buffer) const {
    char bytes[4096];
    const ssize_t count = recv(descriptor_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (count > 0) buffer.append(bytes, static_cast<std::size_t>(count));
    return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
  }

 private:
  int descriptor_;
};

// The addresses of host:port; empty, with the resolver's words in `trouble`, when there are none.
std::vector<std::pair<sockaddr_storage, socklen_t>> resolve(const std::string& host, int port, std::string& trouble) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<std::pair<sockaddr_storage, socklen_t>> addresses;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    trouble = gai_strerror(status);
    return addresses;
  }
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, entry->ai_addr, entry->ai_addrlen);
    addresses.emplace_back(address, entry->ai_addrlen);
  }
  freeaddrinfo(found);
  return addresses;
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24) == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

std::string list_of(const std::vector<int>& ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

class TcpHost final : public Rendezvous {
 public:
  TcpHost(std::string address, const std::string& host, int port, const RendezvousOptions& options)
      : address_(std::move(address)), options_(options), peers_(static_cast<std::size_t>(options.world)) {
    std::string trouble;
    const auto addresses = resolve(host, port, trouble);
    if (addresses.empty()) fail_request("rendezvous {}: {}", address_, trouble);
    // A name may belong to a machine in ways that it does not know itself; only loopback is certain.
    sockaddr_storage own = addresses.front().first;
    if (!is_loopback(own)) {
      own = {};
      own.ss_family = addresses.front().first.ss_family;
      auto& place = own.ss_family == AF_INET ? reinterpret_cast<sockaddr_in&>(own).sin_port
                                             : reinterpret_cast<sockaddr_in6&>(own).sin6_port;
      place = htons(static_cast<std::uint16_t>(port));
    }
    listener_ = Socket(socket(own.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&own), addresses.front().second) != 0 ||
        listen(listener_.get(), 1024) != 0) {
      fail_request("rendezvous {}: rank 0 cannot listen there: {}; choose another port", address_,
                   std::strerror(errno));
    }
  }

  std::string meet(std::string_view purpose, std::string_view brought) override {
    require(brought.size() <= longest, "what rank 0 brings is small");
    ++meeting_;
    purpose_ = purpose;
    const auto deadline = Clock::now() + options_.timeout;
    for (Peer& peer : peers_) peer.came = false;
    for (Peer& peer : peers_) {
      if (peer.socket.open()) take(peer);  // what has come since the last meeting
    }
    while (true) {
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) break;
      if (Clock::now() >= deadline) {
        std::string text = fmt::format("rendezvous {}: rank 0 waited {} ms at \"{}\" for {}, which did not come",
                                       address_, options_.timeout.count(), purpose, list_of(missing));
        if (!refused_.empty()) text += fmt::format("; refused: {}", refused_);
        end(ErrorKind::failure, text);
      }
      wait_for_something(deadline);
    }
    tell_all(framed(FrameKind::answer, brought));
    return std::string(brought);
  }

 private:
  struct Peer {
    Socket socket;
    std::string buffer;
    bool came = false;
  };

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < options_.world; ++rank) {
      if (!peers_[static_cast<std::size_t>(rank)].came) missing.push_back(rank);
    }
    return missing;
  }

  void wait_for_something(Clock::time_point deadline) {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) entries.push_back({peer.socket.get(), POLLIN, 0});  // negative: ignored
    for (const Peer& guest : guests_) entries.push_back({guest.socket.get(), POLLIN, 0});
    poll(entries.data(), entries.size(), milliseconds_until(deadline));
    for (Peer& peer : peers_) {
      if (peer.socket.open()) take(peer);
    }
    for (Peer& guest : guests_) welcome(guest);
    std::erase_if(guests_, [](const Peer& guest) { return !guest.socket.open(); });
    const int descriptor = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor >= 0) guests_.push_back({Socket(descriptor), {}, false});
  }

  // A rank that has come before.
  void take(Peer& peer) {
    const auto rank = static_cast<int>(&peer - peers_.data());
    const bool there = peer.socket.receive_some(peer.buffer);
    Frame frame;
    const Parsed parsed = peer.buffer.empty() ? Parsed::incomplete : parse(peer.buffer, frame);
    if (parsed == Parsed::complete) {
      if (const auto greeting = Greeting::from(frame.bytes)) return join(peer, *greeting);
    }
    if (!there || parsed != Parsed::incomplete) {
      peer.socket = Socket();
      end(ErrorKind::failure,
          fmt::format("rendezvous {}: rank {} ended while others still wait at \"{}\"", address_, rank, purpose_));
    }
  }

  // Whoever connected and has not said yet who it is.
  void welcome(Peer& guest) {
    const bool there = guest.socket.receive_some(guest.buffer);
    Frame frame;
    const Parsed parsed = guest.buffer.empty() ? Parsed::incomplete : parse(guest.buffer, frame);
    if (parsed == Parsed::incomplete) {
      if (!there) guest.socket = Socket();
      return;
    }
    const auto greeting = parsed == Parsed::complete ? Greeting::from(frame.bytes) : std::nullopt;
    if (parsed == Parsed::other_version) return refuse(guest, "a process of another version of Weft");
    if (!greeting) return refuse(guest, "a process that is not of Weft");
    if (greeting->run != options_.run) {
      return refuse(guest, fmt::format("rank {} of run \"{}\", while this is run \"{}\"", greeting->rank, greeting->run,
                                       options_.run));
    }
    if (greeting->world != options_.world) {
      bad_rank(guest, fmt::format("rank {} counts {} ranks and rank 0 counts {}", greeting->rank, greeting->world,
                                  options_.world));
    }
    if (greeting->rank < 1 || greeting->rank >= options_.world) {
      bad_rank(guest, fmt::format("a second process calls itself rank {}", greeting->rank));
    }
    Peer& peer = peers_[static_cast<std::size_t>(greeting->rank)];
    if (peer.socket.open()) bad_rank(guest, fmt::format("two processes call themselves rank {}", greeting->rank));
    peer = std::exchange(guest, Peer());
    join(peer, *greeting);
  }

  void join(Peer& peer, const Greeting& greeting) {
    if (greeting.meeting != meeting_ || greeting.purpose != purpose_) {
      end(ErrorKind::failure, fmt::format("rendezvous {}: rank {} is at \"{}\" while rank 0 is at \"{}\"", address_,
                                          greeting.rank, greeting.purpose, purpose_));
    }
    peer.came = true;
  }

  void refuse(Peer& guest, const std::string& who) {
    guest.socket.send_all(framed(FrameKind::refusal, who), Clock::now() + milliseconds(100));
    guest.socket = Socket();
    refused_ = who;
  }

  [[noreturn]] void bad_rank(Peer& guest, const std::string& what) {
    const std::string text = fmt::format("rendezvous {}: {}", address_, what);
    guest.socket.send_all(framed(FrameKind::request, text), Clock::now() + milliseconds(100));
    end(ErrorKind::request, text);
  }

  void tell_all(const std::string& frame) {
    for (const Peer& peer : peers_) {
      // One that is gone will be missed at the next meeting.
      if (peer.socket.open()) peer.socket.send_all(frame, Clock::now() + grace);
    }
  }

  [[noreturn]] void end(ErrorKind kind, const std::string& text) {
    tell_all(framed(kind == ErrorKind::failure ? FrameKind::failure : FrameKind::request, text));
    throw Error(kind, text);
  }

  const std::string address_;
  const RendezvousOptions options_;
  Socket listener_;
  std::vector<Peer> peers_;   // by rank
  std::vector<Peer> guests_;  // have not said who they are
  std::string refused_;       // the last one
  std::string purpose_;
  std::int64_t meeting_ = 0;
};

class TcpGuest final : public Rendezvous {
 public:
  TcpGuest(std::string address, std::string host, int port, const RendezvousOptions& options)
      : address_(std::move(address)), host_(std::move(host)), port_(port), options_(options) {}

  std::string meet(std::string_view purpose, std::string_view) override {
    const auto deadline = Clock::now() + options_.timeout;
    ++meeting_;
    const Greeting greeting{options_.world, options_.rank, meeting_, options_.run, std::string(purpose)};
    std::string trouble;
    while (true) {
      const bool known = socket_.open();
      if (known || connect_once(deadline, trouble)) {
        Frame frame;
        socket_.send_all(framed(FrameKind::greeting, greeting.text()), deadline);
        if (receive(frame, deadline + grace, trouble)) {
          if (frame.kind == FrameKind::answer) return frame.bytes;
          if (frame.kind == FrameKind::failure) throw Error(ErrorKind::failure, frame.bytes);
          if (frame.kind == FrameKind::request) throw Error(ErrorKind::request, frame.bytes);
          // Perhaps an earlier run is still about to leave.
          trouble = fmt::format("its rank 0 refuses this process: {}", frame.bytes);
        }
        socket_ = Socket();
        if (known) fail("rendezvous {}: rank {} at \"{}\": {}", address_, options_.rank, purpose, trouble);
      }
      if (Clock::now() >= deadline) {
        fail("rendezvous {}: rank {} tried for {} ms to meet rank 0 at \"{}\": {}", address_, options_.rank,
             options_.timeout.count(), purpose, trouble);
      }
      std::this_thread::sleep_until(std::min(Clock::now() + milliseconds(50), deadline));
    }
  }

 private:
  bool connect_once(Clock::time_point deadline, std::string& trouble) {
    for (const auto& [address, length] : resolve(host_, port_, trouble)) {
      Socket socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 && errno != EINPROGRESS) {
        trouble = std::strerror(errno);
        continue;
      }
      int error = 0;
      socklen_t size = sizeof error;
      // A host that swallows the first packet may answer the next one.
      if (!socket.wait_for(POLLOUT, std::min(deadline, Clock::now() + milliseconds(3000)))) error = ETIMEDOUT;
      if (error == 0) getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        trouble = std::strerror(error);
        continue;
      }
      const int yes = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
      socket_ = std::move(socket);
      buffer_.clear();
      return true;
    }
    return false;
  }

  bool receive(Frame& frame, Clock::time_point deadline, std::string& trouble) {
    while (socket_.wait_for(POLLIN, deadline)) {
      const bool there = socket_.receive_some(buffer_);
      const Parsed parsed = buffer_.empty() ? Parsed::incomplete : parse(buffer_, frame);
      if (parsed == Parsed::complete) return true;
      if (parsed == Parsed::foreign) fail_request("rendezvous {}: another program listens there", address_);
      if (parsed == Parsed::other_version) fail_request("rendezvous {}: rank 0 is another version of Weft", address_);
      if (!there) {
        trouble = "rank 0 closed the connection";
        return false;
      }
    }
    trouble = "rank 0 did not answer";
    return false;
  }

  const std::string address_, host_;
  const int port_;
  const RendezvousOptions options_;
  Socket socket_;
  std::string buffer_;
  std::int64_t meeting_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_tcp_rendezvous(const std::string& host, int port, const RendezvousOptions& options) {
  const bool numeric_six = host.find(':') != std::string::npos;
  std::string address = fmt::format(fmt::runtime(numeric_six ? "tcp://[{}]:{}" : "tcp://{}:{}"), host, port);
  if (options.rank == 0) return std::make_unique<TcpHost>(std::move(address), host, port, options);
  return std::make_unique<TcpGuest>(std::move(address), host, port, options);
}

}  // namespace weft
