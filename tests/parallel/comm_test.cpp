// Every collective against its definition, on groups of 1 to 8 ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "parallel/comm/local.h"

namespace weft {
namespace {

const int comm_group_sizes[] = {1, 2, 3, 4, 8};
const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16, DType::float64, DType::int32};

// A buffer of any dtype, filled with a pattern that no result contains.
struct Buffer {
  Buffer(DType dtype_of_elements, std::int64_t n)
      : dtype(dtype_of_elements), size(n), storage(static_cast<std::size_t>(n * size_of(dtype)), std::byte{0xa5}) {}
  TensorView view() { return {storage.data(), dtype, size, 1}; }
  TensorView part(std::int64_t begin, std::int64_t count) {
    return {storage.data() + begin * size_of(dtype), dtype, count, 1};
  }
  void set(std::int64_t i, double value) {
    switch (dtype) {
      case DType::float32:
        view().as<float>()[i] = static_cast<float>(value);
        break;
      case DType::bfloat16:
        view().as<bfloat16>()[i] = bfloat16(static_cast<float>(value));
        break;
      case DType::float16:
        view().as<float16>()[i] = float16(static_cast<float>(value));
        break;
      case DType::float64:
        view().as<double>()[i] = value;
        break;
      case DType::int32:
        view().as<std::int32_t>()[i] = static_cast<std::int32_t>(value);
        break;
      default:
        fail("{} is not communicated", name_of(dtype));
    }
  }
  double get(std::int64_t i) {
    switch (dtype) {
      case DType::float32:
        return view().as<float>()[i];
      case DType::bfloat16:
        return static_cast<float>(view().as<bfloat16>()[i]);
      case DType::float16:
        return static_cast<float>(view().as<float16>()[i]);
      case DType::float64:
        return view().as<double>()[i];
      case DType::int32:
        return view().as<std::int32_t>()[i];
      default:
        fail("{} is not communicated", name_of(dtype));
    }
  }

  DType dtype;
  std::int64_t size;
  std::vector<std::byte> storage;
};

// Small integers: exact in every dtype, sums of eight of them as well (at most 8 x 15 = 120 < 256).
double element(int rank, std::int64_t i) {
  return static_cast<double>((i * 7 + rank * 5 + i / 11) % 31 - 15);
}

Buffer filled(DType dtype, std::int64_t n, int rank, std::int64_t first = 0) {
  Buffer buffer(dtype, n);
  for (std::int64_t i = 0; i < n; ++i) buffer.set(i, element(rank, first + i));
  return buffer;
}

// Uneven counts with an empty part, crossing a block of the reduction (4096 elements) when `large`.
std::vector<std::int64_t> uneven_counts(int size, bool large) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < size; ++rank) counts.push_back(rank == 1 ? 0 : (large ? 4099 : 3) + 2 * rank);
  return counts;
}
std::int64_t sum_of(const std::vector<std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}
std::int64_t before(const std::vector<std::int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.begin() + rank, std::int64_t{0});
}

template <typename Body>
void on_every_group(const Body& body) {
  for (int size : comm_group_sizes) {
    for (DType dtype : dtypes) {
      SCOPED_TRACE(fmt::format("{} ranks, {}", size, name_of(dtype)));
      run_local_ranks(size, [&](Communicator& world) { body(world, dtype); });
    }
  }
}

TEST(AllGather, LaysEqualPartsOneAfterAnother) {
  on_every_group([](Communicator& world, DType dtype) {
    for (std::int64_t n : {0, 1, 37, 5000}) {
      Buffer input = filled(dtype, n, world.rank()), output(dtype, n * world.size());
      world.all_gather(input.view(), output.view());
      for (std::int64_t i = 0; i < output.size; ++i) ASSERT_EQ(output.get(i), element(static_cast<int>(i / n), i % n));
    }
  });
}

TEST(AllGather, LaysUnevenAndEmptyPartsOneAfterAnother) {
  on_every_group([](Communicator& world, DType dtype) {
    const auto counts = uneven_counts(world.size(), false);
    Buffer input = filled(dtype, counts[world.rank()], world.rank()), output(dtype, sum_of(counts));
    world.all_gather(input.view(), output.view(), counts);
    for (int peer = 0; peer < world.size(); ++peer) {
      for (std::int64_t i = 0; i < counts[peer]; ++i) {
        ASSERT_EQ(output.get(before(counts, peer) + i), element(peer, i));
      }
    }
  });
}

TEST(AllGather, TakesItsInputFromItsOwnPartOfTheOutput) {
  on_every_group([](Communicator& world, DType dtype) {
    const auto counts = uneven_counts(world.size(), false);
    Buffer output(dtype, sum_of(counts));
    const std::int64_t begin = before(counts, world.rank());
    for (std::int64_t i = 0; i < counts[world.rank()]; ++i) output.set(begin + i, element(world.rank(), i));
    world.all_gather(output.part(begin, counts[world.rank()]), output.view(), counts);
    for (int peer = 0; peer < world.size(); ++peer) {
      for (std::int64_t i = 0; i < counts[peer]; ++i) {
        ASSERT_EQ(output.get(before(counts, peer) + i), element(peer, i));
      }
    }
  });
}

double sum_over_ranks(int size, std::int64_t i) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank) sum += element(rank, i);
  return sum;
}

TEST(ReduceScatter, GivesEachRankItsPartOfTheSum) {
  on_every_group([](Communicator& world, DType dtype) {
    for (bool large : {false, true}) {
      const auto counts = uneven_counts(world.size(), large);
      Buffer input = filled(dtype, sum_of(counts), world.rank()), output(dtype, counts[world.rank()]);
      const auto untouched = input.storage;
      world.reduce_scatter(input.view(), output.view(), counts);
      const std::int64_t begin = before(counts, world.rank());
      for (std::int64_t i = 0; i < output.size; ++i) ASSERT_EQ(output.get(i), sum_over_ranks(world.size(), begin + i));
      ASSERT_EQ(input.storage, untouched);
    }
  });
}

TEST(ReduceScatter, DividesEvenlyWithoutCounts) {
  on_every_group([](Communicator& world, DType dtype) {
    Buffer input = filled(dtype, 50 * world.size(), world.rank()), output(dtype, 50);
    world.reduce_scatter(input.view(), output.view());
    for (std::int64_t i = 0; i < 50; ++i) {
      ASSERT_EQ(output.get(i), sum_over_ranks(world.size(), 50 * world.rank() + i));
    }
  });
}

TEST(ReduceScatter, WritesIntoItsOwnPartOfTheInput) {
  on_every_group([](Communicator& world, DType dtype) {
    const auto counts = uneven_counts(world.size(), true);
    Buffer input = filled(dtype, sum_of(counts), world.rank());
    const std::int64_t begin = before(counts, world.rank()), count = counts[world.rank()];
    world.reduce_scatter(input.view(), input.part(begin, count), counts);
    for (std::int64_t i = 0; i < input.size; ++i) {
      const bool own = i >= begin && i < begin + count;
      ASSERT_EQ(input.get(i), own ? sum_over_ranks(world.size(), i) : element(world.rank(), i));
    }
  });
}

TEST(AllReduce, GivesEveryRankTheSum) {
  on_every_group([](Communicator& world, DType dtype) {
    for (std::int64_t n : {0, 1, 15, 16, 17, 1000, 40'000}) {
      Buffer data = filled(dtype, n, world.rank());
      world.all_reduce(data.view());
      for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(data.get(i), sum_over_ranks(world.size(), i)) << i;
    }
  });
}

TEST(AllReduce, GivesEveryRankTheMaximum) {
  on_every_group([](Communicator& world, DType dtype) {
    Buffer data = filled(dtype, 5003, world.rank());
    world.all_reduce(data.view(), Reduce::max);
    for (std::int64_t i = 0; i < data.size; ++i) {
      double expected = element(0, i);
      for (int rank = 1; rank < world.size(); ++rank) expected = std::max(expected, element(rank, i));
      ASSERT_EQ(data.get(i), expected);
    }
  });
}

TEST(AllReduce, AMaximumDoesNotHideANaN) {
  for (int sick = 0; sick < 3; ++sick) {
    run_local_ranks(3, [&](Communicator& world) {
      float value = world.rank() == sick ? std::nanf("") : static_cast<float>(world.rank());
      world.all_reduce(TensorView(&value, DType::float32, 1, 1), Reduce::max);
      EXPECT_TRUE(std::isnan(value)) << sick;
    });
  }
}

TEST(AllReduce, WrapsIntegersAround) {
  run_local_ranks(2, [](Communicator& world) {
    std::int32_t value = std::numeric_limits<std::int32_t>::max();
    world.all_reduce(TensorView(&value, DType::int32, 1, 1));
    EXPECT_EQ(value, -2);
  });
}

TEST(AllToAll, MovesUnevenAndEmptyBlocks) {
  on_every_group([](Communicator& world, DType dtype) {
    const int size = world.size();
    const auto count = [](int from, int to) -> std::int64_t { return (from * 3 + to * 5) % 7 * (to == 1 ? 0 : 40); };
    std::vector<std::int64_t> send, receive;
    for (int peer = 0; peer < size; ++peer) {
      send.push_back(count(world.rank(), peer));
      receive.push_back(count(peer, world.rank()));
    }
    Buffer input = filled(dtype, sum_of(send), world.rank()), output(dtype, sum_of(receive));
    world.all_to_all(input.view(), send, output.view(), receive);
    for (int peer = 0; peer < size; ++peer) {
      std::int64_t first = 0;
      for (int earlier = 0; earlier < world.rank(); ++earlier) first += count(peer, earlier);
      for (std::int64_t i = 0; i < receive[peer]; ++i) {
        ASSERT_EQ(output.get(before(receive, peer) + i), element(peer, first + i));
      }
    }
  });
}

TEST(Broadcast, CopiesTheRoot) {
  on_every_group([](Communicator& world, DType dtype) {
    for (int root = 0; root < world.size(); ++root) {
      Buffer data = filled(dtype, 333, world.rank());
      world.broadcast(data.view(), root);
      for (std::int64_t i = 0; i < data.size; ++i) ASSERT_EQ(data.get(i), element(root, i));
    }
  });
}

TEST(Barrier, LetsNobodyPassBeforeTheLastHasCome) {
  for (int size : comm_group_sizes) {
    std::atomic<int> come{0};
    run_local_ranks(size, [&](Communicator& world) {
      for (int round = 1; round <= 200; ++round) {
        ++come;
        world.barrier();
        ASSERT_GE(come.load(), round * size);
        world.barrier();
      }
    });
  }
}

TEST(Collectives, FollowOneAnotherWithoutMixingUp) {
  run_local_ranks(4, [](Communicator& world) {
    for (int round = 0; round < 300; ++round) {
      std::int32_t sum = world.rank() + round, gathered[4] = {};
      world.all_reduce(TensorView(&sum, DType::int32, 1, 1));
      ASSERT_EQ(sum, 6 + 4 * round);
      sum += world.rank();
      world.all_gather(TensorView(&sum, DType::int32, 1, 1), TensorView(gathered, DType::int32, 4, 1));
      for (int rank = 0; rank < 4; ++rank) ASSERT_EQ(gathered[rank], 6 + 4 * round + rank);
    }
  });
}

TEST(Messages, ArriveInOrderAndWhole) {
  for (DType dtype : dtypes) {
    run_local_ranks(3, [&](Communicator& world) {
      const int next = (world.rank() + 1) % 3, previous = (world.rank() + 2) % 3;
      for (int message = 0; message < 50; ++message) {
        const std::int64_t n = message % 5 * 100;
        Buffer out = filled(dtype, n, world.rank(), message), in(dtype, n);
        world.send(out.view(), next);
        world.receive(in.view(), previous);
        for (std::int64_t i = 0; i < n; ++i) ASSERT_EQ(in.get(i), element(previous, message + i));
        world.flush();
      }
    });
  }
}

TEST(Messages, ASendDoesNotWaitForItsReceiver) {
  run_local_ranks(2, [](Communicator& world) {
    float given = static_cast<float>(world.rank() + 1), taken = 0;
    const TensorView out(&given, DType::float32, 1, 1), in(&taken, DType::float32, 1, 1);
    // Both send first: with sends that wait this is a deadlock.
    world.send(out, 1 - world.rank());
    world.barrier();
    world.receive(in, 1 - world.rank());
    EXPECT_EQ(taken, static_cast<float>(2 - world.rank()));
    world.flush();
  });
}

TEST(Messages, FlushAndTheNextSendWaitUntilTheLastOneIsReceived) {
  std::atomic<int> received{0};
  run_local_ranks(2, [&](Communicator& world) {
    std::vector<float> data(10, 1.0F);
    const TensorView view = view_of(std::span(data), 10, 1);
    if (world.rank() == 0) {
      world.send(view, 1);
      EXPECT_EQ(received.load(), 0);
      world.barrier();
      world.send(view, 1);
      EXPECT_GE(received.load(), 1);
      world.flush();
      EXPECT_EQ(received.load(), 2);
    } else {
      world.barrier();
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      // Counted before, because the sender may go on before a line after the receive runs.
      ++received;
      world.receive(view, 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ++received;
      world.receive(view, 0);
    }
  });
}

TEST(Split, NestsAndOrdersByKey) {
  run_local_ranks(8, [](Communicator& world) {
    // Two halves in reverse order, then pairs inside each half.
    const auto half = world.split(world.rank() / 4, -world.rank(), "half");
    ASSERT_EQ(half->size(), 4);
    ASSERT_EQ(half->rank(), 3 - world.rank() % 4);
    EXPECT_EQ(half->group(), "half");
    std::int32_t mine = world.rank(), all[4] = {};
    half->all_gather(TensorView(&mine, DType::int32, 1, 1), TensorView(all, DType::int32, 4, 1));
    for (int i = 0; i < 4; ++i) EXPECT_EQ(all[i], world.rank() / 4 * 4 + 3 - i);

    const auto pair = half->split(half->rank() % 2, 0, half->rank() % 2 == 0 ? "even" : "odd");
    ASSERT_EQ(pair->size(), 2);
    EXPECT_EQ(pair->rank(), half->rank() / 2);
    std::int32_t sum = world.rank();
    pair->all_reduce(TensorView(&sum, DType::int32, 1, 1));
    EXPECT_EQ(sum, all[half->rank() % 2] + all[half->rank() % 2 + 2]);
    // The parent still works.
    std::int32_t once_more = 1;
    world.all_reduce(TensorView(&once_more, DType::int32, 1, 1));
    EXPECT_EQ(once_more, 8);
  });
}

TEST(Counters, HoldThePayloadOfEachCallByGroupAndOperation) {
  run_local_ranks(4, [](Communicator& world) {
    const auto pair = world.split(world.rank() / 2, world.rank(), "pair");
    const auto alone = world.split(world.rank(), 0, "alone");
    std::vector<float> whole(40), part(10), other(40);
    const TensorView all = view_of(std::span(whole), 40, 1), own = view_of(std::span(part), 10, 1);
    world.all_gather(own, all);
    world.all_gather(own, all);
    world.reduce_scatter(all, own);
    world.all_reduce(all);
    world.broadcast(own, 2);
    world.barrier();
    const std::vector<std::int64_t> even(4, 10);
    world.all_to_all(all, even, view_of(std::span(other), 40, 1), even);
    if (pair->rank() == 0) pair->send(own, 1);
    if (pair->rank() == 1) pair->receive(own, 0);
    pair->flush();
    alone->all_reduce(all);
    alone->all_gather(all, view_of(std::span(other), 40, 1));

    CommunicationCounters expected;
    expected[{"world", CollectiveOp::all_gather}] = {2, 320};
    expected[{"world", CollectiveOp::reduce_scatter}] = {1, 160};
    expected[{"world", CollectiveOp::all_reduce}] = {1, 160};
    expected[{"world", CollectiveOp::broadcast}] = {1, 40};
    expected[{"world", CollectiveOp::barrier}] = {1, 0};
    expected[{"world", CollectiveOp::all_to_all}] = {1, 160};
    if (pair->rank() == 0) expected[{"pair", CollectiveOp::send}] = {1, 40};
    if (pair->rank() == 1) expected[{"pair", CollectiveOp::receive}] = {1, 0};
    EXPECT_TRUE(world.counters() == expected);
    EXPECT_GT(world.clock().seconds(Phase::communication), 0.0);
  });
}

}  // namespace
}  // namespace weft
