// The exchange of tensors between the ranks of a group. Public calls check sizes and dtypes, count (counters.h) and
// then call the backend. One communicator belongs to one rank, one group and one lane (its stream). All ranks of a
// group must make its calls in the same order. Every call queues its work on the stream. The work reads the results of
// work queued before. Work queued afterwards may read the result and overwrite the input. Reductions add in rank order
// if the backend can guarantee it (the local backend does); equal parts then give equal bits everywhere.
//
// Errors: a mismatch between ranks, a failed peer, or a wait longer than the watchdog allows. They throw Error on every
// rank of the world, naming group, operation and peers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/counters.h"
#include "parallel/runtime/device.h"
#include "parallel/runtime/phase_clock.h"
#include "parallel/runtime/range.h"
#include "parallel/runtime/tensor.h"

namespace weft {

// The elements of rank `rank` in a tensor of `total` elements, divided by `counts`, or evenly without counts.
Range part_of_rank(std::span<const std::int64_t> counts, std::int64_t total, int size, int rank);

class Communicator {
 public:
  // `stream`, `counters` and `clock` belong to the rank and outlive the communicator.
  Communicator(std::string group, int rank, int size, Stream& stream, CommunicationCounters& counters,
               PhaseClock& clock)
      : group_(std::move(group)), rank_(rank), size_(size), stream_(stream), counters_(counters), clock_(clock) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& group() const { return group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  Stream& stream() const { return stream_; }
  // Shared by all communicators of the rank.
  CommunicationCounters& counters() { return counters_; }
  PhaseClock& clock() { return clock_; }

  // output = the inputs of ranks 0, 1, ... one after another. `counts` are the elements of each rank's input; they may
  // differ or be zero. Without counts every input has output.size() / size() elements. `input` may be this rank's own
  // part of `output`.
  void all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts = {});
  // output = this rank's part of the sum of all inputs; `counts` are the sizes of the parts (default equal). `output`
  // may be this rank's own part of `input`. 16-bit types are added in float32 and rounded once; NCCL rounds after each
  // addition (nccl_world.h).
  void reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts = {});
  // In place. Any dtype; 16-bit types are added and rounded as in reduce_scatter.
  void all_reduce(TensorView data, Reduce reduce = Reduce::sum);
  // Sends send_counts[p] elements to rank p, taken consecutively from `input`. Receives receive_counts[p] elements from
  // rank p, stored consecutively in `output`.
  void all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                  std::span<const std::int64_t> receive_counts);
  void broadcast(TensorView data, int root);
  void barrier();

  // Sends `data` to rank `peer`. Returns without waiting for this message, but only after the peer has received the
  // previous message on this communicator. Over NCCL a rank sends or receives on one communicator, not both. `data`
  // must stay unchanged until the next send to the peer or flush(). It must then stay until the work queued on the
  // stream up to that point is done.
  void send(ConstTensorView data, int peer);
  // Waits for the peer's send. Messages between two ranks arrive in order. Sizes and dtypes must agree.
  void receive(TensorView data, int peer);
  // Waits until all sent messages have been received.
  void flush();
  // Collective over this group, with the same list on all ranks. Sets up messages from the first to the second rank of
  // each pair. Otherwise the hosts of both ranks may wait for each other at the first message (NCCL).
  void connect(std::span<const std::pair<int, int>> pairs) { do_connect(pairs); }

  // Collective over this group. Ranks with equal `color` form a new group named `name`, ordered by `key`. Its work is
  // queued on `stream`.
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name, Stream& stream);
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) {
    return split(color, key, name, stream_);
  }

 protected:
  virtual void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) = 0;
  virtual void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) = 0;
  virtual void do_all_reduce(TensorView data, Reduce reduce) = 0;
  virtual void do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                             std::span<const std::int64_t> receive_counts) = 0;
  virtual void do_broadcast(TensorView data, int root) = 0;
  virtual void do_barrier() = 0;
  virtual void do_send(ConstTensorView data, int peer) = 0;
  virtual void do_receive(TensorView data, int peer) = 0;
  virtual void do_flush() = 0;
  virtual void do_connect(std::span<const std::pair<int, int>>) {}
  virtual std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) = 0;

 private:
  // Counts a call, and takes its time from here on.
  PhaseClock::Scope count(CollectiveOp op, std::int64_t bytes);

  std::string group_;
  int rank_;
  int size_;
  Stream& stream_;
  CommunicationCounters& counters_;
  PhaseClock& clock_;
};

}  // namespace weft
