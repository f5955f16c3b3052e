// The communicator of a group of one rank, on any device. Data is copied, or already in place.
#pragma once

#include "parallel/comm/communicator.h"

namespace weft {

class LoneCommunicator final : public Communicator {
 public:
  LoneCommunicator(std::string group, Stream& stream, CommunicationCounters& counters, PhaseClock& clock)
      : Communicator(std::move(group), 0, 1, stream, counters, clock) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t>) override {
    copy(input, output);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t>) override {
    copy(input, output);
  }
  void do_all_reduce(TensorView, Reduce) override {}
  void do_all_to_all(ConstTensorView input, std::span<const std::int64_t>, TensorView output,
                     std::span<const std::int64_t>) override {
    copy(input, output);
  }
  void do_broadcast(TensorView, int) override {}
  void do_barrier() override {}
  // A send has no possible peer; the public calls refuse it.
  void do_send(ConstTensorView, int) override {}
  void do_receive(TensorView, int) override {}
  void do_flush() override {}
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
