// A communicator that passes every call on to another: what tests put in its way overrides the calls it concerns.
#pragma once

#include <memory>
#include <string>

#include "parallel/comm/communicator.h"

namespace weft {

// Calls are counted twice: here and by what is passed on to.
class ForwardingCommunicator : public Communicator {
 public:
  // `inner` outlives the communicator.
  explicit ForwardingCommunicator(Communicator& inner)
      : Communicator(inner.group(), inner.rank(), inner.size(), inner.stream(), inner.counters(), inner.clock()),
        inner_(inner) {}
  // Owns what a split made.
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : ForwardingCommunicator(*inner) {
    owned_ = std::move(inner);
  }

 protected:
  Communicator& inner() { return inner_; }

  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    inner_.all_gather(input, output, counts);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    inner_.reduce_scatter(input, output, counts);
  }
  void do_all_reduce(TensorView data, Reduce reduce) override { inner_.all_reduce(data, reduce); }
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                     std::span<const std::int64_t> receive_counts) override {
    inner_.all_to_all(input, send_counts, output, receive_counts);
  }
  void do_broadcast(TensorView data, int root) override { inner_.broadcast(data, root); }
  void do_barrier() override { inner_.barrier(); }
  void do_send(ConstTensorView data, int peer) override { inner_.send(data, peer); }
  void do_receive(TensorView data, int peer) override { inner_.receive(data, peer); }
  void do_flush() override { inner_.flush(); }

 private:
  std::unique_ptr<Communicator> owned_;
  Communicator& inner_;
};

}  // namespace weft
