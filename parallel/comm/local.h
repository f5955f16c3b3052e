// The local backend: the ranks of a job are threads of one process. Peers' buffers are read directly, reductions run in
// rank order, waiting gives the core away (8 ranks live on 2 cores). When one rank throws, all ranks end, and the first
// error is the one reported.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"

namespace weft {

struct LocalOptions {
  // A rank that waits longer than this for its peers ends the run, naming who has not come.
  std::chrono::milliseconds timeout{300'000};
};

// What `run_local_ranks` hands to each rank: its communicator over the whole world, alive until the function returns.
using LocalRank = std::function<void(Communicator& world)>;

// Runs `rank_main` on `world` threads and waits for all of them. If any throws, the others are woken and ended, and the
// first error is rethrown with "rank R: " in front, keeping its kind.
void run_local_ranks(int world, const LocalRank& rank_main, const LocalOptions& options = {});

}  // namespace weft
