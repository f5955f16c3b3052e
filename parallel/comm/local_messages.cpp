// Messages between two ranks: the sender puts a view into the channel, and the receiver reads the storage of the view.
#include "parallel/comm/local_communicator.h"

namespace weft {
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
