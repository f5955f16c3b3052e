// The rendezvous over MPI, for runs started by mpirun or srun without a usable port or common folder. A build without
// MPI has rendezvous_mpi_absent.cpp in place of the folder mpi.
#pragma once

#include "parallel/comm/rendezvous.h"

namespace weft {

// Initialises MPI, once per process. The rendezvous owns MPI and finalises it in its destructor, except after a
// failure, because MPI_Finalize waits for every rank. Throws Error (request) if this build has no MPI, if rank or world
// of MPI differ from `options`, or if this process has initialised MPI before. Throws Error (failure) if a rank does
// not come to the initialisation within the timeout.
std::unique_ptr<Rendezvous> make_mpi_rendezvous(const RendezvousOptions& options);

}  // namespace weft
