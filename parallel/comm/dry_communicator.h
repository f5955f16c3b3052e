// The communicator of one rank of a group without the other ranks. Calls are checked and counted as usual, and exchange
// nothing. The rank walks through a step to find its cost (parallel/runtime/dry_device.h).
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/runtime/error.h"

namespace weft {

class DryCommunicator final : public Communicator {
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

}  // namespace weft
