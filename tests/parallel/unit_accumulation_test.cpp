// The contents of a unit between its reductions: sums of many microbatches, whole or in shards, and inputs of
// reductions in flight. Against sums computed without any unit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "parallel/comm/local.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {
namespace {

constexpr UnitPrecision bfloat16_reduction{.compute = DType::bfloat16, .reduction = DType::bfloat16};

void add_everywhere(ShardUnit& unit, float value) {
  for (std::size_t p = 0; p < unit.layout().parameters.size(); ++p) {
    for (float& element : elements_of(unit.gradient(p))) element += value;
  }
}

// When the gradients of 64 microbatches are brought together.
enum class Deferral : std::uint8_t { last_microbatch, every_3, sharded };

void run_microbatches(ShardUnit& unit, Deferral deferral, float gradient) {
  constexpr int microbatches = 64;
  unit.begin_step();
  for (int done = 1; done <= microbatches; ++done) {
    add_everywhere(unit, gradient);
    const bool last = done == microbatches;
    if (last || (deferral == Deferral::every_3 && done % 3 == 0)) {
      unit.reduce_gradient();
    } else if (deferral == Deferral::sharded) {
      unit.scatter_gradient();
    }
  }
}

// 64 times 1 + 2^-9 on each of 4 ranks. Every partial sum is a multiple of 2^-9 below 2^9 and has at most 18 bits.
// float32 keeps 24: no order of additions rounds. bfloat16 keeps 8: already 1 + 2^-9 becomes 1.
TEST(UnitAccumulation, SixtyFourMicrobatchesAreExactInFloat32AndLostInBfloat16) {
  constexpr float gradient = 1.0f + 0x1p-9f;
  bfloat16 narrow(0.0f);
  for (int term = 0; term < 64; ++term) {
    narrow = bfloat16(static_cast<float>(narrow) + static_cast<float>(bfloat16(gradient)));
  }
  EXPECT_EQ(static_cast<float>(narrow), 64.0f);  // where 64.125 is right

  const RankGrid grid{2, 2};
  for (const Deferral deferral : {Deferral::last_microbatch, Deferral::every_3, Deferral::sharded}) {
    for (const bool whole : {false, true}) {
      if (whole && deferral == Deferral::sharded) continue;  // there are no shards to add up in
      for (const UnitPrecision& precision : {bfloat16_compute, bfloat16_reduction}) {
        SCOPED_TRACE(fmt::format("deferral {}, {}, reduced in {}", static_cast<int>(deferral),
                                 whole ? "whole" : "sharded", name_of(precision.reduction)));
        run_local_ranks(grid.world(), [&](Communicator& world) {
          UnitRank rank(world, grid);
          const UnitLayout layout = lay_out_unit(awkward_parameters(), whole ? 1 : grid.shard);
          rank.poison_free_blocks(layout);
          ShardUnit unit({.layout = layout,
                          .precision = precision,
                          .reduced_once = deferral != Deferral::every_3,
                          .accumulate_sharded = deferral == Deferral::sharded},
                         rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
          const bool wide = precision.reduction == DType::float32;
          for (int step = 0; step < 2; ++step) {  // the second finds nothing of the first
            run_microbatches(unit, deferral, gradient);
            int exact = 0, elements = 0;
            for (const OwnedRows& owned : unit.owned_rows()) {
              for (const float sum : owned.gradients.as<float>()) {
                ++elements;
                exact += sum == 4 * 64 * gradient ? 1 : 0;
              }
            }
            EXPECT_EQ(exact, wide ? elements : 0);
          }
        });
      }
    }
  }
}

// Scattering each microbatch's gradient and summing the replicas at the end adds the terms of one reduction in another
// order. Both are within n roundings of the sum (float32_bound), hence within twice that of each other.
TEST(UnitAccumulation, ScattersAndThenReducesWhatOneReductionDoes) {
  constexpr int microbatches = 5;
  for (const RankGrid& grid : {RankGrid{4, 1}, RankGrid{4, 2}, RankGrid{2, 3}}) {
    SCOPED_TRACE(grid.description());
    run_local_ranks(grid.world(), [&](Communicator& world) {
      UnitRank rank(world, grid);
      const UnitLayout layout = lay_out_unit(awkward_parameters(), grid.shard);
      rank.poison_free_blocks(layout);
      ShardUnit scattered({.layout = layout, .accumulate_sharded = true}, rank.groups(), rank.lanes, rank.reduce_inputs,
                          rank.ledger);
      ShardUnit at_once({.layout = layout}, rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
      EXPECT_NE(error_of([&] { at_once.scatter_gradient(); }).find("a scatter follows a weight gradient"),
                std::string::npos);
      EXPECT_NE(error_of([&] { scattered.scatter_gradient(); }).find("a scatter follows a weight gradient"),
                std::string::npos);
      world.counters().clear();
      for (ShardUnit* unit : {&at_once, &scattered}) {
        unit->begin_step();
        for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
          accumulate(*unit, layout.parameters, world.rank(), microbatch);
          if (unit == &scattered && microbatch + 1 < microbatches) {
            unit->scatter_gradient();
            EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_gradients], 0);
          }
        }
        unit->reduce_gradient();
      }
      // A reduce-scatter a microbatch and one for both; the replicas are summed once by each.
      const auto calls = [&](const char* group, CollectiveOp op) {
        const auto found = world.counters().find({group, op});
        return found == world.counters().end() ? 0 : found->second.count;
      };
      EXPECT_EQ(calls("shard", CollectiveOp::reduce_scatter), 1 + microbatches);
      EXPECT_EQ(calls("replicate", CollectiveOp::all_reduce), grid.replicate > 1 ? 2 : 0);

      std::vector<int> ranks(static_cast<std::size_t>(grid.world()));
      for (std::size_t r = 0; r < ranks.size(); ++r) ranks[r] = static_cast<int>(r);
      const auto rows = scattered.owned_rows(), expected = at_once.owned_rows();
      ASSERT_EQ(rows.size(), expected.size());
      int wrong = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const ParameterSpec& spec = *rows[i].parameter;
        const std::int64_t first = (rows[i].row_begin - spec.row_begin) * spec.columns;
        const auto sums = rows[i].gradients.as<float>(), others = expected[i].gradients.as<float>();
        for (std::size_t j = 0; j < sums.size(); ++j) {
          const GradientSum sum = gradient_sum(spec, ranks, microbatches, first + static_cast<std::int64_t>(j));
          const double bound = float32_bound(sum, ranks.size() * microbatches);
          wrong += std::abs(sums[j] - sum.sum) <= bound ? 0 : 1;
          wrong += std::abs(sums[j] - others[j]) <= 2 * bound ? 0 : 1;
        }
      }
      EXPECT_EQ(wrong, 0);
    });
  }
}

TEST(UnitAccumulation, AFrozenUnitHasNoGradient) {
  for (const bool whole : {false, true}) {
    run_local_ranks(4, [&](Communicator& world) {
      UnitRank rank(world, {4, 1});
      const UnitSetup setup{.layout = lay_out_unit(awkward_parameters(), whole ? 1 : 4), .frozen = true};
      ShardUnit unit(setup, rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
      const UnitBytes bytes = unit_bytes(setup);
      EXPECT_EQ(bytes.sharded_gradients + bytes.unsharded_gradients + bytes.reduce_input + bytes.reduce_part, 0);
      unit.begin_step();
      unit.unshard();
      for (std::size_t p = 0; p < setup.layout.parameters.size(); ++p) EXPECT_TRUE(unit.gradient(p).empty());
      EXPECT_NE(error_of([&] { unit.reduce_gradient(); }).find("a reduction follows a weight gradient"),
                std::string::npos);
      EXPECT_EQ(rank.ledger.peak_by_bucket()[Bucket::sharded_gradients], 0);
      EXPECT_EQ(rank.ledger.peak_by_bucket()[Bucket::unsharded_gradients], 0);
      for (const OwnedRows& owned : unit.owned_rows()) {
        EXPECT_FALSE(owned.values.empty());
        EXPECT_TRUE(owned.gradients.empty());
      }
      unit.reshard();
    });
  }
}

// What is read after a reduction stays until the pool has given it up. With a limit of k those are the inputs of the
// last k reductions. In another dtype the input is the narrow copy, and the accumulator goes at once.
TEST(UnitAccumulation, AsManyInputsOfReductionsAreInFlightAsThePoolAllows) {
  for (const UnitPrecision& precision : {float32_precision, bfloat16_reduction}) {
    for (const int limit : {0, 1, 2}) {
      SCOPED_TRACE(fmt::format("limit {}, reduced in {}", limit, name_of(precision.reduction)));
      run_local_ranks(2, [&](Communicator& world) {
        UnitRank rank(world, {2, 1});
        ReduceInputs pool(limit, rank.stream, rank.lanes[Lane::reduce]);
        const UnitSetup setup{.layout = lay_out_unit(awkward_parameters(), 2), .precision = precision};
        std::vector<std::unique_ptr<ShardUnit>> units;
        for (int u = 0; u < 4; ++u) {
          units.push_back(std::make_unique<ShardUnit>(setup, rank.groups(), rank.lanes, pool, rank.ledger));
        }
        const bool wide = precision.reduction == DType::float32;
        const Bucket in_flight = wide ? Bucket::unsharded_gradients : Bucket::communication;
        // 78 elements over two shards of whole rows: 48 each.
        const std::int64_t input = 96 * size_of(precision.reduction), accumulator = 96 * size_of(DType::float32);
        for (std::int64_t done = 0; done < 4; ++done) {
          ShardUnit& unit = *units[static_cast<std::size_t>(done)];
          accumulate(unit, setup.layout.parameters, world.rank(), 0);
          const std::int64_t before = std::min<std::int64_t>(done, limit);
          EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_gradients], accumulator + (wide ? before * input : 0));
          unit.reduce_gradient();
          const std::int64_t after = std::min<std::int64_t>(done + 1, limit);
          EXPECT_EQ(rank.ledger.live()[in_flight], after * input);
          EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_gradients], wide ? after * input : 0);
        }
        pool.finish();
        EXPECT_EQ(rank.ledger.live()[in_flight], 0);
      });
    }
  }
}

}  // namespace
}  // namespace weft
