// A link that does something else than it is asked: a communicator that passes calls on unless a fault stands in their
// place. Faults of communication are made here and not in what calls it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "parallel/comm/communicator.h"

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
// calls are passed on. Calls are counted twice: here and by what is passed on to.
class FaultyLink final : public Communicator {
 public:
  // `inner` outlives the link.
  FaultyLink(Communicator& inner, LinkFaults faults)
      : Communicator(inner.group(), inner.rank(), inner.size(), inner.stream(), inner.counters(), inner.clock()),
        inner_(inner),
        faults_(std::move(faults)) {}

 protected:
  void do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    counts.empty() ? faults_.all_gather(inner_, input, output) : inner_.all_gather(input, output, counts);
  }
  void do_reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) override {
    counts.empty() ? faults_.reduce_scatter(inner_, input, output) : inner_.reduce_scatter(input, output, counts);
  }
  void do_all_reduce(TensorView data, Reduce reduce) override {
    reduce == Reduce::sum ? faults_.all_reduce(inner_, data) : inner_.all_reduce(data, reduce);
  }
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
    const auto [other_color, other_key] = faults_.place(*this, name, color, key);
    auto group = inner_.split(other_color, other_key, name, stream);
    auto faulty = std::make_unique<FaultyLink>(*group, faults_);
    faulty->owned_ = std::move(group);
    return faulty;
  }

 private:
  std::unique_ptr<Communicator> owned_;  // what a split made
  Communicator& inner_;
  LinkFaults faults_;
};

}  // namespace weft
