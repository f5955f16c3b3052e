// Parameters kept whole on every rank of a stage: the same on all of them, summed over all of them.
#include "parallel/shard/replicated.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <mutex>
#include <vector>

#include "parallel/comm/local.h"
#include "parallel/runtime/error.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {
namespace {

const int group_sizes[] = {1, 2, 3, 4, 8};

std::vector<ParameterSpec> router_parameters() {
  return {box("router.0", 2, 5, 6), box("router.1", 0, 3, 7)};
}
constexpr std::int64_t router_elements = 5 * 6 + 3 * 7;

// Runs on ranks that are each other's tokens group.
template <typename Body>
void on_every_group(const Body& body) {
  for (const int size : group_sizes) {
    SCOPED_TRACE(fmt::format("{} ranks", size));
    run_local_ranks(size, [&](Communicator& world) {
      const auto device = make_cpu_device();
      MemoryLedger ledger(*device);
      {  // the accumulator's block is not zero when it is taken
        std::vector<Tensor> blocks;
        for (int block = 0; block < 3; ++block) {
          blocks.push_back(ledger.allocate(Bucket::workspace, DType::float32, router_elements, 1));
          fill(blocks.back(), std::numeric_limits<float>::quiet_NaN());
        }
      }
      ReplicatedParameters routing(router_parameters(), world, ledger);
      body(world, ledger, routing);
    });
  }
}

TEST(ReplicatedParameters, EveryRankOwnsAndReadsAllRows) {
  on_every_group([](Communicator&, MemoryLedger&, ReplicatedParameters& routing) {
    store_values(routing);
    const std::vector<OwnedRows> owned = routing.owned_rows();
    ASSERT_EQ(owned.size(), routing.parameters().size());
    int wrong = 0;
    for (std::size_t p = 0; p < owned.size(); ++p) {
      const ParameterSpec& spec = routing.parameters()[p];
      EXPECT_EQ(*owned[p].parameter, spec);
      EXPECT_EQ(owned[p].row_begin, spec.row_begin);
      EXPECT_EQ(owned[p].rows, spec.rows);
      const ConstTensorView values = routing.parameter(p);
      EXPECT_EQ(values.rows(), spec.rows);
      EXPECT_EQ(values.columns(), spec.columns);
      for (std::int64_t i = 0; i < spec.size(); ++i) {
        const float value = value_at(spec, spec.row_begin + i / spec.columns, i % spec.columns);
        wrong += values.as<float>()[static_cast<std::size_t>(i)] != value ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0);
  });
}

// Five microbatches in intervals of two, two and one, in two steps; float32_bound counts every number added.
TEST(ReplicatedParameters, ReducesTheSumOverAllRanksAndAddsIntervalsUp) {
  on_every_group([](Communicator& world, MemoryLedger&, ReplicatedParameters& routing) {
    constexpr int microbatches = 5;
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank) ranks.push_back(rank);
    for (int step = 0; step < 2; ++step) {
      routing.begin_step();
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        accumulate(routing, routing.parameters(), world.rank(), microbatch);
        if (microbatch % 2 == 1 || microbatch + 1 == microbatches) routing.reduce_gradient();
      }
      int wrong = 0;
      for (const OwnedRows& owned : routing.owned_rows()) {
        for (std::size_t i = 0; i < owned.gradients.size(); ++i) {
          const GradientSum expected =
              gradient_sum(*owned.parameter, ranks, microbatches, static_cast<std::int64_t>(i));
          const double error = std::abs(owned.gradients[i] - expected.sum);
          wrong += error <= float32_bound(expected, ranks.size() * microbatches) ? 0 : 1;
        }
      }
      EXPECT_EQ(wrong, 0);
    }
  });
}

TEST(ReplicatedParameters, GradientsAreTheSameBitsOnEveryRank) {
  for (const int size : group_sizes) {
    SCOPED_TRACE(fmt::format("{} ranks", size));
    std::mutex mutex;
    std::vector<std::vector<float>> gradients;
    run_local_ranks(size, [&](Communicator& world) {
      const auto device = make_cpu_device();
      MemoryLedger ledger(*device);
      ReplicatedParameters routing(router_parameters(), world, ledger);
      accumulate(routing, routing.parameters(), world.rank(), 0);
      routing.reduce_gradient();
      std::vector<float> own;
      for (const OwnedRows& owned : routing.owned_rows()) {
        own.insert(own.end(), owned.gradients.begin(), owned.gradients.end());
      }
      const std::lock_guard lock(mutex);
      gradients.push_back(std::move(own));
    });
    ASSERT_EQ(gradients.size(), static_cast<std::size_t>(size));
    // No NaN can be among them (the test above), so equal is the same bits but for the sign of a zero.
    for (const auto& others : gradients) EXPECT_EQ(others, gradients.front());
  }
}

TEST(ReplicatedParameters, TakesAndMovesTheBytesItSays) {
  on_every_group([](Communicator& world, MemoryLedger& ledger, ReplicatedParameters& routing) {
    const std::int64_t bytes = ReplicatedParameters::bytes(router_parameters());
    EXPECT_EQ(bytes, 4 * router_elements);
    BucketBytes at_rest;
    at_rest[Bucket::replicated_parameters] = at_rest[Bucket::sharded_gradients] = bytes;
    EXPECT_EQ(ledger.live(), at_rest);
    world.counters().clear();
    constexpr int intervals = 3;
    std::int64_t system_allocations = 0;
    for (int interval = 0; interval < intervals; ++interval) {
      accumulate(routing, routing.parameters(), world.rank(), interval);
      BucketBytes accumulating = at_rest;
      accumulating[Bucket::unsharded_gradients] = bytes;
      EXPECT_EQ(ledger.live(), accumulating);
      routing.reduce_gradient();
      EXPECT_EQ(ledger.live(), at_rest);
      if (interval > 0) {
        EXPECT_EQ(ledger.system_allocations(), system_allocations);
      }
      system_allocations = ledger.system_allocations();
    }
    CommunicationCounters expected;
    if (world.size() > 1) expected[{world.group(), CollectiveOp::all_reduce}] = {intervals, intervals * bytes};
    EXPECT_EQ(world.counters(), expected);
  });
}

TEST(ReplicatedParameters, NamesTheRankAndTheParameterOfANonFiniteGradient) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    try {
      run_local_ranks(3, [&](Communicator& world) {
        const auto device = make_cpu_device();
        MemoryLedger ledger(*device);
        ReplicatedParameters routing(router_parameters(), world, ledger);
        accumulate(routing, routing.parameters(), world.rank(), 0);
        if (world.rank() == 1) routing.gradient(1).as<float>().front() = bad;
        routing.reduce_gradient();
      });
      FAIL() << "reduced a gradient that is not finite";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::failure);
      EXPECT_STREQ(error.what(),
                   "rank 1: the gradient of router.1 holds a NaN or an infinity on this rank, before its reduction");
    }
  }
}

TEST(ReplicatedParameters, RefusesToReduceWithoutAGradient) {
  on_every_group([](Communicator&, MemoryLedger&, ReplicatedParameters& routing) {
    EXPECT_THROW(routing.reduce_gradient(), Error);
    routing.gradient(0);
    routing.reduce_gradient();
    EXPECT_THROW(routing.reduce_gradient(), Error);
  });
}

}  // namespace
}  // namespace weft
