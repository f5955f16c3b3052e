#include "parallel/comm/communicator.h"

#include <cstdint>
#include <iterator>
#include <numeric>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// The call that error messages begin with.
struct Call {
  const Communicator& communicator;
  CollectiveOp op;

  template <typename... Args>
  void expect(bool condition, fmt::format_string<Args...> text, Args&&... args) const {
    if (condition) return;
    fail("group {}, rank {}: {}: {}", communicator.group(), communicator.rank(), name_of(op),
         fmt::format(text, std::forward<Args>(args)...));
  }
  void expect_same_dtype(ConstTensorView input, ConstTensorView output) const {
    expect(input.dtype() == output.dtype(), "the input is {} and the output is {}", name_of(input.dtype()),
           name_of(output.dtype()));
  }
  void expect_peer(int peer) const {
    expect(peer >= 0 && peer < communicator.size(), "rank {} is not one of the {} ranks of the group", peer,
           communicator.size());
  }
  void expect_counts(const char* name, std::span<const std::int64_t> counts, std::int64_t total) const {
    expect(std::ssize(counts) == communicator.size(), "{} has {} entries for {} ranks", name, counts.size(),
           communicator.size());
    for (std::size_t peer = 0; peer < counts.size(); ++peer) {
      expect(counts[peer] >= 0, "{}[{}] is {}", name, peer, counts[peer]);
    }
    const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    expect(sum == total, "{} sums to {} elements, but the tensor has {}", name, sum, total);
  }
};

// This rank's part of `whole`. Throws unless `part` has the same size.
ConstTensorView own_part(const Call& call, ConstTensorView whole, ConstTensorView part,
                         std::span<const std::int64_t> counts) {
  const int size = call.communicator.size(), rank = call.communicator.rank();
  if (counts.empty()) {
    call.expect(whole.size() % size == 0, "{} elements do not divide over {} ranks; pass counts", whole.size(), size);
  } else {
    call.expect_counts("counts", counts, whole.size());
  }
  const Range own = part_of_rank(counts, whole.size(), size, rank);
  call.expect(part.size() == own.count, "this rank's part is {} elements, but its tensor has {}", own.count,
              part.size());
  return {whole.data() + own.begin * size_of(whole.dtype()), whole.dtype(), own.count, 1};
}

bool overlap(ConstTensorView a, ConstTensorView b) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a.data());
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b.data());
  return a_begin < b_begin + b.bytes() && b_begin < a_begin + a.bytes();
}

}  // namespace

Range part_of_rank(std::span<const std::int64_t> counts, std::int64_t total, int size, int rank) {
  if (counts.empty()) return {total / size * rank, total / size};
  return {std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0}), counts[rank]};
}

PhaseClock::Scope Communicator::count(CollectiveOp op, std::int64_t bytes) {
  if (size_ > 1) {
    CommunicationCount& entry = counters_[{group_, op}];
    ++entry.count;
    entry.bytes += bytes;
  }
  return {clock_, Phase::communication, stream_};
}

void Communicator::all_gather(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) {
  const Call call{*this, CollectiveOp::all_gather};
  call.expect_same_dtype(input, output);
  const ConstTensorView own = own_part(call, output, input, counts);
  call.expect(input.data() == own.data() || !overlap(input, output),
              "the input overlaps the output elsewhere than in this rank's own part");
  const auto scope = count(call.op, output.bytes());
  do_all_gather(input, output, counts);
}

void Communicator::reduce_scatter(ConstTensorView input, TensorView output, std::span<const std::int64_t> counts) {
  const Call call{*this, CollectiveOp::reduce_scatter};
  call.expect_same_dtype(input, output);
  const ConstTensorView own = own_part(call, input, output, counts);
  call.expect(output.data() == own.data() || !overlap(input, output),
              "the output overlaps the input elsewhere than in this rank's own part");
  const auto scope = count(call.op, input.bytes());
  do_reduce_scatter(input, output, counts);
}

void Communicator::all_reduce(TensorView data, Reduce reduce) {
  const auto scope = count(CollectiveOp::all_reduce, data.bytes());
  do_all_reduce(data, reduce);
}

void Communicator::all_to_all(ConstTensorView input, std::span<const std::int64_t> send_counts, TensorView output,
                              std::span<const std::int64_t> receive_counts) {
  const Call call{*this, CollectiveOp::all_to_all};
  call.expect_same_dtype(input, output);
  call.expect_counts("send_counts", send_counts, input.size());
  call.expect_counts("receive_counts", receive_counts, output.size());
  call.expect(!overlap(input, output), "the input and the output overlap");
  const auto scope = count(call.op, input.bytes());
  do_all_to_all(input, send_counts, output, receive_counts);
}

void Communicator::broadcast(TensorView data, int root) {
  const Call call{*this, CollectiveOp::broadcast};
  call.expect_peer(root);
  const auto scope = count(call.op, data.bytes());
  do_broadcast(data, root);
}

void Communicator::barrier() {
  const auto scope = count(CollectiveOp::barrier, 0);
  do_barrier();
}

void Communicator::send(ConstTensorView data, int peer) {
  const Call call{*this, CollectiveOp::send};
  call.expect_peer(peer);
  call.expect(peer != rank_, "a rank does not send to itself");
  const auto scope = count(call.op, data.bytes());
  do_send(data, peer);
}

void Communicator::receive(TensorView data, int peer) {
  const Call call{*this, CollectiveOp::receive};
  call.expect_peer(peer);
  call.expect(peer != rank_, "a rank does not receive from itself");
  // The sender counts the bytes.
  const auto scope = count(call.op, 0);
  do_receive(data, peer);
}

void Communicator::flush() {
  const PhaseClock::Scope scope(clock_, Phase::communication, stream_);
  do_flush();
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, const std::string& name, Stream& stream) {
  const PhaseClock::Scope scope(clock_, Phase::communication, stream_);
  return do_split(color, key, name, stream);
}

}  // namespace weft
