// One rank's end of a group of threads.
//
// A collective is a meeting (all have come and agree), then every rank reads its peers' buffers and nothing can fail,
// then a second meeting after which buffers may change again. Only the first meeting can be given up: a rank that ends
// while a peer reads its buffers would pull them away.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/local_group.h"

namespace weft {

class LocalCommunicator;

// What all communicators of one rank share. Belongs to the rank's thread.
struct LocalRankState {
  CommunicationCounters counters;
  PhaseClock clock;
  std::vector<LocalCommunicator*> communicators;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, LocalRankState& state);
  ~LocalCommunicator() override;

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override;
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override;
  void do_all_reduce(TensorView data, Reduce reduce) override;
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                     std::span<const std::int64_t> receive_counts) override;
  void do_broadcast(TensorView data, int root) override;
  void do_barrier() override;
  void do_send(ConstTensorView data, int peer) override;
  void do_receive(TensorView data, int peer) override;
  void do_flush() override;
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name) override;

 private:
  using Clock = std::chrono::steady_clock;

  // Returns when all ranks have come to this call; throws when they disagree or will not come. Returns the meeting.
  std::uint32_t meet(const Arrival& arrival);
  // Returns when all ranks have read what they need. Nothing ends this wait, and nothing has to.
  void part(const Arrival& arrival);
  // Waits until the peer has received the last message; `operation` names the call in errors.
  void wait_until_received(int peer, const char* operation);
  // Why a wait that began at `begin` for these ranks is hopeless, if it is.
  std::optional<std::string> hopeless(Clock::time_point begin, const std::string& operation,
                                      const std::vector<int>& awaited) const;
  // Takes back what has been sent and not received, on all communicators of the rank, and throws.
  [[noreturn]] void stop(const std::string& text);
  void retract_messages();

  std::shared_ptr<LocalGroup> shared_;
  LocalRankState& state_;
};

}  // namespace weft
