#include "parallel/comm/local.h"

#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "parallel/comm/local_communicator.h"

namespace weft {
namespace {

void run_rank(const std::shared_ptr<LocalGroup>& world, int rank, const LocalRank& rank_main) {
  LocalRun& run = world->run();
  try {
    LocalRankState state;
    LocalCommunicator communicator(world, rank, *state.host_stream, state);
    rank_main(communicator);
  } catch (const Error& error) {
    return run.fail_with(rank, error.kind(), error.what());
  } catch (const std::exception& error) {
    return run.fail_with(rank, ErrorKind::failure, error.what());
  } catch (...) {
    return run.fail_with(rank, ErrorKind::failure, "threw something that is not a std::exception");
  }
  run.finish(rank);
}

}  // namespace

void run_local_ranks(int world, const LocalRank& rank_main, const LocalOptions& options) {
  if (world < 1) fail_request("a run has at least one rank, but {} were asked for", world);
  LocalRun run(world, options.timeout);
  std::vector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = std::make_shared<LocalGroup>(run, "world", ranks);

  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (int rank : ranks) {
    try {
      threads.emplace_back(run_rank, std::cref(group), rank, std::cref(rank_main));
    } catch (const std::system_error& error) {
      run.fail_with(rank, ErrorKind::failure, fmt::format("its thread could not be started: {}", error.what()));
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  run.throw_if_failed();
}

}  // namespace weft
