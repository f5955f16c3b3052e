// The ways of a rendezvous: over TCP, over files, over MPI.
#pragma once

#include <span>

#include "parallel/comm/rendezvous.h"

namespace weft {

// Rank 0 gives up first and reports the missing ranks; the others wait a little longer for its report.
inline constexpr std::chrono::milliseconds rendezvous_grace{5000};

// The report: "rendezvous tcp://a:1: rank 0 waited 5 ms at "start" for rank 3, which did not come".
std::string missing_text(std::string_view address, const RendezvousOptions& options, std::string_view purpose,
                         std::span<const int> missing);

// The rendezvous over TCP: rank 0 listens, and each other rank keeps one connection to it (rendezvous_channel.h:
// protocol).
// Rank 0 listens from here on, at an address of `host` that this machine has (find_own()). If the machine has none,
// rank 0 listens on all interfaces, and errors about missing ranks say so. Throws Error (request) if the port is taken.
std::unique_ptr<Rendezvous> make_tcp_host(const std::string& address, const std::string& host, int port,
                                          const RendezvousOptions& options);

// Connects at the first meeting.
std::unique_ptr<Rendezvous> make_tcp_guest(const std::string& address, const std::string& host, int port,
                                           const RendezvousOptions& options);

// The rendezvous over files that all ranks see, for machines with closed ports. `prefix` begins the names of the files:
// prefix.opened, prefix.rank3, prefix.answer. Files of earlier runs are recognised and overwritten.
std::unique_ptr<Rendezvous> make_file_rendezvous(const std::string& prefix, const RendezvousOptions& options);

// The rendezvous over MPI, for runs started by mpirun or srun without a usable port or common folder. A build without
// MPI has rendezvous_mpi_absent.cpp in place of the folder mpi.
//
// Initialises MPI, once per process. The rendezvous owns MPI and finalises it in its destructor, except after a
// failure, because MPI_Finalize waits for every rank. Throws Error (request) if this build has no MPI, if rank or world
// of MPI differ from `options`, or if this process initialised MPI before. Throws Error (failure) if a rank does not
// come to the initialisation within the timeout.
std::unique_ptr<Rendezvous> make_mpi_rendezvous(const RendezvousOptions& options);

}  // namespace weft
