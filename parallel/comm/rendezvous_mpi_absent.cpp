// Replaces the folder mpi in a build without MPI.
#include "parallel/comm/rendezvous_kinds.h"
#include "parallel/runtime/error.h"

namespace weft {

std::unique_ptr<Rendezvous> make_mpi_rendezvous(const RendezvousOptions&) {
  fail_request(
      "rendezvous mpi:// cannot be used: this program was built without MPI (docs/install.md); name tcp://host:port or "
      "file:///folder/name");
}

}  // namespace weft
