// Starts the ranks of a run, with the arguments of each rank. They are threads of this process, or this process is one
// rank of many.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "parallel/comm/communicator.h"
#include "parallel/comm/rendezvous.h"
#include "trainer/config/config.h"
#include "trainer/rank/backend.h"

namespace weft {

struct RankContext {
  Backend& backend;
  Communicator& world;
  // Called with the name of each action that the rank begins, for messages about failed communication; may be empty.
  // The names stay valid as long as the rank runs.
  std::function<void(std::string_view action)> begins = {};
  int host_threads = 1;  // that the rank may keep busy, its own thread included
};
using RankMain = std::function<void(const RankContext& context)>;

// Host threads of each rank if `local_ranks` ranks share this machine's cores equally; at least 1.
int host_threads_of(int local_ranks);

// Makes the backend of a rank. Called on the rank's own thread, by several ranks at once.
using BackendFactory = std::function<std::unique_ptr<Backend>(int rank)>;

// The options in [run].
GpuKernelOptions gpu_kernel_options(const Config& config);
// The backend for run.device. All ranks that are threads compute on GPU 0.
BackendFactory backend_of(const Config& config);

// Called once a run, by the process of rank 0, before ranks begin. If it refuses the request, all processes refuse it.
using Admission = std::function<void()>;

// Runs `rank_main` on all ranks of this process and returns when all are done. Throws Error with the first failure.
void run_ranks(const Config& config, const BackendFactory& make_backend, const RankMain& rank_main,
               const Admission& admit = {});

// Runs this process as one rank of run.launch = "processes" (trainer/rank/cuda/nccl_process_rank.cpp).
void run_process_rank(const Config& config, const RankMain& rank_main, const Admission& admit);
// Collective over the rendezvous: rank 0 calls `admit`. If `admit` throws Error (request), all ranks throw it.
void admit_everywhere(Rendezvous& rendezvous, int rank, const Admission& admit);
// Rank of this process in a run with run.launch = "processes"; 0 if ranks are threads. Throws Error (request) if no
// launcher has set the rank, or if the number of started processes differs from the configuration's ranks. With
// threads, throws Error (request) if this process is one of several.
int first_rank_of_process(const Config& config);

}  // namespace weft
