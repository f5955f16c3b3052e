// The local backend: the ranks of a job are threads of one process. Ranks read peers' buffers directly. Reductions run
// in rank order. A waiting rank releases its core (8 ranks can run on 2 cores). If one rank throws, all ranks end, and
// the first error is reported.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"

namespace weft {

// The function of each rank. Its argument is the rank's communicator over the whole world, alive until the function
// returns.
using LocalRank = std::function<void(Communicator& world)>;

// Runs `rank_main` on `world` threads and waits for all of them. If any thread throws, the others are woken and ended.
// The first error is then rethrown with "rank R: " in front and keeps its kind. A rank that waits longer than `timeout`
// for its peers ends the run with an error that names the missing ranks.
void run_local_ranks(int world, const LocalRank& rank_main,
                     std::chrono::milliseconds timeout = std::chrono::minutes(5));

}  // namespace weft
