// Every collective of the NCCL backend against its definition, on 1 to 4 ranks. All numbers are small integers, which
// every dtype adds without rounding, so that results are exact whatever the order of addition.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "parallel/comm/local.h"
#include "tests/cuda/nccl_ranks.h"

namespace weft {
namespace {

double value(int rank, std::int64_t i) {
  return static_cast<double>((rank * 7 + i * 3) % 13 - 6);
}

std::vector<double> values_of(int rank, std::int64_t begin, std::int64_t count) {
  std::vector<double> values;
  for (std::int64_t i = begin; i < begin + count; ++i) values.push_back(value(rank, i));
  return values;
}

std::vector<double> sums(int world, std::int64_t begin, std::int64_t count) {
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    for (int rank = 0; rank < world; ++rank) values[static_cast<std::size_t>(i)] += value(rank, begin + i);
  }
  return values;
}

struct Case {
  int world;
  DType dtype;
};

class NcclCommunicatorTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_ranks(world); !reason.empty()) GTEST_SKIP() << reason;
  }
  void run(const std::function<void(NcclRank&)>& rank_main, const NcclOptions& options = {}) {
    const auto errors = run_nccl_ranks(world, rank_main, std::chrono::milliseconds(60'000), options);
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
  // Parts of different size, one of them empty.
  std::vector<std::int64_t> uneven_counts() const {
    std::vector<std::int64_t> counts = {5, 0, 17, 2};
    counts.resize(static_cast<std::size_t>(world));
    return counts;
  }
  std::vector<std::vector<std::int64_t>> all_counts() const {
    return {{}, uneven_counts(), std::vector<std::int64_t>(static_cast<std::size_t>(world), 3)};
  }
  static std::int64_t total(const std::vector<std::int64_t>& counts, std::int64_t otherwise) {
    return counts.empty() ? otherwise : std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  }

  const int world = GetParam().world;
  const DType dtype = GetParam().dtype;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const int world : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32}) {
      all.push_back({world, dtype});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Worlds, NcclCommunicatorTest, testing::ValuesIn(cases()), [](const auto& entry) {
  return std::to_string(entry.param.world) + std::string(name_of(entry.param.dtype));
});

TEST_P(NcclCommunicatorTest, AllGather) {
  run([&](NcclRank& self) {
    const int rank = self.world.rank();
    for (const auto& counts : all_counts()) {
      const std::int64_t elements = total(counts, 6 * world);
      const Range own = part_of_rank(counts, elements, world, rank);
      std::vector<double> expected;
      for (int peer = 0; peer < world; ++peer) {
        const Range part = part_of_rank(counts, elements, world, peer);
        const auto values = values_of(peer, part.begin, part.count);
        expected.insert(expected.end(), values.begin(), values.end());
      }
      for (const bool in_place : {false, true}) {
        const DeviceElements input(self.stream, dtype, values_of(rank, own.begin, own.count));
        const DeviceElements output(self.stream, dtype, elements);
        if (in_place && own.count > 0) {
          self.device.copy(self.stream, input.view().data(), output.part(own.begin, own.count).data(),
                           input.view().bytes());
        }
        self.world.all_gather(in_place ? output.part(own.begin, own.count) : input.view(), output.view(), counts);
        EXPECT_EQ(output.values(), expected);
      }
    }
  });
}

TEST_P(NcclCommunicatorTest, ReduceScatter) {
  run([&](NcclRank& self) {
    const int rank = self.world.rank();
    for (const auto& counts : all_counts()) {
      const std::int64_t elements = total(counts, 6 * world);
      const Range own = part_of_rank(counts, elements, world, rank);
      for (const bool in_place : {false, true}) {
        const DeviceElements input(self.stream, dtype, values_of(rank, 0, elements));
        const DeviceElements output(self.stream, dtype, own.count);
        const TensorView to = in_place ? input.part(own.begin, own.count) : output.view();
        self.world.reduce_scatter(input.view(), to, counts);
        if (in_place && own.count > 0) self.device.copy(self.stream, to.data(), output.view().data(), to.bytes());
        EXPECT_EQ(output.values(), sums(world, own.begin, own.count));
      }
    }
  });
}

TEST_P(NcclCommunicatorTest, AllReduce) {
  run([&](NcclRank& self) {
    for (const std::int64_t elements : {0, 1, 33}) {
      const DeviceElements data(self.stream, dtype, values_of(self.world.rank(), 0, elements));
      self.world.all_reduce(data.view());
      EXPECT_EQ(data.values(), sums(world, 0, elements));
      const DeviceElements other(self.stream, dtype, values_of(self.world.rank(), 0, elements));
      self.world.all_reduce(other.view(), Reduce::max);
      std::vector<double> expected = values_of(0, 0, elements);
      for (int peer = 1; peer < world; ++peer) {
        for (std::size_t i = 0; i < expected.size(); ++i) {
          expected[i] = std::max(expected[i], value(peer, static_cast<std::int64_t>(i)));
        }
      }
      EXPECT_EQ(other.values(), expected);
    }
  });
}

TEST_P(NcclCommunicatorTest, AllToAll) {
  // Rank a sends (2a + 3b) % 4 elements to rank b: some nothing, and in the second round nobody anything.
  run([&](NcclRank& self) {
    const int rank = self.world.rank();
    for (const int factor : {1, 0}) {
      std::vector<std::int64_t> send, receive;
      std::vector<double> sent, expected;
      for (int peer = 0; peer < world; ++peer) {
        send.push_back(factor * ((2 * rank + 3 * peer) % 4));
        receive.push_back(factor * ((2 * peer + 3 * rank) % 4));
        const auto to = values_of(10 * rank + peer, 0, send.back()),
                   from = values_of(10 * peer + rank, 0, receive.back());
        sent.insert(sent.end(), to.begin(), to.end());
        expected.insert(expected.end(), from.begin(), from.end());
      }
      const DeviceElements input(self.stream, dtype, sent), output(self.stream, dtype, std::ssize(expected));
      self.world.all_to_all(input.view(), send, output.view(), receive);
      EXPECT_EQ(output.values(), expected);
    }
  });
}

TEST_P(NcclCommunicatorTest, BroadcastAndBarrier) {
  run([&](NcclRank& self) {
    for (int root = 0; root < world; ++root) {
      const DeviceElements data(self.stream, dtype, values_of(self.world.rank(), 0, 9));
      self.world.broadcast(data.view(), root);
      EXPECT_EQ(data.values(), values_of(root, 0, 9));
      self.world.barrier();
    }
  });
}

// Messages go around the ring and back. Every rank sends before it receives, which only sends on a stream of their own
// allow, and on different communicators, as RankGroups makes them. The buffer of a message may be overwritten after the
// flush.
TEST_P(NcclCommunicatorTest, MessagesAroundARing) {
  if (world == 1) GTEST_SKIP() << "a rank alone sends nothing";
  run([&](NcclRank& self) {
    const int rank = self.world.rank();
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int g = 0; g < 6; ++g) groups.push_back(self.world.split(0, rank, "pp"));
    // Even ranks send to odd ones on one, odd to even on another. A ring of odd length closes on a third.
    const auto group_of = [&](int sender, int receiver, bool back) -> Communicator& {
      const bool closes = world % 2 == 1 && std::abs(sender - receiver) != 1;
      return *groups[static_cast<std::size_t>((back ? 3 : 0) + (closes ? 2 : sender % 2))];
    };
    const DeviceElements garbage(self.stream, dtype, 20);
    for (int round = 0; round < 6; ++round) {
      const bool back = round % 2 == 1;
      const int step = back ? world - 1 : 1;
      const int next = (rank + step) % world, previous = (rank + world - step) % world;
      const DeviceElements sent(self.stream, dtype, values_of(rank + round, 0, 20)), received(self.stream, dtype, 20);
      Communicator& sending = group_of(rank, next, back);
      sending.send(sent.view(), next);
      group_of(previous, rank, back).receive(received.view(), previous);
      if (round % 3 == 2) sending.flush();
      if (round % 3 == 2) self.device.copy(self.stream, garbage.view().data(), sent.view().data(), sent.view().bytes());
      EXPECT_EQ(received.values(), values_of(previous + round, 0, 20));
      // The message lives until the peer has it.
      sending.flush();
    }
  });
}

// The calls of a whole program over `memory` of 64 elements.
void exercise(Communicator& world, TensorView memory) {
  const auto part = [&](std::int64_t begin, std::int64_t count) {
    return TensorView(memory.data() + begin * size_of(memory.dtype()), memory.dtype(), count, 1);
  };
  const int size = world.size(), rank = world.rank();
  const auto pair = world.split(rank / 2, rank, "tp");
  const auto across = world.split(rank % 2, rank, "dp_shard");
  const auto alone = world.split(rank, 0, "cp");
  for (Communicator* group : {&world, pair.get(), across.get(), alone.get()}) {
    const int members = group->size();
    group->all_gather(part(0, 4), part(8, 4 * members));
    std::vector<std::int64_t> counts(static_cast<std::size_t>(members), 1);
    counts[0] = 3;
    group->reduce_scatter(part(0, 2 + members), part(40, counts[static_cast<std::size_t>(group->rank())]), counts);
    group->all_reduce(part(0, 5));
    group->all_reduce(part(0, 0));
    group->all_to_all(part(0, members), std::vector<std::int64_t>(static_cast<std::size_t>(members), 1),
                      part(20, members), std::vector<std::int64_t>(static_cast<std::size_t>(members), 1));
    group->broadcast(part(0, 7), 0);
    group->barrier();
    if (members > 1 && group->rank() == 0) group->send(part(0, 6), 1);
    if (group->rank() == 1) group->receive(part(30, 6), 0);
    group->flush();
  }
  EXPECT_EQ(across->size(), (size + 1 - rank % 2) / 2);
}

TEST_P(NcclCommunicatorTest, CountsAsTheLocalBackendDoes) {
  std::vector<CommunicationCounters> expected(static_cast<std::size_t>(world)), found(expected.size());
  run_local_ranks(world, [&](Communicator& local) {
    std::vector<std::byte> memory(static_cast<std::size_t>(64 * size_of(dtype)));
    exercise(local, {memory.data(), dtype, 64, 1});
    expected[static_cast<std::size_t>(local.rank())] = local.counters();
  });
  run([&](NcclRank& self) {
    const DeviceElements memory(self.stream, dtype, std::vector<double>(64, 0.0));
    exercise(self.world, memory.view());
    self.stream.synchronize();
    found[static_cast<std::size_t>(self.world.rank())] = self.world.counters();
  });
  for (int rank = 0; rank < world; ++rank) {
    const auto &left = expected[static_cast<std::size_t>(rank)], &right = found[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(left == right) << "rank " << rank;
    EXPECT_EQ(left.empty(), world == 1);
  }
}

// Tensor groups of neighbours and data groups across them, as a mesh has them, on streams of their own.
TEST(NcclSplit, GroupsOfAMeshAddUp) {
  constexpr int world = 4;
  if (const std::string reason = why_no_ranks(world); !reason.empty()) GTEST_SKIP() << reason;
  const auto errors = run_nccl_ranks(world, [&](NcclRank& self) {
    const int rank = self.world.rank();
    const auto other_stream = self.device.create_stream("reduce");
    const auto tensor = self.world.split(rank / 2, rank % 2, "tp");
    // Ordered from the last rank to the first.
    const auto data = self.world.split(rank % 2, -rank, "dp", *other_stream);
    EXPECT_EQ(tensor->rank(), rank % 2);
    EXPECT_EQ(data->rank(), 1 - rank / 2);
    EXPECT_EQ(data->group(), "dp");
    const auto alone = data->split(rank, 0, "alone");
    EXPECT_EQ(alone->size(), 1);
    const double own = 1 << rank;  // a bit each
    for (int round = 0; round < 5; ++round) {
      const DeviceElements a(self.stream, DType::float32, std::vector<double>{own}),
          b(*other_stream, DType::float32, std::vector<double>{own});
      tensor->all_reduce(a.view());
      data->all_reduce(b.view());
      alone->all_reduce(b.view());
      EXPECT_EQ(a.values(), std::vector<double>{rank < 2 ? 3.0 : 12.0});
      EXPECT_EQ(b.values(), std::vector<double>{rank % 2 == 0 ? 5.0 : 10.0});
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(NcclSettings, SharingAGpuMakesEachRankAMachine) {
  const auto alone = nccl_settings({3, 8, 1, 2}, {});
  ASSERT_EQ(alone.size(), 1u);
  EXPECT_EQ(alone[0].first, "NCCL_LAUNCH_ORDER_IMPLICIT");
  const auto shared = nccl_settings({3, 8, 3, 8}, {.ranks_per_device = 8});
  const auto has = [&](const std::string& name, const std::string& text) {
    return std::find(shared.begin(), shared.end(), std::pair(name, text)) != shared.end();
  };
  EXPECT_TRUE(has("NCCL_HOSTID", "rank3"));
  EXPECT_TRUE(has("NCCL_NET", "Socket"));
  EXPECT_TRUE(has("NCCL_SOCKET_IFNAME", "lo"));
}

}  // namespace
}  // namespace weft
