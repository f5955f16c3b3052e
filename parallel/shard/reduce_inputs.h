// The inputs of reductions in flight: full gradients that the reduce lane still reads while the gradients of the next
// unit are filled. Their number is bounded, so that they do not pile up if compute runs ahead of the network. One pool
// serves all units of a rank, because the units share the lane.
//
// A reduction never makes compute wait. The allocation of an accumulator beyond the limit waits, on the compute stream
// and not on the host.
//
// A device's pool gives a block to a stream that comes after the block's release. So inputs are released on a stream of
// their own, right behind their reduction. On the reduce lane a release would stand behind later reductions. Whoever
// takes the place of an input waits for its release.
#pragma once

#include <deque>
#include <memory>

#include "parallel/runtime/ledger.h"

namespace weft {

class ReduceInputs {
 public:
  // At most `limit` inputs stay in flight, in addition to the accumulator being filled. Streams outlive the pool.
  ReduceInputs(int limit, Stream& compute, Stream& reduce)
      : limit_(limit), compute_(compute), reduce_(reduce), releases_(compute.device().create_stream("releases")) {}

  // Call before allocating an accumulator. Compute then waits for the reductions of the inputs that were given back.
  void make_room() { compute_.wait(retired_); }
  // Call before a copy of an accumulator is allocated on the reduce lane. Gives back inputs until fewer than `limit`
  // are left; by then the lane has finished reading them.
  void make_room_for_copy() {
    retire_until(limit_ - 1);
    reduce_.wait(retired_);
  }
  // Takes over an input of the work queued on the reduce lane so far. Gives back the oldest input if there are more
  // than `limit`.
  void put(Tensor input, const void* owner, std::size_t number) {
    input.release_on(reduce_);
    inputs_.push_back({std::move(input), reduce_.record(), owner, number});
    retire_until(limit_);
  }
  // Compute waits for the reduction of input `number` of `owner`, as passed to put(). That input and all earlier ones
  // are given back, if the pool has not given them back already.
  void wait_for(const void* owner, std::size_t number) {
    for (std::size_t left = inputs_.size(); left > 0; --left) {
      if (inputs_[left - 1].owner != owner || inputs_[left - 1].number != number) continue;
      retire_until(static_cast<int>(inputs_.size() - left));
      break;
    }
    compute_.wait(retired_);
  }
  // Gives back all inputs. Compute already waits for the reduce lane.
  void finish() {
    compute_.wait(retired_);
    for (Input& input : inputs_) input.tensor.release_on(compute_);
    inputs_.clear();
    retired_ = nullptr;
  }

 private:
  struct Input {
    Tensor tensor;
    Fence reduced;
    const void* owner = nullptr;
    std::size_t number = 0;
  };

  void retire_until(int inputs) {
    while (!inputs_.empty() && static_cast<int>(inputs_.size()) > inputs) {
      releases_->wait(inputs_.front().reduced);
      inputs_.front().tensor.release_on(*releases_);
      inputs_.pop_front();
      retired_ = releases_->record();
    }
  }

  int limit_;
  Stream &compute_, &reduce_;
  std::unique_ptr<Stream> releases_;
  std::deque<Input> inputs_;  // oldest first
  Fence retired_;             // behind the release of the last input given back
};

}  // namespace weft
