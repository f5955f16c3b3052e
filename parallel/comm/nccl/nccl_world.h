// The NCCL backend: every rank is a process with a GPU (in trials several share a GPU), and all communicate over NCCL.
//
// Differences from the local backend: NCCL adds in its own order, and rounds 16-bit types after each addition. The
// order is the same on all ranks and in every run of the same shape. Mismatched arguments of peers are not always
// detected: the call then hangs until the watch ends it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/nccl/nccl_watch.h"
#include "parallel/comm/process_environment.h"
#include "parallel/comm/rendezvous.h"

namespace weft {

class NcclBuffers;  // nccl_buffers.h

struct NcclOptions {
  // Ranks that share one GPU. More than one is for trials: it works only with one process for each rank, through
  // sockets, and slowly.
  int ranks_per_device = 1;
  // Blocks that are registered with communicators that write to them; may be null. Outlives the world.
  const NcclBuffers* buffers = nullptr;
};

// NCCL's settings for a rank, as environment variables. A process sets the variables that the user has not set, before
// its first NCCL call, because NCCL reads them once.
std::vector<std::pair<std::string, std::string>> nccl_settings(const ProcessPlace& place, const NcclOptions& options);

// Collective over all processes: creates the world. Its calls are queued on `stream`, which belongs to the current CUDA
// device. `watch`, `stream`, `counters` and `clock` outlive the world and all groups split from it. Throws Error if a
// rank does not come within the watch's timeout, or if NCCL refuses.
std::unique_ptr<Communicator> make_nccl_world(const ProcessPlace& place, Rendezvous& rendezvous, Stream& stream,
                                              const NcclOptions& options, NcclWatch& watch,
                                              CommunicationCounters& counters, PhaseClock& clock);

}  // namespace weft
