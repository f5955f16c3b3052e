// Where the processes of a run meet before they can communicate: all wait until all have come, and get what rank 0
// brought. Three ways: a TCP connection of every rank to rank 0, files in a folder that all see, or MPI.
//
// A meeting is refused to processes of another run, another version or another number of ranks.
//  - TCP with a run token: each side proves that it knows the token before it is told anything, and the token is never
//    sent. That keeps out processes of other runs and strangers on the network. Words cannot be changed on the way, but
//    they are not encrypted: whoever reads the traffic between two ranks reads what rank 0 brought.
//  - TCP without a token: whoever says the run's name is believed, which protects against accidents only.
//  - Files need no token: who may write to the folder is trusted, so its permissions must keep others out.
//  - MPI needs no token: its launcher connects no others.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/comm/process_environment.h"
#include "parallel/comm/run_token.h"

namespace weft {

struct RendezvousOptions {
  int rank = 0, world = 1;
  std::string run = "weft";  // the same on all ranks, another one for each run
  std::optional<RunToken> token{};
  std::chrono::milliseconds timeout{300'000};
  std::chrono::milliseconds greet_within{5000};  // else rank 0 closes a connection over TCP
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Collective: all ranks come with the same `purpose`. Returns what rank 0 brought (at most 64 KiB; what others bring
  // is ignored) once all have come. Throws Error on every rank that came when one has not come within the timeout,
  // and names it and the last few that were turned away; the rendezvous is of no use afterwards.
  virtual std::string meet(std::string_view purpose, std::string_view brought = {}) = 0;
};

// `address` is tcp://host:port, where rank 0 listens and the others keep trying; file:///folder/name, the beginning of
// the names of several files; or mpi://, all ranks that mpirun or srun started (rendezvous_mpi.h). Throws Error
// (request) when the address makes no sense, or this build has no MPI and is asked for it.
std::unique_ptr<Rendezvous> make_rendezvous(const std::string& address, const RendezvousOptions& options);

// What another process wrote, fit for a terminal and a log: bytes that are not printable ASCII as \x1b, and "..." for
// what exceeds `longest` bytes.
std::string shown(std::string_view text, std::size_t longest = 200);

// tcp:// with MASTER_ADDR and MASTER_PORT + 1, because torchrun itself listens at MASTER_PORT. Nothing where they are
// not set.
std::optional<std::string> default_rendezvous_address(const EnvironmentLookup& lookup = environment_variable);

}  // namespace weft
