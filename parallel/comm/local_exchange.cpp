// The collectives and messages of LocalCommunicator. A rank reads its peers' buffers directly. The sender of a message
// puts a view into the channel, and the receiver reads the storage of the view.
#include <algorithm>

#include "parallel/comm/local_communicator.h"

namespace weft {

void LocalCommunicator::copy(const std::byte* from, std::byte* to, std::int64_t bytes) {
  if (bytes > 0 && from != to) stream().device().copy(stream(), from, to, bytes);
}

void LocalCommunicator::do_all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) {
  const Arrival arrival{.operation = name_of(CollectiveOp::all_gather),
                        .dtype = output.dtype(),
                        .elements = output.size(),
                        .counts = counts,
                        .input = input.data()};
  const std::uint32_t meeting = meet(arrival);
  // Each rank begins with its own part and continues with the next rank's, so that ranks do not all read the same
  // memory.
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const Range part_of_peer = part_of_rank(counts, output.size(), size(), peer);
    const std::int64_t width = size_of(output.dtype());
    copy(shared_->arrival(peer, meeting).input, output.data() + part_of_peer.begin * width, part_of_peer.count * width);
  }
  part(arrival);
}

void LocalCommunicator::do_reduce_scatter(ConstTensorView input, TensorView output,
                                          std::span<const std::int64_t> counts) {
  if (size() == 1) return copy(input.data(), output.data(), input.bytes());
  const Arrival arrival{.operation = name_of(CollectiveOp::reduce_scatter),
                        .dtype = input.dtype(),
                        .elements = input.size(),
                        .counts = counts,
                        .input = input.data()};
  const std::uint32_t meeting = meet(arrival);
  std::vector<const std::byte*> inputs;
  for (int peer = 0; peer < size(); ++peer) inputs.push_back(shared_->arrival(peer, meeting).input);
  std::byte* const outputs[] = {output.data()};
  const Range own = part_of_rank(counts, input.size(), size(), rank());
  reduce_elements(stream(), input.dtype(), Reduce::sum, inputs, own.begin, own.count, outputs);
  part(arrival);
}

// One phase: rank r combines part r of all buffers and writes the result to all buffers. Each part is computed by one
// rank only, so all ranks hold the same bits.
void LocalCommunicator::do_all_reduce(TensorView data, Reduce reduce) {
  if (size() == 1) return;
  const Arrival arrival{.operation = name_of(CollectiveOp::all_reduce),
                        .dtype = data.dtype(),
                        .elements = data.size(),
                        .reduce = reduce,
                        .output = data.data()};
  const std::uint32_t meeting = meet(arrival);
  // Parts are cut at multiples of 16 elements, so that ranks seldom write into the same cache line.
  constexpr std::int64_t unit = 16;
  const Range units = balanced_part((data.size() + unit - 1) / unit, size(), rank());
  const std::int64_t begin = units.begin * unit;
  const std::int64_t count = std::min(units.count * unit, data.size() - begin);
  if (count > 0) {
    std::vector<const std::byte*> inputs;
    std::vector<std::byte*> outputs;
    for (int peer = 0; peer < size(); ++peer) {
      std::byte* buffer = shared_->arrival(peer, meeting).output;
      inputs.push_back(buffer);
      outputs.push_back(buffer + begin * size_of(data.dtype()));
    }
    reduce_elements(stream(), data.dtype(), reduce, inputs, begin, count, outputs);
  }
  part(arrival);
}

void LocalCommunicator::do_all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts,
                                      TensorView output, std::span<const std::int64_t> receive_counts) {
  const Arrival arrival{.operation = name_of(CollectiveOp::all_to_all),
                        .dtype = input.dtype(),
                        .counts = send_counts,
                        .receive_counts = receive_counts,
                        .input = input.data()};
  const std::uint32_t meeting = meet(arrival);
  const std::int64_t width = size_of(input.dtype());
  for (int step = 0; step < size(); ++step) {
    const int peer = (rank() + step) % size();
    const Arrival& source = shared_->arrival(peer, meeting);
    const Range from = part_of_rank(source.counts, 0, size(), rank());
    const Range to = part_of_rank(receive_counts, 0, size(), peer);
    copy(source.input + from.begin * width, output.data() + to.begin * width, to.count * width);
  }
  part(arrival);
}

void LocalCommunicator::do_broadcast(TensorView data, int root) {
  const Arrival arrival{.operation = name_of(CollectiveOp::broadcast),
                        .dtype = data.dtype(),
                        .elements = data.size(),
                        .root = root,
                        .input = data.data()};
  const std::uint32_t meeting = meet(arrival);
  copy(shared_->arrival(root, meeting).input, data.data(), data.bytes());
  part(arrival);
}

// One meeting is enough: no buffer is read.
void LocalCommunicator::do_barrier() {
  meet({.operation = name_of(CollectiveOp::barrier)});
}

namespace {

std::string describe(const char* verb, ConstTensorView data, const std::string& peer) {
  return fmt::format("{} {} of {} bytes {}", verb, peer, data.bytes(), name_of(data.dtype()));
}

}  // namespace

void LocalCommunicator::wait_until_received(int peer, const char* operation) {
  LocalChannel& channel = shared_->channel(rank(), peer);
  const auto begin = Clock::now();
  while (true) {
    const std::uint32_t state = channel.state.load();
    if (state == LocalChannel::empty) return stream().wait(channel.received);
    if (state == LocalChannel::refused) stop(channel.refusal);
    if (channel.state.wait_while(state, shared_->run().wait_style())) continue;
    if (const auto reason = hopeless(begin, fmt::format("{} to {}", operation, shared_->name_of_rank(peer)), {peer})) {
      // The peer may have received the message and finished in the meantime.
      if (channel.state.load() == state) stop(*reason);
    }
  }
}

void LocalCommunicator::do_send(ConstTensorView data, int peer) {
  if (shared_->run().failed()) stop(*hopeless(Clock::now(), "send", {}));
  wait_until_received(peer, "send");
  LocalChannel& channel = shared_->channel(rank(), peer);
  channel.message = data;
  channel.sent = stream().record();
  channel.state.store(LocalChannel::full);
}

void LocalCommunicator::do_receive(TensorView data, int peer) {
  const std::string sender = shared_->name_of_rank(peer);
  LocalChannel& channel = shared_->channel(peer, rank());
  const auto begin = Clock::now();
  while (!channel.state.replace(LocalChannel::full, LocalChannel::reading)) {
    const std::uint32_t state = channel.state.load();
    if (state == LocalChannel::full || channel.state.wait_while(state, shared_->run().wait_style())) continue;
    const auto reason = hopeless(begin, describe("receive from", data, sender), {peer});
    // The peer may have sent the message and finished in the meantime.
    if (!reason || channel.state.load() != state) continue;
    // A peer that retracts its message is ending and will report the reason. Until then, this rank's error would be
    // reported as the first.
    if (state != LocalChannel::retracted) stop(*reason);
    stop(fmt::format("group {}: {}: {} has ended and taken its message back", group(),
                     describe("receive from", data, sender), sender));
  }
  const ConstTensorView message = channel.message;
  if (message.size() != data.size() || message.dtype() != data.dtype()) {
    channel.refusal = fmt::format("group {}: {} is in {} while {} is in {}", group(), sender,
                                  describe("send to", message, shared_->name_of_rank(rank())),
                                  shared_->name_of_rank(rank()), describe("receive from", data, sender));
    const std::string text = channel.refusal;
    channel.state.store(LocalChannel::refused);
    stop(text);
  }
  stream().wait(channel.sent);
  if (!data.empty()) stream().device().copy(stream(), message.data(), data.data(), data.bytes());
  channel.received = stream().record();
  channel.state.store(LocalChannel::empty);
}

void LocalCommunicator::do_flush() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) wait_until_received(peer, "flush of the message");
  }
}

void LocalCommunicator::retract_messages() {
  for (int peer = 0; peer < size(); ++peer) {
    WaitWord& state = shared_->channel(rank(), peer).state;
    state.replace(LocalChannel::full, LocalChannel::retracted);
    // The storage must outlive a copy that has begun.
    while (state.load() == LocalChannel::reading) state.wait_while(LocalChannel::reading, shared_->run().wait_style());
  }
}

}  // namespace weft
