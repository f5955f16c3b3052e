// Segments of which some families are frozen: everything else is what it was, bit for bit, and what only served frozen
// weights is not done.
#include <gtest/gtest.h>

#include <algorithm>

#include "layers/sequence_parallel.h"
#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

using When = SegmentTraffic::When;

constexpr Family families[] = {Family::dense, Family::experts, Family::embedding, Family::head, Family::routing};

// What a segment has parameters of.
std::set<Family> families_of(const SegmentCase& the_case) {
  std::set<Family> found;
  for (const ParameterSpec& spec : make_segment(the_case.kind, the_case.setup(0))->parameters()) {
    found.insert(spec.family);
  }
  return found;
}

bool gathers_for_weights(const RankOutcome& rank) {
  return std::ranges::any_of(rank.counted_traffic,
                             [](const auto& entry) { return entry.first.first == When::backward_weight; });
}

void expect_the_rest_unchanged(const SegmentCase& the_case, const std::set<Family>& frozen) {
  const SegmentInputs inputs = draw_inputs(the_case);
  const std::vector<RankOutcome> expected = run_segment(the_case, inputs);
  SegmentCase with_frozen = the_case;
  with_frozen.frozen = frozen;
  const std::vector<RankOutcome> found = run_segment(with_frozen, inputs);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_EQ(found[rank].y, expected[rank].y);
    EXPECT_EQ(found[rank].dx, expected[rank].dx);
    for (std::size_t i = 0; i < expected[rank].parameters.size(); ++i) {
      const ParameterSpec& spec = expected[rank].parameters[i];
      EXPECT_EQ(found[rank].gradients[i], frozen.contains(spec.family) ? Values() : expected[rank].gradients[i])
          << spec.name;
    }
    EXPECT_TRUE(found[rank].frozen_untouched);
    EXPECT_EQ(found[rank].leaked_bytes, 0);
    EXPECT_EQ(found[rank].declared_bytes, expected[rank].declared_bytes);
    EXPECT_EQ(found[rank].kept_bytes, expected[rank].kept_bytes);
    // What only frozen weights would read is gone after the input gradient.
    EXPECT_LT(found[rank].declared_pending_bytes, expected[rank].declared_pending_bytes);
    for (std::int64_t bytes : found[rank].pending_bytes) EXPECT_LE(bytes, found[rank].declared_pending_bytes);
    if (std::ranges::includes(frozen, families_of(the_case))) {
      EXPECT_EQ(found[rank].declared_pending_bytes, 0);
    }
    expect_declared_traffic(found[rank], the_case.microbatches);
  }
  const Outcome whole = assemble(the_case, expected), rest = assemble(with_frozen, found);
  EXPECT_EQ(rest.loss_sum, whole.loss_sum);
  EXPECT_EQ(rest.auxiliary_loss, whole.auxiliary_loss);
  EXPECT_EQ(rest.z_loss, whole.z_loss);
}

using FrozenSegments = DeviceTest;

TEST_F(FrozenSegments, EveryFamilyAloneLeavesTheRestUnchanged) {
  for (SegmentKind kind : all_kinds) {
    for (const auto& [data, tensor, expert] : {std::tuple{1, 1, 1}, {2, 2, 4}}) {
      SegmentCase the_case = full_case(kind, data, tensor, expert);
      the_case.microbatches = 2;
      const std::set<Family> own = families_of(the_case);
      for (Family family : families) {
        if (!own.contains(family)) continue;
        SCOPED_TRACE(
            fmt::format("segment {}, {} tensor ranks, {} frozen", static_cast<int>(kind), tensor, name_of(family)));
        expect_the_rest_unchanged(the_case, {family});
      }
    }
  }
}

TEST_F(FrozenSegments, AllButOneFamilyOfAMoeBlock) {
  const SegmentCase the_case = full_case(SegmentKind::moe, 2, 2, 4);
  expect_the_rest_unchanged(the_case, {Family::experts, Family::routing});
  expect_the_rest_unchanged(the_case, {Family::dense, Family::routing});
  expect_the_rest_unchanged(the_case, {Family::dense, Family::experts});
  expect_the_rest_unchanged(the_case, {Family::dense, Family::experts, Family::routing});
}

// With tensor parallelism tokens are gathered for weight gradients, unless there are none.
TEST_F(FrozenSegments, GatherNothingForWeightGradients) {
  for (SegmentKind kind : all_kinds) {
    SCOPED_TRACE(fmt::format("segment {}", static_cast<int>(kind)));
    SegmentCase the_case = full_case(kind, 1, 2);
    const SegmentInputs inputs = draw_inputs(the_case);
    EXPECT_TRUE(gathers_for_weights(run_segment(the_case, inputs)[0]));
    the_case.frozen = families_of(the_case);
    EXPECT_FALSE(gathers_for_weights(run_segment(the_case, inputs)[0]));
  }
}

// A vocabulary shard without rows has an empty gradient too, but its rank still takes part in what the others gather.
TEST_F(FrozenSegments, AnEmptyShardIsNotFrozen) {
  for (SegmentKind kind : {SegmentKind::embedding, SegmentKind::head}) {
    SegmentCase the_case = full_case(kind, 1, 4);
    the_case.model.vocab_size = 3;
    const SegmentInputs inputs = draw_inputs(the_case);
    for (const RankOutcome& rank : run_segment(the_case, inputs)) EXPECT_TRUE(gathers_for_weights(rank));
    expect_the_rest_unchanged(the_case, families_of(the_case));
  }
}

TEST_F(FrozenSegments, RefuseGradientsThatContradict) {
  std::vector<float> storage(24);
  const TensorView all = view_of(std::span(storage), 4, 6);
  const Gradient first = {all.rows_from(0, 2)}, second = {all.rows_from(2, 2)};
  const Gradient adjacent[] = {first, second}, none[] = {{}, {}}, one[] = {first, {}}, other[] = {{}, second};
  const Gradient fresh[] = {{first.view, true}, {second.view, true}}, half_fresh[] = {fresh[0], second};
  EXPECT_EQ(stacked_rows(Gradients(adjacent)).view.rows(), 4);
  EXPECT_FALSE(stacked_rows(Gradients(adjacent)).fresh);
  EXPECT_TRUE(stacked_rows(Gradients(fresh)).fresh);
  EXPECT_THROW(stacked_rows(Gradients(half_fresh)), Error);
  EXPECT_TRUE(stacked_rows(Gradients(none)).empty());
  for (const Gradients& some : {Gradients(one), Gradients(other)}) {
    try {
      stacked_rows(some);
      ADD_FAILURE() << "took one gradient without the other";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("frozen together"), std::string::npos) << error.what();
    }
  }

  SegmentSetup setup = full_case(SegmentKind::embedding).setup(0);
  const std::vector<ParameterSpec> parameters = make_segment(SegmentKind::embedding, setup)->parameters();
  require_frozen(setup, parameters, Gradients(adjacent).first(1));
  setup.frozen = {Family::embedding};
  require_frozen(setup, parameters, Gradients(none).first(1));
  EXPECT_THROW(require_frozen(setup, parameters, Gradients(adjacent).first(1)), Error);
}

}  // namespace
}  // namespace weft
