// A link that takes its time. Its communicator passes every call on, and queues something on its stream behind each
// gather and each reduction of shards.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "tests/trainer/forwarding_communicator.h"

namespace weft {

// What is queued behind a call, on the communicator's stream; a rank alone in its group has no link.
struct SlowLink {
  std::function<void(Stream&)> after_all_gather = [](Stream&) {};
  std::function<void(Stream&)> after_reduce_scatter = [](Stream&) {};
};

// Groups split from it have the same link.
class SlowLinkCommunicator final : public ForwardingCommunicator {
 public:
  SlowLinkCommunicator(Communicator& inner, SlowLink link) : ForwardingCommunicator(inner), link_(std::move(link)) {}
  SlowLinkCommunicator(std::unique_ptr<Communicator> inner, SlowLink link)
      : ForwardingCommunicator(std::move(inner)), link_(std::move(link)) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    ForwardingCommunicator::do_all_gather(input, output, counts);
    if (size() > 1) link_.after_all_gather(stream());
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    ForwardingCommunicator::do_reduce_scatter(input, output, counts);
    if (size() > 1) link_.after_reduce_scatter(stream());
  }
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override {
    return std::make_unique<SlowLinkCommunicator>(inner().split(color, key, name, stream), link_);
  }

 private:
  SlowLink link_;
};

}  // namespace weft
