// The rendezvous over TCP: rank 0 listens, and each other rank keeps one connection to it (rendezvous_channel.h:
// protocol).
#pragma once

#include "parallel/comm/rendezvous.h"

namespace weft {

// Rank 0 listens from here on, at an address of `host` that this machine has. If the machine has none, rank 0 listens
// on all interfaces, and errors about missing ranks say so. Throws Error (request) if the port is taken.
std::unique_ptr<Rendezvous> make_tcp_host(const std::string& address, const std::string& host, int port,
                                          const RendezvousOptions& options);

// Connects at the first meeting.
std::unique_ptr<Rendezvous> make_tcp_guest(const std::string& address, const std::string& host, int port,
                                           const RendezvousOptions& options);

}  // namespace weft
