// The meeting of a run's processes before they can communicate. All wait until all have come, and receive the bytes of
// rank 0. Three ways: a TCP connection of every rank to rank 0, files in a folder that all ranks see, or MPI.
//
// Processes of another run, of another version or with another number of ranks are refused.
//  - TCP with a run token: each side proves that it knows the token before it is told anything, and the token is never
//    sent. This excludes processes of other runs and strangers on the network. Frames cannot be changed on the way, but
//    they are not encrypted: a listener on the traffic between two ranks can read the bytes of rank 0.
//  - TCP without a token: any process that knows the run's name is accepted. This protects against accidents only.
//  - Files need no token: each process that may write to the folder is trusted, so its permissions must exclude others.
//  - MPI needs no token: its launcher connects no other processes.
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
  std::string run = "weft";  // the same on all ranks, different for each run
  std::optional<RunToken> token{};
  std::chrono::milliseconds timeout{300'000};
  std::chrono::milliseconds greet_within{5000};  // otherwise rank 0 closes a TCP connection
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Collective: all ranks come with the same `purpose`. Returns the bytes `brought` by rank 0 (at most 64 KiB; those of
  // other ranks are ignored) when all have come. If a rank has not come within the timeout, throws Error on every rank
  // that came. The error names the missing rank and (over TCP) the last few refused processes. The rendezvous is then
  // unusable.
  virtual std::string meet(std::string_view purpose, std::string_view brought = {}) = 0;
};

// `address` has three forms. tcp://host:port: rank 0 listens there and the others keep trying. file:///folder/name: the
// beginning of the names of several files. mpi://: all ranks that mpirun or srun started (rendezvous_kinds.h). Throws
// Error (request) if the address is malformed, or if it is mpi:// and this build has no MPI.
std::unique_ptr<Rendezvous> make_rendezvous(const std::string& address, const RendezvousOptions& options);

// Text from another process, safe for a terminal and a log: bytes other than printable ASCII as \x1b, and "..." in
// place of the bytes beyond `longest`.
std::string shown(std::string_view text, std::size_t longest = 200);

// tcp:// with MASTER_ADDR and MASTER_PORT + 1, because torchrun itself listens at MASTER_PORT. Nothing if they are not
// set.
std::optional<std::string> default_rendezvous_address(const EnvironmentLookup& lookup = environment_variable);

}  // namespace weft
