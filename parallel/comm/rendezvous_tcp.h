// The rendezvous over TCP: rank 0 listens, the others keep one connection to it (rendezvous_channel.h: what they say).
#pragma once

#include "parallel/comm/rendezvous.h"

namespace weft {

// Rank 0 listens from here on, at an address of `host` that this machine has; where it has none, at all of its own, and
// the error of a rank that did not come says so. Throws Error (request) when the port is taken.
std::unique_ptr<Rendezvous> make_tcp_host(const std::string& address, const std::string& host, int port,
                                          const RendezvousOptions& options);

// Connects at the first meeting.
std::unique_ptr<Rendezvous> make_tcp_guest(const std::string& address, const std::string& host, int port,
                                           const RendezvousOptions& options);

}  // namespace weft
