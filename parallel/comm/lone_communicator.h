// Communicators of ranks without their peers.
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/runtime/error.h"

namespace weft {

// One rank of a group whose other ranks do not run. Calls are checked and counted as usual, and exchange nothing. The
// rank walks through a step to find its cost (parallel/runtime/dry_device.h).
class DryCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  void do_all_gather(ConstTensorView, TensorView, std::span<const std::int64_t>) override {}
  void do_reduce_scatter(ConstTensorView, TensorView, std::span<const std::int64_t>) override {}
  void do_all_reduce(TensorView, Reduce) override {}
  void do_all_to_all(ConstTensorView, std::span<const std::int64_t>, TensorView,
                     std::span<const std::int64_t>) override {}
  void do_broadcast(TensorView, int) override {}
  void do_barrier() override {}
  void do_send(ConstTensorView, int) override {}
  void do_receive(TensorView, int) override {}
  void do_flush() override {}
  // Only the other ranks know the members of the new group.
  std::unique_ptr<Communicator> do_split(int, int, const std::string& name, Stream&) override {
    fail("group {} of a dry run is made from the mesh, not by splitting another", name);
  }
};

// The communicator of a group of one rank, on any device. Data is copied, or already in place; a send has no possible
// peer, and the public calls refuse it.
class LoneCommunicator final : public DryCommunicator {
 public:
  LoneCommunicator(std::string group, Stream& stream, CommunicationCounters& counters, PhaseClock& clock)
      : DryCommunicator(std::move(group), 0, 1, stream, counters, clock) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t>) override {
    copy(input, output);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t>) override {
    copy(input, output);
  }
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t>, TensorView output,
                     std::span<const std::int64_t>) override {
    copy(input, output);
  }
  std::unique_ptr<Communicator> do_split(int, int, const std::string& name, Stream& stream) override {
    return std::make_unique<LoneCommunicator>(name, stream, counters(), clock());
  }

 private:
  void copy(ConstTensorView from, TensorView to) {
    if (!to.empty() && from.data() != to.data()) {
      stream().device().copy(stream(), from.data(), to.data(), to.bytes());
    }
  }
};

}  // namespace weft
