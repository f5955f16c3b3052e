// The ways in which a unit is kept in a test, and a run of each on every grid of ranks.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallel/comm/local.h"
#include "tests/parallel/unit_fixture.h"

namespace weft {

inline constexpr UnitPrecision bfloat16_precision{.compute = DType::bfloat16, .reduction = DType::bfloat16};

// How a unit is kept in one test run.
struct Variant {
  RankGrid grid;
  bool whole = false;  // kept whole on every rank of the shard group
  bool reduced_once = true;
  UnitPrecision precision = float32_precision;

  UnitLayout layout(const std::vector<ParameterSpec>& parameters) const {
    return lay_out_unit(parameters, whole ? 1 : grid.shard);
  }
  UnitSetup setup(const UnitLayout& layout) const {
    return {.layout = layout, .precision = precision, .reduced_once = reduced_once};
  }
  std::string description() const {
    return fmt::format("{}, {}, {}, computed in {}, reduced in {}", grid.description(), whole ? "whole" : "sharded",
                       reduced_once ? "reduced once" : "reduced in intervals", name_of(precision.compute),
                       name_of(precision.reduction));
  }
};

inline std::vector<RankGrid> shard_and_replicate_grids() {
  std::vector<RankGrid> grids;
  for (const int shard : {1, 2, 3, 4, 8}) {
    for (const int replicate : {1, 2}) grids.push_back({shard, replicate});
  }
  return grids;
}

template <typename Body>
void for_every_variant(const std::vector<RankGrid>& grids, const Body& body) {
  for (const RankGrid& grid : grids) {
    for (const bool whole : {false, true}) {
      for (const bool reduced_once : {false, true}) {
        for (const UnitPrecision& precision : {float32_precision, bfloat16_precision}) {
          const Variant variant{grid, whole, reduced_once, precision};
          SCOPED_TRACE(variant.description());
          run_local_ranks(grid.world(), [&](Communicator& world) {
            UnitRank rank(world, grid);
            const UnitLayout layout = variant.layout(awkward_parameters());
            rank.poison_free_blocks(layout);
            ShardUnit unit(variant.setup(layout), rank.groups(), rank.lanes, rank.reduce_inputs, rank.ledger);
            body(variant, rank, unit);
          });
        }
      }
    }
  }
}

}  // namespace weft
