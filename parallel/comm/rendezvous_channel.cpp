#include "parallel/comm/rendezvous_channel.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace weft {
namespace {

bool is_loopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr);
}

// Whether `host` is an address, or a name of the loopback on every machine.
bool means_the_same_everywhere(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return strcasestr(host.c_str(), "localhost") != nullptr;
  freeaddrinfo(found);
  return true;
}

bool is_own(const SocketAddress& address, const ifaddrs* interfaces) {
  const auto& four = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  const bool is_four = address.storage.ss_family == AF_INET;
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != address.storage.ss_family) continue;
    const bool same =
        is_four ? reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr.s_addr == four.s_addr
                : IN6_ARE_ADDR_EQUAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr, &six);
    if (same) return true;
  }
  return false;
}

}  // namespace

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "?";
  getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::vector<SocketAddress> resolve(const std::string& host, int port, std::string& trouble) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  std::vector<SocketAddress> addresses;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    trouble = gai_strerror(status);
    return addresses;
  }
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
  }
  freeaddrinfo(found);
  return addresses;
}

std::optional<SocketAddress> find_own(const std::string& host, const std::vector<SocketAddress>& addresses) {
  const bool takes_loopback = means_the_same_everywhere(host);
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) interfaces = nullptr;
  // The list of interfaces contains only one of many loopback addresses.
  const auto found = std::ranges::find_if(addresses, [&](const SocketAddress& address) {
    return is_loopback(address) ? takes_loopback : is_own(address, interfaces);
  });
  freeifaddrs(interfaces);
  return found == addresses.end() ? std::nullopt : std::optional(*found);
}

SocketAddress every_interface(const SocketAddress& address) {
  SocketAddress all{{}, address.length};
  all.storage.ss_family = address.storage.ss_family;
  // Both address families store the port at the same offset.
  reinterpret_cast<sockaddr_in&>(all.storage).sin_port = reinterpret_cast<const sockaddr_in&>(address.storage).sin_port;
  return all;
}

namespace {

using std::chrono::milliseconds;

template <typename T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

struct GreetingHead {
  std::int32_t world, rank;
  std::int64_t meeting;
  std::uint64_t run_bytes;
};

}  // namespace

bool Socket::wait_for(short events, MeetingClock::time_point deadline) const {
  const auto left = std::chrono::ceil<milliseconds>(deadline - MeetingClock::now()).count();
  pollfd entry{get(), events, 0};
  return poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30))) > 0;
}

bool FrameChannel::send(FrameKind kind, std::string_view bytes, MeetingClock::time_point deadline) {
  FrameHead head{{}, frame_version, kind, static_cast<std::uint32_t>(bytes.size()), token_ ? 1u : 0u, 0};
  std::memcpy(head.magic, frame_magic, sizeof frame_magic);
  if (has_nonces()) head.tag = tag(of_host_, sent_, kind, bytes);
  ++sent_;
  const std::string whole = fmt::format("{}{}", bytes_of(head), bytes);
  for (std::string_view rest = whole; !rest.empty();) {
    const ssize_t count = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      rest.remove_prefix(count);
    } else if ((errno != EAGAIN && errno != EINTR) || !socket_.wait_for(POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

bool FrameChannel::receive_some() {
  char bytes[4096];
  const ssize_t count = recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
  if (count > 0) buffer_.append(bytes, count);
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR));
}

Parsed FrameChannel::parse(Frame& frame) {
  FrameHead head{};
  const std::size_t known = std::min(buffer_.size(), sizeof head);
  std::memcpy(&head, buffer_.data(), known);
  if (std::memcmp(head.magic, frame_magic, std::min(known, sizeof frame_magic)) != 0) return Parsed::foreign;
  // The head of another version may have another length.
  if (known < offsetof(FrameHead, kind)) return Parsed::incomplete;
  if (head.version != frame_version) return Parsed::other_version;
  if (known < sizeof head) return Parsed::incomplete;
  if (head.length > (proven_ ? longest_frame : longest_unproven_frame)) return Parsed::foreign;
  if (buffer_.size() < sizeof head + head.length) return Parsed::incomplete;
  frame = {head.kind, head.with_token != 0, head.tag, received_++, buffer_.substr(sizeof head, head.length)};
  buffer_.erase(0, sizeof head + head.length);
  return Parsed::complete;
}

bool FrameChannel::proves(const Frame& frame) {
  if (!has_nonces() || frame.tag != tag(!of_host_, frame.number, frame.kind, frame.bytes)) return false;
  return proven_ = true;
}

std::uint64_t FrameChannel::tag(bool by_host, std::uint64_t number, FrameKind kind, std::string_view bytes) const {
  return sip_hash(token_.value_or(RunToken()),
                  fmt::format("{}{}{}{}{}", nonces_, by_host ? 'h' : 'g', bytes_of(number), bytes_of(kind), bytes));
}

std::string Greeting::bytes() const {
  const GreetingHead head{world, rank, meeting, run.size()};
  return fmt::format("{}{}{}", bytes_of(head), run, purpose);
}

std::optional<Greeting> Greeting::from(std::string_view bytes) {
  GreetingHead head;
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  bytes.remove_prefix(sizeof head);
  if (head.run_bytes > bytes.size()) return std::nullopt;
  return Greeting{head.world, head.rank, head.meeting, std::string(bytes.substr(0, head.run_bytes)),
                  std::string(bytes.substr(head.run_bytes))};
}

}  // namespace weft
