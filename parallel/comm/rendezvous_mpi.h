// The rendezvous over MPI, for runs that mpirun or srun starts where neither a port nor a common folder is at hand. A
// build without MPI has rendezvous_mpi_absent.cpp in place of the folder mpi.
#pragma once

#include "parallel/comm/rendezvous.h"

namespace weft {

// Initialises MPI, once per process: the rendezvous owns it and finalises it when it dies, unless something failed, for
// MPI's end waits for every rank. Throws Error (request) when this build has no MPI, when MPI counts other ranks than
// `options`, or when MPI has been initialised in this process before, and Error (failure) when a rank does not come to
// the initialisation within the timeout.
std::unique_ptr<Rendezvous> make_mpi_rendezvous(const RendezvousOptions& options);

}  // namespace weft
