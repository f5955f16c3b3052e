#include "parallel/comm/socket_address.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace weft {
namespace {

bool is_own(const SocketAddress& address, const ifaddrs* interfaces) {
  const auto& four = reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr;
  const auto& six = reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_addr;
  const bool is_four = address.storage.ss_family == AF_INET;
  // The list of interfaces contains only one of many loopback addresses.
  if (is_four ? ntohl(four.s_addr) >> 24 == 127 : IN6_IS_ADDR_LOOPBACK(&six)) return true;
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

std::optional<SocketAddress> find_own(const std::vector<SocketAddress>& addresses) {
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) interfaces = nullptr;
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const SocketAddress& address) { return is_own(address, interfaces); });
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

}  // namespace weft
