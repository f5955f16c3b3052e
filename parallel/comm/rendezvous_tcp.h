// The rendezvous over TCP: rank 0 listens, the others keep one connection to it.
#pragma once

#include "parallel/comm/rendezvous.h"

namespace weft {

// Rank 0 listens from here on; throws Error (request) when the port is taken. Others connect at the first meeting.
std::unique_ptr<Rendezvous> make_tcp_rendezvous(const std::string& host, int port, const RendezvousOptions& options);

}  // namespace weft
