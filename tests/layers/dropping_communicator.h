// A seeded fault: a communicator that loses one row in transit.
#pragma once

#include "parallel/comm/communicator.h"
#include "parallel/runtime/elementwise.h"

namespace weft {

// Passes every call on, but clears the first `row_elements` of what the second all_to_all brings. In a segment's
// forward the first one dispatches rows to experts and the second one returns them.
class DroppingCommunicator final : public Communicator {
 public:
  DroppingCommunicator(std::unique_ptr<Communicator> inner, std::int64_t row_elements)
      : Communicator(inner->group(), inner->rank(), inner->size(), inner->stream(), inner->counters(), inner->clock()),
        inner_(std::move(inner)),
        row_elements_(row_elements) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    inner_->all_gather(input, output, counts);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    inner_->reduce_scatter(input, output, counts);
  }
  void do_all_reduce(TensorView data, Reduce reduce) override { inner_->all_reduce(data, reduce); }
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                     std::span<const std::int64_t> receive_counts) override {
    inner_->all_to_all(input, send_counts, output, receive_counts);
    if (++calls_ == 2) fill(stream(), output.reshaped(output.size(), 1).rows_from(0, row_elements_), 0.0f);
  }
  void do_broadcast(TensorView data, int root) override { inner_->broadcast(data, root); }
  void do_barrier() override { inner_->barrier(); }
  void do_send(ConstTensorView data, int peer) override { inner_->send(data, peer); }
  void do_receive(TensorView data, int peer) override { inner_->receive(data, peer); }
  void do_flush() override { inner_->flush(); }
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override {
    return inner_->split(color, key, name, stream);
  }

 private:
  std::unique_ptr<Communicator> inner_;
  std::int64_t row_elements_;
  int calls_ = 0;
};

}  // namespace weft
