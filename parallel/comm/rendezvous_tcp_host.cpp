// Rank 0. A connection is a guest until it has proven that it belongs to the run. A guest gets little time and memory,
// and no guest can end the meeting of the others by its messages or its silence.
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <thread>

#include "parallel/comm/rendezvous_channel.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Clock = MeetingClock;
using std::chrono::milliseconds;

// At this limit a new guest replaces the oldest guest. A rank is a guest for about one round trip, and connects again
// if it was removed.
constexpr std::size_t most_guests = 256;
// Connections accepted before the waiting guests are served again. The limit keeps a crowd from displacing a rank
// before its frames were read.
constexpr int accepted_at_once = 16;

// Refused processes: their number, and the last few.
class Refused {
 public:
  void add(std::string who) {
    ++count_;
    last_.push_back(std::move(who));
    if (last_.size() > 3) last_.pop_front();
  }
  std::string text() const {
    if (count_ == 0) return "";
    return fmt::format("; turned away: {}, of these the last: {}", count_, fmt::join(last_, "; "));
  }

 private:
  std::int64_t count_ = 0;
  std::deque<std::string> last_;
};

class TcpHost final : public Rendezvous {
 public:
  TcpHost(const std::string& address, const std::string& host, int port, const RendezvousOptions& options)
      : address_(address), options_(options), peers_(options.world) {
    std::string trouble;
    const auto addresses = resolve(host, port, trouble);
    if (addresses.empty()) fail_request("rendezvous {}: {}", address_, trouble);
    // A machine behind address translation, or with a loopback address for its name, does not know its outside address.
    const std::optional<SocketAddress> found = find_own(host, addresses);
    const SocketAddress own = found ? *found : every_interface(addresses.front());
    listening_ =
        found ? own.host() : fmt::format("all interfaces, since this machine has no outside address of {}", host);
    listener_ = Socket(socket(own.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(listener_.get(), own.get(), own.length) != 0 || listen(listener_.get(), 1024) != 0) {
      fail_request("rendezvous {}: rank 0 cannot listen there: {}; choose another port", address_,
                   std::strerror(errno));
    }
  }

  std::string meet(std::string_view purpose, std::string_view brought) override {
    require(brought.size() <= longest_frame, "what rank 0 brings is small");
    ++meeting_;
    purpose_ = purpose;
    const auto deadline = Clock::now() + options_.timeout;
    // Rank 0 did not listen to guests since the last meeting.
    for (Guest& guest : guests_) guest.until = Clock::now() + options_.greet_within;
    for (Peer& peer : peers_) peer.came = false;
    for (Peer& peer : peers_) {
      if (peer.channel.open()) take(peer);  // frames received since the last meeting
    }
    while (true) {
      const std::vector<int> missing = missing_ranks();
      if (missing.empty()) break;
      if (Clock::now() >= deadline) {
        end(fmt::format("{}; it listened at {}{}", missing_text(address_, options_, purpose, missing), listening_,
                        refused_.text()));
      }
      wait_for_something(deadline);
    }
    tell_all(FrameKind::answer, brought);
    return std::string(brought);
  }

 private:
  struct Peer {
    FrameChannel channel;
    bool came = false;
  };
  struct Guest {
    FrameChannel channel;
    std::string from;
    Clock::time_point until;
  };

  std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < options_.world; ++rank) {
      if (!peers_[rank].came) missing.push_back(rank);
    }
    return missing;
  }

  void wait_for_something(Clock::time_point deadline) {
    std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
    for (const Peer& peer : peers_) entries.push_back({peer.channel.socket().get(), POLLIN, 0});  // negative: ignored
    for (const Guest& guest : guests_) {
      entries.push_back({guest.channel.socket().get(), POLLIN, 0});
      deadline = std::min(deadline, guest.until);
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    poll(entries.data(), entries.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30)));
    auto entry = entries.begin() + 1;
    for (Peer& peer : peers_) {
      if ((entry++)->revents != 0) take(peer);
    }
    for (Guest& guest : guests_) {
      if ((entry++)->revents != 0) welcome(guest);
      if (guest.channel.open() && Clock::now() >= guest.until) {
        refuse(guest, fmt::format("a connection that did not greet within {} ms", options_.greet_within.count()));
      }
    }
    std::erase_if(guests_, [](const Guest& guest) { return !guest.channel.open(); });
    if (entries.front().revents != 0) accept_guests();
  }

  void accept_guests() {
    for (int i = 0; i < accepted_at_once; ++i) {
      SocketAddress from;
      const int descriptor = accept4(listener_.get(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (descriptor < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        const char* const trouble = std::strerror(errno);
        make_room(guests_.size() / 2 + 1);
        // The listener stays ready, so do not poll in a tight loop.
        if (guests_.empty()) std::this_thread::sleep_for(milliseconds(10));
        refused_.add(fmt::format("a connection that had to wait: {}", trouble));
        return;
      }
      if (guests_.size() == most_guests) make_room(1);
      guests_.push_back(
          {FrameChannel(Socket(descriptor), true, options_.token), from.host(), Clock::now() + options_.greet_within});
    }
  }

  // Refuses the oldest guests.
  void make_room(std::size_t count) {
    const auto end = guests_.begin() + static_cast<std::ptrdiff_t>(std::min(count, guests_.size()));
    for (auto guest = guests_.begin(); guest != end; ++guest) {
      refuse(*guest, "a connection that had to make room for others");
    }
    guests_.erase(guests_.begin(), end);
  }

  // Handles a rank that has connected before.
  void take(Peer& peer) {
    const auto rank = static_cast<int>(&peer - peers_.data());
    const bool there = peer.channel.receive_some();
    Frame frame;
    const Parsed parsed = peer.channel.parse(frame);
    if (parsed == Parsed::complete && frame.kind == FrameKind::greeting && peer.channel.proves(frame)) {
      if (const auto greeting = Greeting::from(frame.bytes)) {
        if (!is_here(*greeting)) end(fmt::format("rendezvous {}: {}", address_, elsewhere(*greeting)));
        peer.came = true;
        return;
      }
    }
    if (!there || parsed != Parsed::incomplete) {
      peer.channel.close();
      end(fmt::format("rendezvous {}: rank {} ended while others still wait at \"{}\"", address_, rank, purpose_));
    }
  }

  void welcome(Guest& guest) {
    const bool there = guest.channel.receive_some();
    Frame frame;
    while (guest.channel.open()) {
      switch (guest.channel.parse(frame)) {
        case Parsed::complete:
          hear(guest, frame);
          break;
        case Parsed::incomplete:
          if (!there) refuse(guest, "a connection that closed before it greeted");
          return;
        case Parsed::foreign:
          return refuse(
              guest, fmt::format("a process that is not of Weft and says \"{}\"", shown(guest.channel.unparsed(), 40)));
        case Parsed::other_version:
          return refuse(guest, "a process of another version of Weft");
      }
    }
  }

  void hear(Guest& guest, const Frame& frame) {
    if (frame.kind == FrameKind::hello && frame.bytes.size() == nonce_bytes && !guest.channel.has_nonces()) {
      if (frame.with_token != options_.token.has_value()) {
        return refuse(guest, fmt::format("a process with{} {}, which rank 0 {}", options_.token ? "out" : "",
                                         run_token_variable, options_.token ? "has" : "does not have"));
      }
      const std::string nonce = random_bytes(nonce_bytes);
      guest.channel.add_nonce(frame.bytes);
      guest.channel.add_nonce(nonce);
      guest.channel.send(FrameKind::challenge, nonce, Clock::now());
      return;
    }
    if (!guest.channel.proves(frame)) {
      return refuse(guest, options_.token
                               ? fmt::format("a process that does not know this run's {}", run_token_variable)
                               : "a process that is not of Weft");
    }
    const auto greeting = Greeting::from(frame.bytes);
    if (frame.kind != FrameKind::greeting || !greeting) return refuse(guest, "a process that is not of Weft");
    const int rank = greeting->rank;
    if (greeting->run != options_.run) {
      return refuse(guest, fmt::format("rank {} of another run, \"{}\"", rank, shown(greeting->run)));
    }
    if (greeting->world != options_.world) {
      return refuse(guest,
                    fmt::format("rank {} counts {} ranks and rank 0 counts {}", rank, greeting->world, options_.world),
                    FrameKind::request);
    }
    if (rank < 1 || rank >= options_.world || peers_[rank].channel.open()) {
      return refuse(guest, fmt::format("two processes call themselves rank {}", rank), FrameKind::request);
    }
    if (!is_here(*greeting)) return refuse(guest, elsewhere(*greeting), FrameKind::failure);
    peers_[rank] = {std::exchange(guest.channel, FrameChannel()), true};
  }

  bool is_here(const Greeting& greeting) const { return greeting.meeting == meeting_ && greeting.purpose == purpose_; }
  std::string elsewhere(const Greeting& greeting) const {
    return fmt::format("rank {} is at \"{}\" while rank 0 is at \"{}\"", greeting.rank, shown(greeting.purpose),
                       purpose_);
  }

  // The text for the guest must not reveal this run's name.
  void refuse(Guest& guest, const std::string& why, FrameKind kind = FrameKind::refusal) {
    const std::string text = kind == FrameKind::refusal ? why : fmt::format("rendezvous {}: {}", address_, why);
    guest.channel.send(kind, text, Clock::now());
    guest.channel.close();
    refused_.add(fmt::format("{}: {}", guest.from, why));
  }

  void tell_all(FrameKind kind, std::string_view bytes) {
    for (Peer& peer : peers_) {
      // A lost rank is reported at the next meeting.
      if (peer.channel.open()) peer.channel.send(kind, bytes, Clock::now() + rendezvous_grace);
    }
  }

  [[noreturn]] void end(const std::string& text) {
    tell_all(FrameKind::failure, text);
    fail("{}", text);
  }

  const std::string address_;
  const RendezvousOptions options_;
  Socket listener_;
  std::string listening_;      // the address, for messages
  std::vector<Peer> peers_;    // by rank
  std::vector<Guest> guests_;  // oldest first
  Refused refused_;
  std::string purpose_;
  std::int64_t meeting_ = 0;
};

}  // namespace

std::unique_ptr<Rendezvous> make_tcp_host(const std::string& address, const std::string& host, int port,
                                          const RendezvousOptions& options) {
  return std::make_unique<TcpHost>(address, host, port, options);
}

}  // namespace weft
