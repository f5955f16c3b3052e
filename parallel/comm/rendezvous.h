// Where the processes of a run meet before they can communicate: all wait until all have come, and get what rank 0
// brought. Three ways: a TCP connection of every rank to rank 0, files in a folder that all see, or MPI.
//
// A meeting is refused to processes of another run, another version or another number of ranks. That is protection
// against accidents, not against attackers: no way proves who the other side is.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/comm/process_environment.h"

namespace weft {

struct RendezvousOptions {
  int rank = 0, world = 1;
  std::string run = "weft";  // the same on all ranks, another one for each run
  std::chrono::milliseconds timeout{300'000};
};

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Collective: all ranks come with the same `purpose`. Returns what rank 0 brought (at most 64 KiB; what others bring
  // is ignored) once all have come. Throws Error on every rank that came when one has not come within the timeout,
  // and names it; the rendezvous is of no use afterwards.
  virtual std::string meet(std::string_view purpose, std::string_view brought = {}) = 0;
};

// `address` is tcp://host:port, where rank 0 listens and the others keep trying; file:///folder/name, the beginning of
// the names of several files; or mpi://, all ranks that mpirun or srun started (rendezvous_mpi.h). Throws Error
// (request) when the address makes no sense, or this build has no MPI and is asked for it.
std::unique_ptr<Rendezvous> make_rendezvous(const std::string& address, const RendezvousOptions& options);

// tcp:// with MASTER_ADDR and MASTER_PORT + 1, because torchrun itself listens at MASTER_PORT. Nothing where they are
// not set.
std::optional<std::string> default_rendezvous_address(const EnvironmentLookup& lookup = environment_variable);

}  // namespace weft
