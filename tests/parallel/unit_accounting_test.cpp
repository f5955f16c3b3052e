// The bytes and traffic of a shard unit, by the ledger and the counters of its rank, equal those of its layout.
#include "tests/parallel/unit_variant.h"

#include <iterator>

namespace weft {
namespace {

// The bytes of a unit by the rules of its header, said once more for the awkward set, whose last element is the 78th.
UnitBytes expected_bytes(const Variant& variant) {
  // One whole buffer of 78 elements rounded up to a multiple of 12; four shards of 20 rounded up likewise.
  const std::int64_t shard = variant.whole ? 84 : 24, all = variant.whole ? 84 : 4 * 24;
  const bool computes_on_shard = variant.whole && variant.precision.compute == DType::float32;
  const bool accumulates_in_shard = variant.whole && variant.reduced_once;
  const std::int64_t width = size_of(variant.precision.reduction);
  const bool straight = variant.whole || (variant.reduced_once && width == 4);
  return {.sharded_parameters = 4 * shard,
          .sharded_gradients = 4 * shard,
          .unsharded_parameters = computes_on_shard ? 0 : all * size_of(variant.precision.compute),
          .unsharded_gradients = accumulates_in_shard ? 0 : 4 * all,
          .reduce_input = width == 4 ? 0 : all * width,
          .reduce_part = straight ? 0 : shard * width};
}

TEST(ShardUnit, TakesExactlyTheBytesThatAreKnownFromTheLayout) {
  for_every_variant({{4, 1}, {4, 2}}, [](const Variant& variant, UnitRank& rank, ShardUnit& unit) {
    const UnitBytes bytes = unit_bytes(variant.setup(unit.layout()));
    EXPECT_EQ(bytes, expected_bytes(variant));
    const auto live = [&] { return rank.ledger.live(); };
    BucketBytes expected;
    expected[Bucket::sharded_parameters] = bytes.sharded_parameters;
    expected[Bucket::sharded_gradients] = bytes.sharded_gradients;
    // The counts of what is not finite: one int32 a parameter.
    expected[Bucket::workspace] = 4 * std::ssize(unit.layout().parameters);
    const BucketBytes at_rest = expected;
    EXPECT_EQ(live(), at_rest);

    unit.unshard();
    expected[Bucket::unsharded_parameters] = bytes.unsharded_parameters;
    EXPECT_EQ(live(), expected);

    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      unit.gradient(0);
      expected[Bucket::unsharded_gradients] = bytes.unsharded_gradients;
      EXPECT_EQ(live(), expected);
    }

    // Gradients outlive the parameters where the weight gradient comes after the reshard.
    unit.reshard();
    expected[Bucket::unsharded_parameters] = 0;
    EXPECT_EQ(live(), expected);

    rank.ledger.reset_peak();
    unit.reduce_gradient();
    EXPECT_EQ(live(), at_rest);
    // A reduction takes the narrowed gradient, and this rank's part of the result where it cannot go straight into the
    // shard's gradient. The part is then narrower, or earlier intervals are there already.
    const std::int64_t width = size_of(variant.precision.reduction);
    const std::int64_t narrowed = width == 4 ? 0 : unit.layout().unsharded_size() * width;
    const bool straight = variant.whole || (variant.reduced_once && width == 4);
    const std::int64_t part = straight ? 0 : unit.layout().shard_size * width;
    expected[Bucket::communication] = narrowed + part;
    EXPECT_EQ(rank.ledger.peak_by_bucket(), expected);
  });
}

TEST(ShardUnit, CountsEachGatherAndReductionOnceWithItsBytes) {
  for_every_variant({{1, 1}, {4, 1}, {1, 2}, {4, 2}}, [](const Variant& variant, UnitRank& rank, ShardUnit& unit) {
    const RankGrid& grid = variant.grid;
    rank.world.counters().clear();
    constexpr int times = 3;
    for (int time = 0; time < times; ++time) {
      unit.unshard();
      unit.gradient(0);
      unit.reshard();
      unit.begin_step();
      unit.reduce_gradient();
    }
    const UnitBytes bytes = unit_bytes(variant.setup(unit.layout()));
    const std::int64_t width = size_of(variant.precision.reduction);
    const std::int64_t reduce = unit.layout().unsharded_size() * width;
    if (bytes.unsharded_gradients != 0) {
      EXPECT_EQ(reduce, bytes.unsharded_gradients / 4 * width);
    }
    // Groups of one rank exchange nothing and are not counted.
    CommunicationCounters expected;
    if (grid.shard > 1 && variant.whole) expected[{"shard", CollectiveOp::all_reduce}] = {times, times * reduce};
    if (grid.shard > 1 && !variant.whole) {
      expected[{"shard", CollectiveOp::all_gather}] = {times, times * bytes.unsharded_parameters};
      expected[{"shard", CollectiveOp::reduce_scatter}] = {times, times * reduce};
    }
    if (grid.replicate > 1) {
      const std::int64_t shards = variant.whole ? 1 : grid.shard;
      expected[{"replicate", CollectiveOp::all_reduce}] = {times, times * reduce / shards};
    }
    EXPECT_EQ(rank.world.counters(), expected);
  });
}

void run_step(UnitRank& rank, ShardUnit& unit) {
  unit.begin_step();
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    unit.unshard();
    accumulate(unit, unit.layout().parameters, rank.world.rank(), microbatch);
    unit.reshard();
  }
  unit.reduce_gradient();
}

TEST(ShardUnit, AsksTheSystemForNothingAfterItsFirstStep) {
  for (const RankGrid& grid : {RankGrid{1, 1}, RankGrid{4, 1}, RankGrid{2, 2}}) {
    for (const bool whole : {false, true}) {
      for (const UnitPrecision& precision : {float32_precision, bfloat16_precision}) {
        const Variant variant{grid, whole, false, precision};
        SCOPED_TRACE(variant.description());
        run_local_ranks(grid.world(), [&](Communicator& world) {
          UnitRank rank(world, grid);
          ShardUnit unit(variant.setup(variant.layout(awkward_parameters())), rank.groups(), rank.lanes,
                         rank.reduce_inputs, rank.ledger);
          run_step(rank, unit);
          const std::int64_t after_first = rank.device->system_allocations();
          for (int step = 0; step < 3; ++step) run_step(rank, unit);
          EXPECT_EQ(rank.device->system_allocations(), after_first);
        });
      }
    }
  }
}

}  // namespace
}  // namespace weft
