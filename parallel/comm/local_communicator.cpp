#include "parallel/comm/local_communicator.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "parallel/comm/local.h"

namespace weft {

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, Stream& stream, LocalRankState& state)
    : Communicator(group->name(), rank, group->size(), stream, state.counters, state.clock),
      shared_(std::move(group)),
      state_(state) {
  state_.communicators.push_back(this);
}

LocalCommunicator::~LocalCommunicator() {
  retract_messages();
  std::erase(state_.communicators, this);
}

std::optional<std::string> LocalCommunicator::hopeless(Clock::time_point begin, const std::string& operation,
                                                       const std::vector<int>& awaited) const {
  LocalRun& run = shared_->run();
  const std::string self = fmt::format("group {}: {}", group(), shared_->name_of_rank(rank()));
  if (run.failed()) return fmt::format("{} ends in {} because another rank failed", self, operation);
  std::vector<std::string> names;
  for (int peer : awaited) {
    names.push_back(shared_->name_of_rank(peer));
    if (run.finished(shared_->world_rank(peer))) {
      return fmt::format("{} waits in {} for {}, which has already finished", self, operation, names.back());
    }
  }
  if (Clock::now() - begin < run.timeout()) return std::nullopt;
  return fmt::format("{} waited {} ms in {} for {}, which did not come", self, run.timeout().count(), operation,
                     fmt::join(names, ", "));
}

void LocalCommunicator::stop(const std::string& text) {
  for (LocalCommunicator* communicator : state_.communicators) communicator->retract_messages();
  throw Error(ErrorKind::failure, text);
}

std::uint32_t LocalCommunicator::meet(Arrival arrival) {
  arrival.fence = stream().record();
  const auto begin = Clock::now();
  // A meeting must not begin after a failure: peers that need nothing from the failed rank would continue for long.
  if (shared_->run().failed()) stop(*hopeless(begin, describe(arrival), {}));
  const auto meeting = shared_->arrive(rank(), arrival);
  if (!meeting) stop(shared_->failure());
  while (!shared_->barrier().wait(*meeting)) {
    // A peer may come and finish between wait() and hopeless(). This rank then cannot withdraw any more.
    const auto reason = hopeless(begin, describe(arrival), shared_->missing(*meeting));
    if (!reason) continue;
    shared_->set_failure(*reason);
    if (shared_->barrier().withdraw(*meeting)) stop(*reason);
  }
  if (const auto text = disagreement(*shared_, *meeting)) {
    // Peers may still compare this rank's arguments. All ranks find the same fault, so all ranks come here.
    part(arrival);
    stop(*text);
  }
  wait_for_peers(*meeting);
  return *meeting;
}

void LocalCommunicator::part(Arrival arrival) {
  arrival.fence = stream().record();
  const auto meeting = shared_->arrive(rank(), arrival);
  while (!shared_->barrier().wait(*meeting)) {
  }
  wait_for_peers(*meeting);
}

void LocalCommunicator::wait_for_peers(std::uint32_t meeting) {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) stream().wait(shared_->arrival(peer, meeting).fence);
  }
}

std::unique_ptr<Communicator> LocalCommunicator::do_split(int color, int key, const std::string& name, Stream& stream) {
  const Arrival arrival{.operation = split_operation, .color = color, .key = key, .name = name};
  const std::uint32_t meeting = meet(arrival);
  std::vector<int> members;
  for (int peer = 0; peer < size(); ++peer) {
    if (shared_->arrival(peer, meeting).color == color) members.push_back(peer);
  }
  std::ranges::stable_sort(members, {}, [&](int member) { return shared_->arrival(member, meeting).key; });
  if (members.front() == rank()) {
    std::vector<int> world_ranks;
    for (int member : members) world_ranks.push_back(shared_->world_rank(member));
    shared_->created(rank()) = std::make_shared<LocalGroup>(shared_->run(), name, world_ranks);
  }
  // Without a name, because a rank may leave this meeting while others still compare.
  meet({.operation = split_operation});
  const auto own = std::ranges::find(members, rank()) - members.begin();
  return std::make_unique<LocalCommunicator>(shared_->created(members.front()), static_cast<int>(own), stream, state_);
}

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
    return run.fail_with(rank, ErrorKind::failure, error_text(error));
  } catch (...) {
    return run.fail_with(rank, ErrorKind::failure, "threw something that is not a std::exception");
  }
  run.finish(rank);
}

}  // namespace

void run_local_ranks(int world, const LocalRank& rank_main, std::chrono::milliseconds timeout) {
  if (world < 1) fail_request("a run has at least one rank, but {} were asked for", world);
  LocalRun run(world, timeout);
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
