// Addresses of sockets, and which of them this machine has.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <vector>

namespace weft {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;  // in digits
};

// The addresses of host:port; empty, with the resolver's words in `trouble`, when there are none.
std::vector<SocketAddress> resolve(const std::string& host, int port, std::string& trouble);

// The first of `addresses` that this machine has, or nothing.
std::optional<SocketAddress> find_own(const std::vector<SocketAddress>& addresses);

// All interfaces, at the family and port of `address`.
SocketAddress every_interface(const SocketAddress& address);

}  // namespace weft
