// Socket addresses, and the search for an address of this machine.
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
  std::string host() const;  // numeric
};

// The addresses of host:port. If there are none, the result is empty and `trouble` holds the resolver's error text.
std::vector<SocketAddress> resolve(const std::string& host, int port, std::string& trouble);

// The first of `addresses` that belongs to this machine, or nothing.
std::optional<SocketAddress> find_own(const std::vector<SocketAddress>& addresses);

// The address of all interfaces, with the family and port of `address`.
SocketAddress every_interface(const SocketAddress& address);

}  // namespace weft
