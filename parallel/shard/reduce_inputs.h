// The inputs of reductions in flight: full gradients that the reduce lane still reads while the next unit's are being
// filled. Their number is bounded, so that compute that runs ahead of the network does not pile them up; one pool
// serves all units of a rank, because they share the lane.
//
// A reduction never makes compute wait. What waits, on its stream and not on the host, is the accumulator that would be
// one too many.
#pragma once

#include <deque>

#include "parallel/runtime/ledger.h"

namespace weft {

class ReduceInputs {
 public:
  // At most `limit` stay in flight beside the accumulator being filled. Streams outlive the pool.
  ReduceInputs(int limit, Stream& compute, Stream& reduce) : limit_(limit), compute_(compute), reduce_(reduce) {}

  // Before an accumulator is allocated: compute goes on once the reductions that the pool has given up are done.
  void make_room() { compute_.wait(retired_); }
  // Before a copy of an accumulator is allocated on the reduce lane, which has done with the oldest input by then.
  void make_room_for_copy() { retire_until(limit_ - 1); }
  // Takes over what the work queued on the reduce lane so far reads; the oldest input is given back when there are more
  // than `limit`.
  void put(Tensor input, const void* owner, std::size_t number);
  // Compute goes on once the reduction of the input that `owner` put as its `number`th has ended, which with those
  // before it is given back, if the pool has not given it up already.
  void wait_for(const void* owner, std::size_t number);
  // All are given back. The caller has made its own stream wait for the reduce lane.
  void finish();

 private:
  struct Input {
    Tensor tensor;
    Fence reduced;
    const void* owner = nullptr;
    std::size_t number = 0;
  };

  void retire_until(int inputs);

  int limit_;
  Stream &compute_, &reduce_;
  std::deque<Input> inputs_;  // oldest first
  Fence retired_;             // of the last one given back
};

}  // namespace weft
