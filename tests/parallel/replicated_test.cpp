// Parameters kept whole on every rank of a stage: the same on all of them, summed over all of them.
#include "parallel/shard/replicated.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <vector>

#include "parallel/comm/local.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {
namespace {

const int replicated_group_sizes[] = {1, 2, 3, 4, 8};

std::vector<ParameterSpec> router_parameters() {
  return {box("router.0", 2, 5, 6), box("router.1", 0, 3, 7)};
}
constexpr std::int64_t router_elements = 5 * 6 + 3 * 7;

// A rank and its tokens group, which is the whole world.
struct TokensRank : CpuRank {
  explicit TokensRank(Communicator& world) : tokens(world.split(0, world.rank(), "tokens", lanes[Lane::reduce])) {}
  std::unique_ptr<Communicator> tokens;
};

// Runs on ranks that are each other's tokens group.
template <typename Body>
void on_every_routing_group(const Body& body) {
  for (const int size : replicated_group_sizes) {
    SCOPED_TRACE(fmt::format("{} ranks", size));
    run_local_ranks(size, [&](Communicator& world) {
      TokensRank rank(world);
      {  // the accumulator's block is not zero when it is taken
        std::vector<Tensor> blocks;
        for (int block = 0; block < 3; ++block) {
          blocks.push_back(rank.ledger.allocate(Bucket::workspace, DType::float32, router_elements, 1));
          fill(rank.stream, blocks.back(), std::numeric_limits<float>::quiet_NaN());
        }
      }
      ReplicatedParameters routing(router_parameters(), false, *rank.tokens, rank.lanes, rank.ledger);
      body(rank, routing);
    });
  }
}

TEST(ReplicatedParameters, EveryRankOwnsAndReadsAllRows) {
  on_every_routing_group([](TokensRank&, ReplicatedParameters& routing) {
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
  on_every_routing_group([](TokensRank& rank, ReplicatedParameters& routing) {
    const Communicator& world = *rank.tokens;
    constexpr int microbatches = 5;
    std::vector<int> ranks;
    for (int r = 0; r < world.size(); ++r) ranks.push_back(r);
    for (int step = 0; step < 2; ++step) {
      routing.begin_step();
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        accumulate(routing, routing.parameters(), world.rank(), microbatch);
        if (microbatch % 2 == 1 || microbatch + 1 == microbatches) routing.reduce_gradient();
      }
      int wrong = 0;
      for (const OwnedRows& owned : routing.owned_rows()) {
        const std::span<const float> gradients = owned.gradients.as<float>();
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          const GradientSum expected =
              gradient_sum(*owned.parameter, ranks, microbatches, static_cast<std::int64_t>(i));
          const double error = std::abs(gradients[i] - expected.sum);
          wrong += error <= float32_bound(expected, ranks.size() * microbatches) ? 0 : 1;
        }
      }
      EXPECT_EQ(wrong, 0);
    }
  });
}

TEST(ReplicatedParameters, GradientsAreTheSameBitsOnEveryRank) {
  for (const int size : replicated_group_sizes) {
    SCOPED_TRACE(fmt::format("{} ranks", size));
    std::mutex mutex;
    std::vector<std::vector<float>> gradients;
    run_local_ranks(size, [&](Communicator& world) {
      TokensRank rank(world);
      ReplicatedParameters routing(router_parameters(), false, *rank.tokens, rank.lanes, rank.ledger);
      accumulate(routing, routing.parameters(), world.rank(), 0);
      routing.reduce_gradient();
      std::vector<float> own;
      for (const OwnedRows& owned : routing.owned_rows()) {
        const std::span<const float> part = owned.gradients.as<float>();
        own.insert(own.end(), part.begin(), part.end());
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
  on_every_routing_group([](TokensRank& rank, ReplicatedParameters& routing) {
    const MemoryLedger& ledger = rank.ledger;
    Communicator& tokens = *rank.tokens;
    const std::int64_t bytes = ReplicatedParameters::bytes(router_parameters());
    EXPECT_EQ(bytes, 4 * router_elements);
    BucketBytes at_rest;
    at_rest[Bucket::replicated_parameters] = at_rest[Bucket::sharded_gradients] = bytes;
    at_rest[Bucket::workspace] = 4 * std::ssize(router_parameters());  // what is not finite, counted by parameter
    EXPECT_EQ(ledger.live(), at_rest);
    tokens.counters().clear();
    constexpr int intervals = 3;
    std::int64_t system_allocations = 0;
    for (int interval = 0; interval < intervals; ++interval) {
      accumulate(routing, routing.parameters(), tokens.rank(), interval);
      BucketBytes accumulating = at_rest;
      accumulating[Bucket::unsharded_gradients] = bytes;
      EXPECT_EQ(ledger.live(), accumulating);
      routing.reduce_gradient();
      EXPECT_EQ(ledger.live(), at_rest);
      if (interval > 0) {
        EXPECT_EQ(rank.device->system_allocations(), system_allocations);
      }
      system_allocations = rank.device->system_allocations();
    }
    CommunicationCounters expected;
    if (tokens.size() > 1) expected[{"tokens", CollectiveOp::all_reduce}] = {intervals, intervals * bytes};
    EXPECT_EQ(tokens.counters(), expected);
  });
}

// The reduction goes through, so that no rank is left waiting, and the rank where it began can tell.
TEST(ReplicatedParameters, NamesTheParameterOfANonFiniteGradientOnTheRankWhereItBegan) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    run_local_ranks(3, [&](Communicator& world) {
      TokensRank rank(world);
      ReplicatedParameters routing(router_parameters(), false, *rank.tokens, rank.lanes, rank.ledger);
      routing.begin_step();
      accumulate(routing, routing.parameters(), world.rank(), 0);
      if (world.rank() == 1) elements_of(routing.gradient(1)).front() = bad;
      routing.reduce_gradient();
      const auto named = world.rank() == 1 ? std::optional<std::string>("router.1") : std::nullopt;
      EXPECT_EQ(routing.nonfinite_parameter(), named) << "rank " << world.rank();
      // A later interval does not hide it; the next step forgets it.
      accumulate(routing, routing.parameters(), world.rank(), 1);
      routing.reduce_gradient();
      EXPECT_EQ(routing.nonfinite_parameter(), named) << "rank " << world.rank();
      routing.begin_step();
      EXPECT_EQ(routing.nonfinite_parameter(), std::nullopt) << "rank " << world.rank();
    });
  }
}

// A step computes with the values as they were at its beginning, rounded.
TEST(ReplicatedParameters, ComputationsReadACopyInTheirDtype) {
  run_local_ranks(2, [&](Communicator& world) {
    TokensRank rank(world);
    ReplicatedParameters vectors(router_parameters(), false, *rank.tokens, rank.lanes, rank.ledger, DType::bfloat16);
    EXPECT_EQ(rank.ledger.live()[Bucket::replicated_parameters],
              ReplicatedParameters::bytes(router_parameters()) +
                  ReplicatedParameters::copy_bytes(router_parameters(), DType::bfloat16));
    for (const float step : {1.0f, 0.3f}) {
      for (const OwnedRows& owned : vectors.owned_rows()) fill(rank.stream, owned.values, step / 3.0f);
      vectors.begin_step();
      for (std::size_t p = 0; p < vectors.parameters().size(); ++p) {
        const ConstTensorView read = vectors.parameter(p);
        ASSERT_EQ(read.dtype(), DType::bfloat16);
        for (const bfloat16 value : read.as<bfloat16>()) {
          EXPECT_EQ(static_cast<float>(value), static_cast<float>(bfloat16(step / 3.0f)));
        }
        EXPECT_EQ(vectors.gradient(p).view.dtype(), DType::float32);
      }
    }
  });
  EXPECT_EQ(ReplicatedParameters::copy_bytes(router_parameters(), DType::float32), 0);
}

TEST(ReplicatedParameters, RefusesToReduceWithoutAGradient) {
  on_every_routing_group([](TokensRank&, ReplicatedParameters& routing) {
    EXPECT_THROW(routing.reduce_gradient(), Error);
    routing.gradient(0);
    routing.reduce_gradient();
    EXPECT_THROW(routing.reduce_gradient(), Error);
  });
}

}  // namespace
}  // namespace weft
