// Fences of a local collective where streams run behind the host. No rank reads a peer's buffer before the work that
// the peer queued for it. No rank goes on before its peers have queued their reads of its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <ostream>
#include <vector>

#include "parallel/comm/local.h"
#include "tests/parallel/forwarding_device.h"

namespace weft {
namespace {

// What a rank's stream was asked for, in order.
struct Entry {
  enum Kind { work, record, wait } kind;
  // Of a wait: whose event, recorded at which place of that rank's list.
  int rank = -1;
  std::size_t place = 0;
};
using EntryLog = std::vector<Entry>;

class LoggedEvent final : public Event {
 public:
  LoggedEvent(int rank_, std::size_t place_) : rank(rank_), place(place_) {}
  void synchronize() const override { ADD_FAILURE() << "the host waits for a fence"; }
  bool reached() const override { return false; }
  double seconds_since(const Event&) const override { return 0.0; }

  const int rank;
  const std::size_t place;
};

// Everything a collective queues is a copy or an element-wise kernel. It is done at once, which the checks ignore.
class LoggedDevice final : public ForwardingDevice {
 public:
  explicit LoggedDevice(EntryLog& log) : log_(log) {}
  void copy(Stream& stream, const void* from, void* to, std::int64_t bytes) override {
    log_.push_back({Entry::work});
    ForwardingDevice::copy(stream, from, to, bytes);
  }
  const ElementwiseKernels& elementwise() const override {
    log_.push_back({Entry::work});
    return ForwardingDevice::elementwise();
  }

 private:
  EntryLog& log_;
};

class LoggedStream final : public Stream {
 public:
  LoggedStream(LoggedDevice& device, int rank, EntryLog& log) : device_(device), rank_(rank), log_(log) {}
  Device& device() override { return device_; }
  Fence record() override {
    log_.push_back({Entry::record});
    return std::make_shared<LoggedEvent>(rank_, log_.size() - 1);
  }
  Fence record_time() override { return record(); }
  void wait(const Fence& fence) override {
    if (!fence) return;
    const auto& event = dynamic_cast<const LoggedEvent&>(*fence);
    log_.push_back({Entry::wait, event.rank, event.place});
  }
  void synchronize() override { ADD_FAILURE() << "the host waits for the stream"; }

 private:
  LoggedDevice& device_;
  int rank_;
  EntryLog& log_;
};

constexpr int ranks = 3;
constexpr std::int64_t elements = 96;

// A group whose ranks each queue some work, make the call and queue some more.
struct Outcome {
  EntryLog log;
  std::size_t before = 0, after = 0;  // the places of what was queued around the call

  // Of what the call queued itself.
  std::vector<std::size_t> own_work() const {
    std::vector<std::size_t> places;
    for (std::size_t at = before + 1; at < after; ++at) {
      if (log[at].kind == Entry::work) places.push_back(at);
    }
    return places;
  }
  // Whether work at `place` comes after the work that `peer` has at `place_of_peer`.
  bool orders(std::size_t place, int peer, std::size_t place_of_peer) const {
    return std::any_of(log.begin(), log.begin() + static_cast<std::ptrdiff_t>(place), [&](const Entry& entry) {
      return entry.kind == Entry::wait && entry.rank == peer && entry.place > place_of_peer;
    });
  }
};

struct Buffers {
  std::vector<float> input = std::vector<float>(elements), output = std::vector<float>(elements * ranks);
  TensorView in(std::int64_t n = elements) {
    return view_of(std::span(input).first(static_cast<std::size_t>(n)), n, 1);
  }
  TensorView out(std::int64_t n) { return view_of(std::span(output).first(static_cast<std::size_t>(n)), n, 1); }
};
using Call = std::function<void(Communicator&, Buffers&)>;

std::array<Outcome, ranks> outcomes_of(const Call& call) {
  std::array<Outcome, ranks> outcomes;
  run_local_ranks(ranks, [&](Communicator& world) {
    Outcome& outcome = outcomes[static_cast<std::size_t>(world.rank())];
    Buffers buffers;
    LoggedDevice device(outcome.log);
    LoggedStream stream(device, world.rank(), outcome.log);
    const auto group = world.split(0, world.rank(), "group", stream);
    outcome.before = outcome.log.size();
    fill(stream, buffers.in(), 1.0F);
    call(*group, buffers);
    outcome.after = outcome.log.size();
    fill(stream, buffers.in(), 2.0F);
    world.barrier();
  });
  return outcomes;
}

struct NamedCall {
  const char* name;
  Call call;
};

[[maybe_unused]] void PrintTo(const NamedCall& call, std::ostream* out) {
  *out << call.name;
}

std::vector<NamedCall> collectives() {
  return {
      {"all_gather", [](Communicator& group, Buffers& b) { group.all_gather(b.in(), b.out(elements * ranks)); }},
      {"reduce_scatter",
       [](Communicator& group, Buffers& b) { group.reduce_scatter(b.in(), b.out(elements / ranks)); }},
      {"all_reduce", [](Communicator& group, Buffers& b) { group.all_reduce(b.in()); }},
      {"all_to_all",
       [](Communicator& group, Buffers& b) {
         const std::vector<std::int64_t> counts(ranks, elements / ranks);
         group.all_to_all(b.in(), counts, b.out(elements), counts);
       }},
      {"broadcast", [](Communicator& group, Buffers& b) { group.broadcast(b.in(), 1); }},
  };
}

class CollectiveFences : public ::testing::TestWithParam<NamedCall> {};

TEST_P(CollectiveFences, OrderReadsAfterThePeersWorkAndTheirNextWorkAfterTheReads) {
  const auto outcomes = outcomes_of(GetParam().call);
  std::size_t work = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const Outcome& own = outcomes[static_cast<std::size_t>(rank)];
    work += own.own_work().size();
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      SCOPED_TRACE(fmt::format("rank {} and its peer {}", rank, peer));
      const Outcome& other = outcomes[static_cast<std::size_t>(peer)];
      for (const std::size_t place : own.own_work()) EXPECT_TRUE(own.orders(place, peer, other.before));
      for (const std::size_t place : other.own_work()) EXPECT_TRUE(own.orders(own.after, peer, place));
    }
  }
  EXPECT_GE(work, static_cast<std::size_t>(ranks - 1));  // of a broadcast the root copies nothing
}

INSTANTIATE_TEST_SUITE_P(Operations, CollectiveFences, ::testing::ValuesIn(collectives()),
                         [](const auto& instance) { return instance.param.name; });

TEST(BarrierFences, OrderTheNextWorkAfterThePeersWork) {
  const auto outcomes = outcomes_of([](Communicator& group, Buffers&) { group.barrier(); });
  for (int rank = 0; rank < ranks; ++rank) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      const Outcome &own = outcomes[static_cast<std::size_t>(rank)], &other = outcomes[static_cast<std::size_t>(peer)];
      EXPECT_TRUE(own.orders(own.after, peer, other.before)) << rank << " and " << peer;
    }
  }
}

TEST(MessageFences, OrderTheReadAfterTheSendersWorkAndItsNextWorkAfterTheRead) {
  const auto outcomes = outcomes_of([](Communicator& group, Buffers& b) {
    group.send(b.in(), (group.rank() + 1) % ranks);
    group.receive(b.out(elements), (group.rank() + ranks - 1) % ranks);
    group.flush();
  });
  for (int receiver = 0; receiver < ranks; ++receiver) {
    const int sender = (receiver + ranks - 1) % ranks;
    const Outcome &to = outcomes[static_cast<std::size_t>(receiver)],
                  &from = outcomes[static_cast<std::size_t>(sender)];
    ASSERT_EQ(to.own_work().size(), 1U);
    EXPECT_TRUE(to.orders(to.own_work().front(), sender, from.before)) << receiver;
    EXPECT_TRUE(from.orders(from.after, receiver, to.own_work().front())) << receiver;
  }
}

}  // namespace
}  // namespace weft
