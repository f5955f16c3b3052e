// Every rank except 0. The listener at the address receives only a nonce until it has proven that it is rank 0.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "parallel/comm/rendezvous_channel.h"
#include "parallel/runtime/error.h"

namespace weft {
namespace {

using Clock = MeetingClock;
using std::chrono::milliseconds;

class TcpGuest final : public Rendezvous {
 public:
  TcpGuest(const std::string& address, const std::string& host, int port, const RendezvousOptions& options)
      : address_(address), host_(host), port_(port), options_(options) {}

  std::string meet(std::string_view purpose, std::string_view) override {
    const auto deadline = Clock::now() + options_.timeout;
    const Greeting greeting{options_.world, options_.rank, ++meeting_, options_.run, std::string(purpose)};
    const std::string said = greeting.bytes();
    if (said.size() > longest_unproven_frame) {
      fail_request("rendezvous {}: the names of the run and of the meeting are too long: {} bytes", address_,
                   said.size());
    }
    while (true) {
      const bool known = channel_.open();
      // A process that refuses or is not rank 0 may belong to an earlier run that is about to end.
      if (known || (connect_once(deadline) && is_rank_zero(deadline))) {
        channel_.send(FrameKind::greeting, said, deadline);
        Frame frame;
        if (receive(frame, deadline)) {
          if (!channel_.proves(frame)) {
            heard_ = "the answer is not of rank 0";
          } else if (frame.kind == FrameKind::answer) {
            return frame.bytes;
          } else if (frame.kind == FrameKind::failure || frame.kind == FrameKind::request) {
            throw Error(frame.kind == FrameKind::failure ? ErrorKind::failure : ErrorKind::request,
                        shown(frame.bytes, longest_unproven_frame));
          } else {
            heard_ = fmt::format("its rank 0 refuses {}", shown(frame.bytes));
          }
        }
        if (known) {
          channel_.close();
          fail("rendezvous {}: rank {} at \"{}\": {}", address_, options_.rank, purpose, found());
        }
      }
      channel_.close();
      if (Clock::now() >= deadline) {
        fail("rendezvous {}: rank {} tried for {} ms to meet rank 0 at \"{}\": {}", address_, options_.rank,
             options_.timeout.count(), purpose, found());
      }
      std::this_thread::sleep_until(std::min(Clock::now() + milliseconds(50), deadline));
    }
  }

 private:
  // Why the last try failed, and the last reply of a listener, perhaps from an earlier try.
  std::string found() const {
    return trouble_.empty() || heard_.empty() ? trouble_ + heard_
                                              : fmt::format("{}; before that, {}", trouble_, heard_);
  }

  bool connect_once(Clock::time_point deadline) {
    for (const SocketAddress& address : resolve(host_, port_, trouble_)) {
      Socket socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (socket.get() < 0 || (connect(socket.get(), address.get(), address.length) != 0 && errno != EINPROGRESS)) {
        trouble_ = std::strerror(errno);
        continue;
      }
      int error = 0;
      socklen_t size = sizeof error;
      // A host that loses the first packet may answer the next one.
      if (!socket.wait_for(POLLOUT, std::min(deadline, Clock::now() + milliseconds(3000)))) error = ETIMEDOUT;
      if (error == 0) getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) {
        trouble_ = std::strerror(error);
        continue;
      }
      const int yes = 1;
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      setsockopt(socket.get(), SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
      channel_ = FrameChannel(std::move(socket), false, options_.token);
      trouble_.clear();
      return true;
    }
    return false;
  }

  bool is_rank_zero(Clock::time_point deadline) {
    const std::string nonce = random_bytes(nonce_bytes);
    channel_.send(FrameKind::hello, nonce, deadline);
    Frame frame;
    if (!receive(frame, deadline)) return false;
    if (frame.kind == FrameKind::challenge && frame.bytes.size() == nonce_bytes) {
      channel_.add_nonce(nonce);
      channel_.add_nonce(frame.bytes);
      if (channel_.proves(frame)) return true;
    }
    if (frame.kind == FrameKind::refusal) {
      heard_ = fmt::format("what listens there refuses {}", shown(frame.bytes));
    } else {
      heard_ = options_.token ? fmt::format("what listens there does not know this run's {}", run_token_variable)
                              : "another program listens there";
    }
    return false;
  }

  bool receive(Frame& frame, Clock::time_point deadline) {
    while (channel_.socket().wait_for(POLLIN, deadline + rendezvous_grace)) {
      const bool there = channel_.receive_some();
      const Parsed parsed = channel_.parse(frame);
      if (parsed == Parsed::complete) return true;
      if (parsed == Parsed::foreign) {
        heard_ = fmt::format("another program listens there and says \"{}\"", shown(channel_.unparsed(), 40));
        return false;
      }
      if (parsed == Parsed::other_version) {
        heard_ = "rank 0 is another version of Weft";
        return false;
      }
      if (!there) {
        trouble_ = "rank 0 closed the connection";
        return false;
      }
    }
    trouble_ = "rank 0 did not answer";
    return false;
  }

  const std::string address_, host_;
  const int port_;
  const RendezvousOptions options_;
  FrameChannel channel_;
  std::int64_t meeting_ = 0;
  std::string trouble_, heard_;
};

}  // namespace

std::unique_ptr<Rendezvous> make_tcp_guest(const std::string& address, const std::string& host, int port,
                                           const RendezvousOptions& options) {
  return std::make_unique<TcpGuest>(address, host, port, options);
}

}  // namespace weft
