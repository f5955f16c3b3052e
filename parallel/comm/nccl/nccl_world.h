// The NCCL backend: every rank is a process with a GPU (for trials, several share one), and all exchange over NCCL.
//
// What differs from the local backend: NCCL adds in an order of its own, the same on all ranks and in every run of the
// same shape, and rounds 16-bit types after each addition. Peers that disagree about a call are not always found out:
// the call hangs until the watch ends it.
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
  // Ranks that share one GPU. More than one works only where each is a process, through sockets, and slowly: for
  // trials.
  int ranks_per_device = 1;
  // The groups whose ranks send to each other. They get a second NCCL communicator, so that messages to lower ranks
  // and those to higher ones need not wait for each other (nccl_communicator.h).
  std::vector<std::string> message_groups = {"pp"};
  // Blocks that are registered with the communicators that write to them; may be null. Outlives the world.
  const NcclBuffers* buffers = nullptr;
};

// NCCL's own settings for a rank, as environment variables. A process sets those that the user has not, before its
// first call of NCCL, which reads them once.
std::vector<std::pair<std::string, std::string>> nccl_settings(const ProcessPlace& place, const NcclOptions& options);

// Collective over all processes: the world, whose calls are queued on `stream`, of a CUDA device that is current.
// `watch`, `stream`, `counters` and `clock` outlive the world and all groups split from it. Throws Error when a rank
// does not come within the watch's timeout, or NCCL refuses.
std::unique_ptr<Communicator> make_nccl_world(const ProcessPlace& place, Rendezvous& rendezvous, Stream& stream,
                                              const NcclOptions& options, NcclWatch& watch,
                                              CommunicationCounters& counters, PhaseClock& clock);

}  // namespace weft
