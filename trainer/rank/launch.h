// How the ranks of a run are started, and what each is handed: threads of this process, or this process as one of many.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "parallel/comm/communicator.h"
#include "parallel/comm/rendezvous.h"
#include "trainer/config/config.h"
#include "trainer/rank/backend.h"

namespace weft {

struct RankSeat {
  Backend& backend;
  Communicator& world;
  // Told what the rank begins to do, for messages about communication that fails; may be empty. The names live on.
  std::function<void(std::string_view action)> begins = {};
  int host_threads = 1;  // that it may keep busy by itself, its own among them
};
using RankMain = std::function<void(const RankSeat& seat)>;

// What each of so many ranks of this machine gets of its cores: equal parts, at least one.
int host_threads_of(int local_ranks);

// Makes what a rank computes with. Called on the rank's own thread, by several ranks at once.
using BackendFactory = std::function<std::unique_ptr<Backend>(int rank)>;

// What [run] says. Throws Error (request) for an attention that there is not.
GpuKernelOptions gpu_kernel_options(const Config& config);
// What run.device says. Ranks that are threads all compute on GPU 0.
BackendFactory backend_of(const Config& config);

// Called once a run, by the process of rank 0, before ranks begin; a request that it refuses all processes refuse.
using Admission = std::function<void()>;

// Runs `rank_main` on all ranks that live in this process and returns when they are done. Throws Error with the first
// failure.
void run_ranks(const Config& config, const BackendFactory& make_backend, const RankMain& rank_main,
               const Admission& admit = {});

// This process as one rank of run.launch = "processes" (trainer/rank/cuda/nccl_process_rank.cpp).
void run_process_rank(const Config& config, const RankMain& rank_main, const Admission& admit);
// Collective over the rendezvous: rank 0 calls `admit`, and where that throws Error (request), so do all ranks.
void admit_everywhere(Rendezvous& rendezvous, int rank, const Admission& admit);
// Which rank of such a run this process is; 0 where ranks are threads. Throws Error (request) when no launcher said, or
// when it started another number of processes than the configuration has ranks: with threads, more than one.
int first_rank_of_process(const Config& config);

}  // namespace weft
