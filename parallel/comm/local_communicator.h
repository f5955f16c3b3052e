// One rank's member of a group of threads.
//
// A collective begins with a meeting: all ranks have come and their arguments agree. Then every rank queues work that
// reads its peers' buffers; nothing can fail here. After a second meeting, buffers may change again. Threads meet on
// the host, and their streams wait for each other's fences. If streams run behind the host (several ranks on one GPU),
// no host thread waits for them. Only the first meeting can be abandoned: a rank that ended while a peer reads its
// buffers would free those buffers.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/local_group.h"

namespace weft {

class LocalCommunicator;

// State shared by all communicators of one rank. Belongs to the rank's thread.
struct LocalRankState {
  // The device and stream of the world communicator: its tensors are in host memory.
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

  // Returns the meeting's number when all ranks have come to this call. Throws if their arguments disagree or a rank
  // will not come. Work queued afterwards may read the peers' buffers.
  std::uint32_t meet(Arrival arrival);
  // Returns when all ranks have queued their reads. Work queued afterwards runs after all these reads. This wait cannot
  // be abandoned, and need not be.
  void part(Arrival arrival);
  void wait_for_peers(std::uint32_t meeting);
  void copy(const std::byte* from, std::byte* to, std::int64_t bytes);
  // Waits until the peer has received the last message. `operation` names the call in errors.
  void wait_until_received(int peer, const char* operation);
  // The reason why a wait for the ranks `awaited` since `begin` cannot succeed; nothing if it still can.
  std::optional<std::string> hopeless(Clock::time_point begin, const std::string& operation,
                                      const std::vector<int>& awaited) const;
  // Retracts all messages sent but not received, on all communicators of the rank, and throws.
  [[noreturn]] void stop(const std::string& text);
  void retract_messages();

  std::shared_ptr<LocalGroup> shared_;
  LocalRankState& state_;
};

}  // namespace weft
