// A unit's parameters between its gathers: parts in an island, gathers without a reader, rows stored in bfloat16.
#include <gtest/gtest.h>

#include <vector>

#include "parallel/comm/local.h"
#include "tests/parallel/clocked_device.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {
namespace {

// A rank of a grid and its island of neighbours.
struct IslandRank : UnitRank {
  IslandRank(Communicator& world_group, const RankGrid& grid, int size)
      : UnitRank(world_group, grid),
        island(world_group.split(world_group.rank() / size, world_group.rank() % size, "island", lanes[Lane::gather])) {
  }
  UnitGroups groups() const {
    UnitGroups all = UnitRank::groups();
    all.island = island.get();
    return all;
  }
  std::unique_ptr<Communicator> island;
};

TEST(UnitIsland, GivesBackTheSameBitsOverTheIslandAlone) {
  for (const auto& [grid, size] : {std::pair(RankGrid{4, 1}, 2), {RankGrid{8, 1}, 4}, {RankGrid{4, 2}, 2}}) {
    for (const UnitPrecision& precision : {float32_precision, bfloat16_compute}) {
      SCOPED_TRACE(
          fmt::format("{}, islands of {}, computed in {}", grid.description(), size, name_of(precision.compute)));
      run_local_ranks(grid.world(), [&, grid = grid, size = size](Communicator& world) {
        IslandRank rank(world, grid, size);
        const UnitSetup setup{
            .layout = lay_out_unit(awkward_parameters(), grid.shard), .precision = precision, .island_ranks = size};
        rank.poison_free_blocks(setup.layout);
        ShardUnit unit(setup, rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
        store_values(unit);
        const UnitBytes bytes = unit_bytes(setup);
        const std::int64_t all = setup.layout.unsharded_size() * size_of(precision.compute);
        EXPECT_EQ(bytes.unsharded_parameters, all);
        EXPECT_EQ(bytes.island_parameters, all / size);
        const auto live = [&] { return rank.ledger.live()[Bucket::unsharded_parameters]; };
        const auto peak = [&] { return rank.ledger.peak_by_bucket()[Bucket::unsharded_parameters]; };
        world.counters().clear();
        for (int cycle = 0; cycle < 2; ++cycle) {
          unit.unshard();
          EXPECT_EQ(live(), all);
          rank.ledger.reset_peak();
          unit.reshard_to_island();
          EXPECT_EQ(live(), all / size);
          EXPECT_EQ(peak(), all + all / size);  // both, while one is made from the other
          EXPECT_NE(error_of([&] { unit.parameter(0); }).find("while its unit is unsharded"), std::string::npos);
          rank.ledger.reset_peak();
          unit.unshard_secondary();
          EXPECT_EQ(live(), all);
          EXPECT_EQ(peak(), all + all / size);
          unit.wait_until_unsharded();
          EXPECT_EQ(wrong_values(unit, precision.compute), 0);
          unit.reshard();
          EXPECT_EQ(live(), 0);
        }
        const CommunicationCounters expected = {{{"shard", CollectiveOp::all_gather}, {2, 2 * all}},
                                                {{"island", CollectiveOp::all_gather}, {2, 2 * all}}};
        EXPECT_EQ(world.counters(), expected);
      });
    }
  }
}

TEST(UnitIsland, RefusesIllegalTransitions) {
  run_local_ranks(4, [](Communicator& world) {
    IslandRank rank(world, {4, 1}, 2);
    const UnitLayout layout = lay_out_unit(awkward_parameters(), 4);
    const auto make = [&](int island_ranks, const UnitGroups& groups) {
      return ShardUnit({.layout = layout, .island_ranks = island_ranks}, groups, rank.lanes, rank.reduce_inputs,
                       rank.ledger);
    };
    const auto refuses = [](const std::string& error, const char* words) {
      EXPECT_NE(error.find(words), std::string::npos) << error;
    };
    refuses(error_of([&] { make(4, rank.groups()); }), "a unit with an island has its group");
    refuses(error_of([&] { make(2, rank.UnitRank::groups()); }), "a unit with an island has its group");

    ShardUnit unit = make(2, rank.groups());
    refuses(error_of([&] { unit.reshard_to_island(); }), "reshard to the island of an unsharded unit");
    refuses(error_of([&] { unit.unshard_secondary(); }), "a gather over the island follows a reshard to it");
    refuses(error_of([&] { unit.wait_until_unsharded(); }), "compute waits for a unit that is being unsharded");
    unit.unshard();
    refuses(error_of([&] { unit.unshard_secondary(); }), "a gather over the island follows a reshard to it");
    unit.reshard_to_island();
    refuses(error_of([&] { unit.unshard(); }), "unshard of a unit that is sharded");
    refuses(error_of([&] { unit.reshard(); }), "reshard of a unit that is not unsharded");
    refuses(error_of([&] { unit.reshard_to_island(); }), "reshard to the island of an unsharded unit");
    refuses(error_of([&] { unit.parameter(0); }), "a parameter is read while its unit is unsharded");
    unit.unshard_secondary();
    refuses(error_of([&] { unit.unshard_secondary(); }), "a gather over the island follows a reshard to it");
    unit.reshard();

    ShardUnit plain = make(0, rank.UnitRank::groups());
    plain.unshard();
    refuses(error_of([&] { plain.reshard_to_island(); }), "reshard to the island of an unsharded unit that has one");
    plain.reshard();
  });
}

// On streams with events, so that there is something to wait for when nobody does.
TEST(UnitResidency, AGatherThatNobodyUsesIsReleased) {
  run_local_ranks(2, [](Communicator& world) {
    ClockedDevice device;
    Lanes lanes(device);
    MemoryLedger ledger(device, lanes[Lane::compute]);
    ReduceInputs reduce_inputs(0, lanes[Lane::compute], lanes[Lane::reduce]);
    const auto gather = world.split(0, world.rank(), "shard", lanes[Lane::gather]);
    const auto shard = world.split(0, world.rank(), "shard", lanes[Lane::reduce]);
    const auto replicate = world.split(world.rank(), 0, "replicate", lanes[Lane::reduce]);
    const UnitLayout layout = lay_out_unit(awkward_parameters(), 2);
    ShardUnit unit({.layout = layout}, {.gather = gather.get(), .shard = shard.get(), .replicate = replicate.get()},
                   lanes, reduce_inputs, ledger);
    store_values(unit);
    unit.unshard();
    EXPECT_GT(ledger.live()[Bucket::unsharded_parameters], 0);
    unit.reshard();
    EXPECT_EQ(ledger.live()[Bucket::unsharded_parameters], 0);
    EXPECT_NE(error_of([&] { unit.wait_until_unsharded(); }).find("compute waits for a unit that is being unsharded"),
              std::string::npos);
    const std::int64_t before = device.system_allocations();
    unit.unshard();
    EXPECT_EQ(device.system_allocations(), before);  // into the same room
    unit.wait_until_unsharded();
    EXPECT_EQ(wrong_values(unit, DType::float32), 0);
    unit.reshard();
    EXPECT_EQ(ledger.live()[Bucket::unsharded_parameters], 0);
  });
}

void store_rounded_values(ShardUnit& unit) {
  for (const OwnedRows& owned : unit.owned_rows()) {
    const std::int64_t columns = owned.parameter->columns;
    const auto values = owned.values.as<bfloat16>();
    for (std::int64_t i = 0; i < owned.rows * columns; ++i) {
      values[static_cast<std::size_t>(i)] =
          bfloat16(value_at(*owned.parameter, owned.row_begin + i / columns, i % columns));
    }
  }
}

// Half the bytes at rest, and the values that were rounded once: computing in bfloat16 rounds no second time, computing
// in float32 widens them. A whole unit computes on what it stores where the dtypes agree.
TEST(UnitResidency, RowsStoredInBfloat16AreGatheredAsTheyAre) {
  for (const bool whole : {false, true}) {
    for (const DType compute : {DType::bfloat16, DType::float32}) {
      SCOPED_TRACE(fmt::format("{}, computed in {}", whole ? "whole" : "sharded", name_of(compute)));
      run_local_ranks(4, [&](Communicator& world) {
        UnitRank rank(world, {4, 1});
        const UnitSetup setup{.layout = lay_out_unit(awkward_parameters(), whole ? 1 : 4),
                              .precision = {.stored = DType::bfloat16, .compute = compute}};
        rank.poison_free_blocks(setup.layout);
        ShardUnit unit(setup, rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
        EXPECT_EQ(rank.ledger.live()[Bucket::sharded_parameters], 2 * setup.layout.shard_size);
        EXPECT_EQ(rank.ledger.live()[Bucket::sharded_gradients], 4 * setup.layout.shard_size);
        store_rounded_values(unit);
        unit.unshard();
        const bool on_shard = whole && compute == DType::bfloat16;
        EXPECT_EQ(rank.ledger.live()[Bucket::unsharded_parameters],
                  on_shard ? 0 : setup.layout.unsharded_size() * size_of(compute));
        int wrong = 0;
        for (std::size_t p = 0; p < setup.layout.parameters.size(); ++p) {
          const ParameterSpec& spec = setup.layout.parameters[p];
          const ConstTensorView view = unit.parameter(p);
          for (std::int64_t i = 0; i < spec.size(); ++i) {
            const auto at = static_cast<std::size_t>(i);
            const auto stored =
                static_cast<float>(bfloat16(value_at(spec, spec.row_begin + i / spec.columns, i % spec.columns)));
            const float found =
                compute == DType::float32 ? view.as<float>()[at] : static_cast<float>(view.as<bfloat16>()[at]);
            wrong += found != stored ? 1 : 0;
          }
        }
        EXPECT_EQ(wrong, 0);
        unit.reshard();
      });
    }
  }
}

}  // namespace
}  // namespace weft
