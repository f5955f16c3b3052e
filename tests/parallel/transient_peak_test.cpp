// The largest that a rank holds along its list, from sums by hand.
#include <gtest/gtest.h>

#include "parallel/pipeline/accounts/live_bytes.h"
#include "parallel/pipeline/check/check.h"
#include "tests/parallel/program_grid.h"
#include "tests/parallel/reduced_in_turn.h"

namespace weft {
namespace {

// Reduced after every microbatch, a gradient is filled while those of as many units as the pool holds are on their
// way. Otherwise all of them live to the end. A copy in another dtype takes the gradient's place on the way.
TEST(TransientPeak, GradientsLiveUntilTheirReduction) {
  const auto gradients = [](const UnitPolicy& policy, int reduce_inputs) {
    ProgramTables tables = stage_tables(1, 4, policy);
    tables.reduce_inputs = reduce_inputs;
    for (ProgramUnit& unit : tables.units) unit.gradient_bytes = 100;
    return transient_peak(compiled(tables, "1f1b", 3), 0).buckets[Bucket::unsharded_gradients];
  };
  for (int reduce_inputs : {0, 1, 2, 3}) {
    EXPECT_EQ(gradients({.reduce_every = 1}, reduce_inputs), 100 * (1 + reduce_inputs));
    EXPECT_EQ(gradients({.reduce_every = 0}, reduce_inputs), 400);
  }
}

// One unit is filled (100) and has its copy (50), beside those of the units before it. The oldest goes before a new
// one is made, as the lane that makes it has done with it. What comes first in an action is there while the rest is.
TEST(TransientPeak, AReductionInAnotherDtypeTakesACopyAndAPart) {
  ProgramTables tables = stage_tables(1, 4, {.lookahead = 0, .reduce_every = 1});
  for (ProgramUnit& unit : tables.units) {
    unit.unsharded_bytes = 0;
    unit.gradient_bytes = 100;
    unit.reduce_input_bytes = 50;
    unit.reduce_part_bytes = 10;
  }
  for (int reduce_inputs : {0, 1, 2}) {
    tables.reduce_inputs = reduce_inputs;
    const TransientPeak peak = transient_peak(compiled(tables, "1f1b", 3), 0);
    EXPECT_EQ(peak.bytes, 100 + 50 * std::max(1, reduce_inputs)) << reduce_inputs;
    EXPECT_EQ(peak.buckets[Bucket::unsharded_gradients], 100);
    EXPECT_EQ(peak.buckets[Bucket::communication], 50 * std::max(1, reduce_inputs));
  }
}

// Reductions end in their order: a wait for the second gives the input of the first back as well.
TEST(TransientPeak, AWaitGivesBackTheInputsUpToItsReduction) {
  EXPECT_EQ(transient_peak(reduced_in_turn(std::nullopt), 0).buckets[Bucket::unsharded_gradients], 350);
  EXPECT_EQ(transient_peak(reduced_in_turn(2), 0).buckets[Bucket::unsharded_gradients], 250);
  const TransientPeak both = transient_peak(reduced_in_turn(1), 0);
  EXPECT_EQ(both.buckets[Bucket::unsharded_gradients], 200);
  EXPECT_EQ(both.index, 2u);  // the second gradient, beside the input of the first
  // Of copies in another dtype too.
  Program copies = reduced_in_turn(1);
  for (ProgramUnit& unit : copies.units) unit.reduce_input_bytes = unit.gradient_bytes / 2;
  EXPECT_EQ(transient_peak(copies, 0).bytes, 150 + 75);  // the last gradient and its copy
}

// A forward leaves a part of each unit with the island until its backward gathers it; both exist while one becomes the
// other.
TEST(TransientPeak, AnIslandKeepsParts) {
  ProgramTables tables = stage_tables(1, 4, {.residency = Residency::island, .island_ranks = 2, .lookahead = 0});
  for (ProgramUnit& unit : tables.units) {
    unit.unsharded_bytes = 100;
    unit.island_bytes = 50;
  }
  // When the last forward ends, three parts lie in the island beside the full last unit, which stays for its backward.
  EXPECT_EQ(transient_peak(compiled(tables, "1f1b", 1), 0).bytes, 3 * 50 + 100);
}

using Order = std::vector<std::pair<Op, int>>;

// Of an order of two microbatches on one stage, whose segments keep (from F to I, from I to W) so many bytes.
TransientPeak peak_of_order(const std::vector<std::pair<std::int64_t, std::int64_t>>& kept, const Order& order,
                            bool lowered = true) {
  ProgramTables tables = stage_tables(1, static_cast<int>(kept.size()));
  for (ProgramUnit& unit : tables.units) unit.unsharded_bytes = 0;
  for (std::size_t s = 0; s < kept.size(); ++s) {
    tables.segments[s].activation_bytes = kept[s].first;
    tables.segments[s].pending_bytes = kept[s].second;
  }
  Program program{tables, 2, {{}}};
  for (const auto& [op, microbatch] : order) {
    program.ranks[0].push_back({.op = op, .stage = 0, .microbatch = microbatch});
  }
  return transient_peak(lowered ? lower_to_segments(program) : program, 0);
}

// An input gradient puts what waits for the weight gradient in the place of activations. A B does so and is done with
// it, so that the larger counts. Sums by hand, after every action.
TEST(TransientPeak, AnInputGradientLeavesWhatTheWeightGradientReads) {
  constexpr Op f = Op::forward, i = Op::backward_input, w = Op::backward_weight, b = Op::backward;
  const Order whole = {{f, 0}, {b, 0}, {f, 1}, {b, 1}}, at_once = {{f, 0}, {i, 0}, {w, 0}, {f, 1}, {i, 1}, {w, 1}},
              one_late = {{f, 0}, {i, 0}, {f, 1}, {w, 0}, {i, 1}, {w, 1}},
              both_late = {{f, 0}, {i, 0}, {f, 1}, {i, 1}, {w, 0}, {w, 1}};
  const auto activations = [](std::int64_t pending, const Order& order) {
    return peak_of_order({{10, pending}}, order).buckets[Bucket::activations];
  };
  for (const Order& order : {whole, at_once}) {
    EXPECT_EQ(activations(0, order), 10);
    EXPECT_EQ(activations(7, order), 10);
    EXPECT_EQ(activations(13, order), 13);
  }
  EXPECT_EQ(activations(0, one_late), 10);        // 10, 0, 10, 10, 0, 0
  EXPECT_EQ(activations(7, one_late), 10 + 7);    // 10, 7, 17, 10, 7, 0
  EXPECT_EQ(activations(13, one_late), 10 + 13);  // 10, 13, 23, 10, 13, 0
  EXPECT_EQ(activations(7, both_late), 10 + 7);   // 10, 7, 17, 14, 7, 0
  EXPECT_EQ(activations(13, both_late), 26);      // 10, 13, 23, 26, 13, 0
}

// The last piece goes first; a list that speaks of the whole stage counts as the one that is run.
TEST(TransientPeak, PiecesOfABackwardGoOneAfterTheOther) {
  constexpr Op f = Op::forward, i = Op::backward_input, w = Op::backward_weight, b = Op::backward;
  for (bool lowered : {true, false}) {
    // 110 after the forward; then 10 + 70 and 10, then 40.
    EXPECT_EQ(peak_of_order({{10, 40}, {100, 70}}, {{f, 0}, {b, 0}}, lowered).buckets[Bucket::activations], 110);
    // 10 + 130, then 10, then 125.
    EXPECT_EQ(peak_of_order({{10, 125}, {100, 130}}, {{f, 0}, {b, 0}}, lowered).buckets[Bucket::activations], 140);
    // The same split: 10 + 130, then 125 + 130.
    EXPECT_EQ(peak_of_order({{10, 125}, {100, 130}}, {{f, 0}, {i, 0}, {w, 0}}, lowered).buckets[Bucket::activations],
              255);
  }
}

}  // namespace
}  // namespace weft
