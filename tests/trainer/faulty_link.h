// A link that does something else than it is asked: a communicator that passes calls on unless a fault stands in their
// place. Faults of communication are made here and not in what calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tests/trainer/forwarding_communicator.h"

namespace weft {

// By group and operation; `group` is the right communicator, through which a fault may still talk. The same on every
// rank, or ranks wait for each other.
struct LinkFaults {
  std::function<void(Communicator& group, ConstTensorView input, TensorView output)> all_gather =
      [](Communicator& group, ConstTensorView input, TensorView output) { group.all_gather(input, output); };
  std::function<void(Communicator& group, ConstTensorView input, TensorView output)> reduce_scatter =
      [](Communicator& group, ConstTensorView input, TensorView output) { group.reduce_scatter(input, output); };
  std::function<void(Communicator& group, TensorView data)> all_reduce = [](Communicator& group, TensorView data) {
    group.all_reduce(data);
  };
  // Color and key with which a rank of the world joins a group.
  std::function<std::pair<int, int>(const Communicator& world, const std::string& name, int color, int key)> place =
      [](const Communicator&, const std::string&, int color, int key) { return std::pair(color, key); };
};

// Groups split from it have the same faults. Parts are equal and reductions sums, as those of shard units are; other
// calls are passed on.
class FaultyLink final : public ForwardingCommunicator {
 public:
  FaultyLink(Communicator& inner, LinkFaults faults) : ForwardingCommunicator(inner), faults_(std::move(faults)) {}
  FaultyLink(std::unique_ptr<Communicator> inner, LinkFaults faults)
      : ForwardingCommunicator(std::move(inner)), faults_(std::move(faults)) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    if (!counts.empty()) return ForwardingCommunicator::do_all_gather(input, output, counts);
    faults_.all_gather(inner(), input, output);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    if (!counts.empty()) return ForwardingCommunicator::do_reduce_scatter(input, output, counts);
    faults_.reduce_scatter(inner(), input, output);
  }
  void do_all_reduce(TensorView data, Reduce reduce) override {
    if (reduce != Reduce::sum) return ForwardingCommunicator::do_all_reduce(data, reduce);
    faults_.all_reduce(inner(), data);
  }
  std::unique_ptr<Communicator> do_split(int color, int key, const std::string& name, Stream& stream) override {
    const auto [other_color, other_key] = faults_.place(*this, name, color, key);
    return std::make_unique<FaultyLink>(inner().split(other_color, other_key, name, stream), faults_);
  }

 private:
  LinkFaults faults_;
};

}  // namespace weft
