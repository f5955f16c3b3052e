// A link that takes its time: a communicator that passes every call on, and queues something on its stream behind each
// gather and each reduction of shards.
#pragma once

#include <functional>
#include <memory>

#include "parallel/comm/communicator.h"

namespace weft {

// What is queued behind a call, on the communicator's stream; a rank alone in its group has no link.
struct SlowLink {
  std::function<void(Stream&)> after_all_gather = [](Stream&) {};
  std::function<void(Stream&)> after_reduce_scatter = [](Stream&) {};
};

// Groups split from it have the same link. Calls are counted twice: here and by what is passed on to.
class SlowLinkCommunicator final : public Communicator {
 public:
  // `inner` outlives the communicator.
  SlowLinkCommunicator(Communicator& inner, SlowLink link)
      : Communicator(inner.group(), inner.rank(), inner.size(), inner.stream(), inner.counters(), inner.clock()),
        inner_(inner),
        link_(std::move(link)) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    inner_.all_gather(input, output, counts);
    if (size() > 1) link_.after_all_gather(stream());
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    inner_.reduce_scatter(input, output, counts);
    if (size() > 1) link_.after_reduce_scatter(stream());
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
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override {
    auto group = inner_.split(color, key, name, stream);
    auto slow = std::make_unique<SlowLinkCommunicator>(*group, link_);
    slow->owned_ = std::move(group);
    return slow;
  }

 private:
  std::unique_ptr<Communicator> owned_;  // what a split made
  Communicator& inner_;
  SlowLink link_;
};

}  // namespace weft
