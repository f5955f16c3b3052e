// A shard unit through its life, on worlds of 1 to 16 ranks, against values and sums computed without any unit.
#include "parallel/shard/unit.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "tests/parallel/unit_variant.h"

namespace weft {
namespace {

TEST(ShardUnit, UnshardsExactlyTheStoredValues) {
  for_every_variant(shard_and_replicate_grids(), [](const Variant& variant, UnitRank&, ShardUnit& unit) {
    store_values(unit);
    for (int cycle = 0; cycle < 2; ++cycle) {
      unit.unshard();
      EXPECT_EQ(wrong_values(unit, variant.precision.compute), 0);
      unit.reshard();
    }
  });
}

TEST(ShardUnit, OwnsEveryGlobalRowOncePerReplica) {
  for (const RankGrid& grid : shard_and_replicate_grids()) {
    for (const bool whole : {false, true}) {
      SCOPED_TRACE(grid.description() + (whole ? ", whole" : ", sharded"));
      std::mutex mutex;
      // Replica, parameter and global row of everything that a rank owns; of a whole unit every shard rank owns all.
      std::multiset<std::tuple<int, std::string, std::int64_t>> owned_by_replica;
      run_local_ranks(grid.world(), [&](Communicator& world) {
        UnitRank rank(world, grid);
        const UnitLayout layout = Variant{grid, whole, true}.layout(awkward_parameters());
        ShardUnit unit({.layout = layout}, rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
        const std::lock_guard lock(mutex);
        for (const OwnedRows& owned : unit.owned_rows()) {
          for (const TensorView& rows : {owned.values, owned.gradients}) {
            EXPECT_EQ(rows.rows(), owned.rows);
            EXPECT_EQ(rows.columns(), owned.parameter->columns);
            EXPECT_EQ(rows.dtype(), DType::float32);
          }
          for (std::int64_t row = 0; row < owned.rows; ++row) {
            owned_by_replica.emplace(rank.replica, owned.parameter->name, owned.row_begin + row);
          }
        }
      });
      std::size_t expected = 0;
      for (int replica = 0; replica < grid.replicate; ++replica) {
        for (const ParameterSpec& spec : awkward_parameters()) {
          for (std::int64_t row = spec.row_begin; row < spec.row_begin + spec.rows; ++row) {
            const std::size_t owners = whole ? static_cast<std::size_t>(grid.shard) : 1;
            EXPECT_EQ(owned_by_replica.count({replica, spec.name, row}), owners) << spec.name << " row " << row;
            expected += owners;
          }
        }
      }
      EXPECT_EQ(owned_by_replica.size(), expected);
    }
  }
}

// Elements of this rank's gradients further from the double sum over `ranks` than `bound` allows.
template <typename Bound>
int wrong_gradients(ShardUnit& unit, const std::vector<int>& ranks, int microbatches, const Bound& bound) {
  int wrong = 0;
  for (const OwnedRows& owned : unit.owned_rows()) {
    const ParameterSpec& spec = *owned.parameter;
    const std::int64_t first = (owned.row_begin - spec.row_begin) * spec.columns;
    const std::span<const float> gradients = owned.gradients.as<float>();
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const GradientSum expected = gradient_sum(spec, ranks, microbatches, first + static_cast<std::int64_t>(i));
      // Written so that a NaN is wrong.
      wrong += std::abs(gradients[i] - expected.sum) <= bound(expected) ? 0 : 1;
    }
  }
  return wrong;
}

std::vector<int> all_ranks(const RankGrid& grid) {
  std::vector<int> ranks(static_cast<std::size_t>(grid.world()));
  for (int rank = 0; rank < grid.world(); ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  return ranks;
}

// bfloat16 keeps 8 significant bits: a rounding is off by at most u = 2^-8 of the value. A gradient is rounded when it
// is narrowed, when the shard group has summed and when the replicas have summed. Each time the error is relative to
// at most the sum of magnitudes: (1 + u)^3 - 1 < 3.02 u. Magnitudes of intervals add up to those of the step, so that
// several reductions share the bound. What float32 adds (float32_bound) is far below the remaining 0.08 u.
double bfloat16_bound(const GradientSum& expected) {
  return 3.1 * 0x1p-8 * expected.magnitude;
}

TEST(ShardUnit, ReducesTheSumOverRanksAndMicrobatches) {
  for_every_variant(shard_and_replicate_grids(), [](const Variant& variant, UnitRank& rank, ShardUnit& unit) {
    constexpr int microbatches = 3;
    for (int step = 0; step < 2; ++step) {  // the second step finds nothing of the first
      unit.begin_step();
      for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
        accumulate(unit, unit.layout().parameters, rank.world.rank(), microbatch);
      }
      unit.reduce_gradient();
      const std::vector<int> ranks = all_ranks(variant.grid);
      const bool wide = variant.precision.reduction == DType::float32;
      const int wrong = wrong_gradients(unit, ranks, microbatches, [&](const GradientSum& expected) {
        return wide ? float32_bound(expected, ranks.size() * microbatches) : bfloat16_bound(expected);
      });
      EXPECT_EQ(wrong, 0);
    }
  });
}

TEST(ShardUnit, ReductionsOfOneStepAddUp) {
  for_every_variant({{1, 1}, {4, 1}, {3, 2}}, [](const Variant& variant, UnitRank& rank, ShardUnit& unit) {
    if (variant.reduced_once) return;
    // Two, two and one microbatch, as reducing after every second and the last one gives.
    constexpr int microbatches = 5;
    unit.begin_step();
    for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
      accumulate(unit, unit.layout().parameters, rank.world.rank(), microbatch);
      if (microbatch % 2 == 1 || microbatch + 1 == microbatches) unit.reduce_gradient();
    }
    const std::vector<int> ranks = all_ranks(variant.grid);
    const bool wide = variant.precision.reduction == DType::float32;
    const int wrong = wrong_gradients(unit, ranks, microbatches, [&](const GradientSum& expected) {
      return wide ? float32_bound(expected, ranks.size() * microbatches) : bfloat16_bound(expected);
    });
    EXPECT_EQ(wrong, 0);
  });
}

// Sharded and whole units add the same numbers in the same order: first over the shard group, then over the replicas.
// Gradients begin at +0 and sums of them are never -0, so that every bit is the same.
TEST(ShardUnit, ShardingDoesNotChangeTheBits) {
  for (const RankGrid& grid : shard_and_replicate_grids()) {
    for (const bool reduced_once : {false, true}) {
      for (const UnitPrecision& precision : {float32_precision, bfloat16_precision}) {
        const Variant full_shard{grid, false, reduced_once, precision};
        SCOPED_TRACE(full_shard.description());
        run_local_ranks(grid.world(), [&](Communicator& world) {
          UnitRank rank(world, grid);
          ShardUnit sharded(full_shard.setup(full_shard.layout(awkward_parameters())), rank.groups(), rank.lanes,
                            rank.reduce_inputs, rank.ledger);
          ShardUnit whole(full_shard.setup(lay_out_unit(awkward_parameters(), 1)), rank.groups(), rank.lanes,
                          rank.reduce_inputs, rank.ledger);
          for (ShardUnit* unit : {&sharded, &whole}) {
            unit->begin_step();
            for (int microbatch = 0; microbatch < 4; ++microbatch) {
              accumulate(*unit, unit->layout().parameters, world.rank(), microbatch);
              if (microbatch == 3 || (!reduced_once && microbatch == 1)) unit->reduce_gradient();
            }
          }
          int different = 0;
          for (const OwnedRows& part : sharded.owned_rows()) {
            for (const OwnedRows& all : whole.owned_rows()) {
              if (all.parameter->name != part.parameter->name) continue;
              const TensorView same_rows = all.gradients.rows_from(part.row_begin - all.row_begin, part.rows);
              different += std::memcmp(same_rows.data(), part.gradients.data(),
                                       static_cast<std::size_t>(part.gradients.bytes())) != 0;
            }
          }
          EXPECT_EQ(different, 0);
        });
      }
    }
  }
}

// Tensor ranks hold different boxes of a matrix, and may cut their shards differently, but the same norm.
TEST(ShardUnit, SumsTensorReplicatedGradientsOverTheTensorGroupAndNoOthers) {
  for (const RankGrid& grid : {RankGrid{1, 1, 2}, RankGrid{2, 1, 2}, RankGrid{2, 2, 3}}) {
    for (const bool whole : {false, true}) {
      for (const bool reduced_once : {false, true}) {
        SCOPED_TRACE(grid.description() + (whole ? ", whole" : ", sharded"));
        run_local_ranks(grid.world(), [&](Communicator& world) {
          UnitRank rank(world, grid);
          // Tensor rank 0 holds two more rows of the vocabulary than the others.
          const UnitLayout layout =
              lay_out_unit(std::vector{box("norm", 0, 5, 1, true), box("bias", 0, 3, 1),
                                       box("vocabulary", 9 * rank.tensor_rank, rank.tensor_rank == 0 ? 9 : 7, 4)},
                           whole ? 1 : grid.shard);
          ShardUnit unit({.layout = layout, .reduced_once = reduced_once}, rank.groups(), rank.lanes,
                         rank.reduce_inputs, rank.ledger);
          unit.begin_step();
          accumulate(unit, unit.layout().parameters, world.rank(), 0);
          unit.reduce_gradient();

          std::vector<int> own_tensor_rank;
          for (int replica = 0; replica < grid.replicate; ++replica) {
            for (int s = 0; s < grid.shard; ++s) own_tensor_rank.push_back(grid.rank_at(replica, s, rank.tensor_rank));
          }
          int wrong = 0;
          for (const OwnedRows& owned : unit.owned_rows()) {
            const ParameterSpec& spec = *owned.parameter;
            const std::vector<int> ranks = spec.tensor_replicated ? all_ranks(grid) : own_tensor_rank;
            const std::int64_t first = (owned.row_begin - spec.row_begin) * spec.columns;
            const std::span<const float> gradients = owned.gradients.as<float>();
            for (std::size_t i = 0; i < gradients.size(); ++i) {
              const GradientSum expected = gradient_sum(spec, ranks, 1, first + static_cast<std::int64_t>(i));
              const double error = std::abs(gradients[i] - expected.sum);
              wrong += error <= float32_bound(expected, ranks.size()) ? 0 : 1;
            }
          }
          EXPECT_EQ(wrong, 0);
        });
      }
    }
  }
}

// The reduction goes through, so that no rank is left waiting, and the rank where it began can tell.
TEST(ShardUnit, NamesTheParameterOfANonFiniteGradientOnTheRankWhereItBegan) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (const bool whole : {false, true}) {
    for (const bool reduced_once : {false, true}) {
      for (const UnitPrecision& precision : {float32_precision, bfloat16_precision}) {
        for (const float bad : {nan, infinity, -infinity}) {
          const Variant variant{{4, 1}, whole, reduced_once, precision};
          SCOPED_TRACE(variant.description());
          run_local_ranks(4, [&](Communicator& world) {
            UnitRank rank(world, variant.grid);
            const UnitLayout layout = variant.layout(awkward_parameters());
            rank.poison_free_blocks(layout);
            ShardUnit unit(variant.setup(layout), rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
            unit.begin_step();
            accumulate(unit, layout.parameters, world.rank(), 0);
            EXPECT_EQ(unit.nonfinite_parameter(), std::nullopt);
            for (std::size_t p = 0; p < layout.parameters.size(); ++p) {
              if (world.rank() != 2 || layout.parameters[p].name != "down") continue;
              elements_of(unit.gradient(p)).back() = bad;
            }
            unit.reduce_gradient();
            const auto down = world.rank() == 2 ? std::optional<std::string>("down") : std::nullopt;
            EXPECT_EQ(unit.nonfinite_parameter(), down) << "rank " << world.rank();
            // A later interval does not hide it; the next step forgets it.
            if (!reduced_once) {
              accumulate(unit, layout.parameters, world.rank(), 1);
              unit.reduce_gradient();
              EXPECT_EQ(unit.nonfinite_parameter(), down) << "rank " << world.rank();
            }
            unit.begin_step();
            accumulate(unit, layout.parameters, world.rank(), 2);
            unit.reduce_gradient();
            EXPECT_EQ(unit.nonfinite_parameter(), std::nullopt) << "rank " << world.rank();
          });
        }
      }
    }
  }
}

// A fresh gradient has no contents. Parameters of segments that did not run are reduced as zeros.
TEST(ShardUnit, ReducesZerosWhereNoWeightGradientWrote) {
  for_every_variant({{4, 1}, {2, 2}}, [](const Variant& variant, UnitRank&, ShardUnit& unit) {
    const bool in_shard = variant.whole && variant.reduced_once;
    for (const std::size_t written : {0u, 1u}) {
      unit.begin_step();
      for (std::size_t p = written; p < unit.layout().parameters.size(); p += 2) {
        EXPECT_EQ(unit.gradient(p).fresh, !in_shard);
        const Gradient again = unit.gradient(p);
        EXPECT_FALSE(again.fresh);
        std::ranges::fill(again.view.as<float>(), 1.0f);
      }
      unit.reduce_gradient();
      EXPECT_EQ(unit.nonfinite_parameter(), std::nullopt);
      for (const OwnedRows& owned : unit.owned_rows()) {
        const auto p = static_cast<std::size_t>(owned.parameter - unit.layout().parameters.data());
        for (const float value : owned.gradients.as<float>()) EXPECT_EQ(value, p % 2 == written ? 4.0f : 0.0f);
      }
    }
  });
}

// What a copy of the unit on another stage adds stays, also where no weight gradient of this stage wrote.
TEST(ShardUnit, ReducesWhatIsAddedToTheAccumulatedGradient) {
  for_every_variant({{4, 1}, {2, 2}}, [](const Variant& variant, UnitRank&, ShardUnit& unit) {
    if (variant.whole && variant.reduced_once) return;  // the shard's gradient, which no weight gradient overwrites
    unit.begin_step();
    std::ranges::fill(unit.gradient(0).view.as<float>(), 1.0f);
    const TensorView sum = unit.accumulated_gradient();
    for (std::size_t p = 0; p < unit.layout().parameters.size(); ++p) {
      const TensorView part = sum.rows_from(unit.layout().offsets[p], unit.layout().parameters[p].size());
      for (float& value : part.as<float>()) value += 2.0f;
    }
    unit.reduce_gradient();
    for (const OwnedRows& owned : unit.owned_rows()) {
      const bool written = owned.parameter == unit.layout().parameters.data();
      for (const float value : owned.gradients.as<float>()) EXPECT_EQ(value, written ? 12.0f : 8.0f);
    }
  });
}

TEST(ShardUnit, RefusesIllegalTransitions) {
  for_every_variant({{1, 1}, {2, 1}}, [](const Variant&, UnitRank&, ShardUnit& unit) {
    EXPECT_NE(error_of([&] { unit.parameter(0); }).find("while its unit is unsharded"), std::string::npos);
    EXPECT_NE(error_of([&] { unit.reshard(); }).find("reshard of a unit that is not unsharded"), std::string::npos);
    EXPECT_NE(error_of([&] { unit.reduce_gradient(); }).find("a reduction follows a weight gradient"),
              std::string::npos);
    unit.unshard();
    EXPECT_NE(error_of([&] { unit.unshard(); }).find("unshard of a unit that is sharded"), std::string::npos);
    unit.reshard();
    EXPECT_NE(error_of([&] { unit.parameter(0); }).find("while its unit is unsharded"), std::string::npos);
    EXPECT_NE(error_of([&] { unit.reshard(); }).find("reshard of a unit that is not unsharded"), std::string::npos);

    unit.gradient(0);
    unit.reduce_gradient();
    EXPECT_NE(error_of([&] { unit.reduce_gradient(); }).find("a reduction follows a weight gradient"),
              std::string::npos);
  });
}

TEST(ShardUnit, RefusesALayoutOfAnotherGroup) {
  run_local_ranks(2, [](Communicator& world) {
    UnitRank rank(world, {2, 1});
    const UnitLayout layout = lay_out_unit(awkward_parameters(), 3);
    EXPECT_NE(error_of([&] {
                ShardUnit({.layout = layout}, rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
              }).find("one shard per rank"),
              std::string::npos);
  });
}

// An optimizer sees the owned rows only. Everything else in the shard is made NaN. A step that reached it would read
// one, and a row that lay outside of owned_rows would be gathered as one.
TEST(ShardUnit, AStepThroughOwnedRowsReachesAllParametersAndNoPadding) {
  for_every_variant({{1, 1}, {3, 1}, {8, 1}, {2, 2}}, [](const Variant& variant, UnitRank& rank, ShardUnit& unit) {
    constexpr std::uint32_t poison = 0x7fc0dead;
    store_values(unit);
    unit.begin_step();
    accumulate(unit, unit.layout().parameters, rank.world.rank(), 0);
    unit.reduce_gradient();

    const std::vector<OwnedRows> rows = unit.owned_rows();
    const auto gradients = unit.shard_gradient().as<float>();
    std::vector<bool> owned(gradients.size(), false);
    // A shard of padding only has no rows, and with them no way to its memory.
    float* shard = rows.empty() ? nullptr : rows.front().values.as<float>().data() - rows.front().offset;
    for (const OwnedRows& part : rows) {
      EXPECT_EQ(part.values.as<float>().data(), shard + part.offset);
      EXPECT_EQ(part.gradients.as<float>().data(), gradients.data() + part.offset);
      for (std::int64_t i = 0; i < part.values.size(); ++i) owned[static_cast<std::size_t>(part.offset + i)] = true;
    }
    for (std::size_t i = 0; shard != nullptr && i < owned.size(); ++i) {
      if (!owned[i]) shard[i] = gradients[i] = std::bit_cast<float>(poison);
    }
    for (const OwnedRows& part : rows) {
      const auto values = part.values.as<float>(), slopes = part.gradients.as<float>();
      for (std::size_t i = 0; i < values.size(); ++i) values[i] += 0.0F * slopes[i];
    }
    for (std::size_t i = 0; shard != nullptr && i < owned.size(); ++i) {
      if (owned[i]) continue;
      EXPECT_EQ(std::bit_cast<std::uint32_t>(shard[i]), poison);
      EXPECT_EQ(std::bit_cast<std::uint32_t>(gradients[i]), poison);
    }
    unit.unshard();
    EXPECT_EQ(wrong_values(unit, variant.precision.compute), 0);
    unit.reshard();
  });
}

}  // namespace
}  // namespace weft
