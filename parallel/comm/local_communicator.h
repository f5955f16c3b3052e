// One rank's end of a group of threads.
//
// A collective is a meeting (all have come and agree), then every rank queues work that reads its peers' buffers and
// nothing can fail, then a second meeting after which buffers may change again. Threads meet on the host; their streams
// wait for each other's fences, so where streams run behind the host (several ranks on one GPU) nobody waits for them.
// Only the first meeting can be given up: a rank that ends while a peer reads its buffers would pull them away.
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
  // Where the world communicator's work is queued: tensors in host memory.
  std::unique_ptr<Device> host = make_cpu_device();
  std::unique_ptr<Stream> host_stream = host->create_stream("host");
  CommunicationCounters counters;
  PhaseClock clock;
  std::vector<LocalCommunicator*> communicators;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank, Stream& stream, LocalRankState& state);
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
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override;

 private:
  using Clock = std::chrono::steady_clock;

  // Returns when all ranks have come to this call; throws when they disagree or will not come. Returns the meeting.
  // Work queued from then on may read the peers' buffers.
  std::uint32_t meet(Arrival arrival);
  // Returns when all ranks have queued their reads. Work queued from then on comes after all of them. Nothing ends this
  // wait, and nothing has to.
  void part(Arrival arrival);
  void wait_for_peers(std::uint32_t meeting);
  void copy(const std::byte* from, std::byte* to, std::int64_t bytes);
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
