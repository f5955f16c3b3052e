// The declarations of a segment before it runs, against its actions. They are memory kept, collectives by phase, and
// the contract between its three calls. Any number of microbatches may be in flight, and weight gradients read no
// weights.
#include <gtest/gtest.h>

#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

using When = SegmentTraffic::When;

constexpr SegmentKind dense_kinds[] = {SegmentKind::embedding, SegmentKind::attention, SegmentKind::state_space,
                                       SegmentKind::mlp,       SegmentKind::merge,     SegmentKind::predict,
                                       SegmentKind::head};

std::string describe_dtypes(const SegmentCase& the_case) {
  const SegmentSetup setup = the_case.setup(0);
  return fmt::format("segment {}, data {}, context {}, tensor {}, expert {}, {} with embedding {}, experts {}, head {}",
                     static_cast<int>(the_case.kind), the_case.data, the_case.context, the_case.tensor, the_case.expert,
                     name_of(setup.compute), name_of(setup.embedding_compute), name_of(setup.expert_compute),
                     name_of(setup.head_compute));
}

// All of one dtype, and every mixture.
std::vector<MixedDtypes> all_dtypes() {
  std::vector<MixedDtypes> dtypes = {{DType::float32, DType::float32}, {DType::bfloat16, DType::bfloat16}};
  dtypes.insert(dtypes.end(), std::begin(mixed_dtypes), std::end(mixed_dtypes));
  return dtypes;
}

using SegmentMemory = DeviceTest;
using SegmentTrafficTest = DeviceTest;
using SegmentCalls = DeviceTest;

TEST_F(SegmentMemory, DenseSegmentsKeepExactlyWhatTheyDeclare) {
  for (SegmentKind kind : dense_kinds) {
    for (bool qk_norm : {false, true}) {
      for (const MixedDtypes& dtypes : all_dtypes()) {
        for (const auto& [context, tensor] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}}) {
          SegmentCase the_case = with_dtypes(full_case(kind, 1, tensor), dtypes);
          the_case.model.qk_norm = qk_norm;
          the_case.context = context;
          the_case.masks_documents = tensor == 2;
          SCOPED_TRACE(describe_dtypes(the_case));
          for (const RankOutcome& rank : run_segment(the_case, draw_inputs(the_case))) {
            EXPECT_EQ(rank.kept_bytes[0], rank.declared_bytes);
            EXPECT_EQ(rank.pending_bytes[0], rank.declared_pending_bytes);
            EXPECT_EQ(rank.leaked_bytes, 0);
          }
        }
      }
    }
  }
}

TEST_F(SegmentMemory, MoeKeepsWhatItDeclaresWithoutExpertParallelism) {
  for (const MixedDtypes& dtypes : all_dtypes()) {
    for (const auto& [context, tensor] : {std::pair{1, 1}, {1, 2}, {1, 4}, {2, 1}}) {
      SegmentCase the_case = with_dtypes(full_case(SegmentKind::moe, 1, tensor), dtypes);
      the_case.context = context;
      SCOPED_TRACE(describe_dtypes(the_case));
      for (const RankOutcome& rank : run_segment(the_case, draw_inputs(the_case))) {
        EXPECT_EQ(rank.kept_bytes[0], rank.declared_bytes);
        EXPECT_EQ(rank.pending_bytes[0], rank.declared_pending_bytes);
        EXPECT_EQ(rank.leaked_bytes, 0);
      }
    }
  }
}

// Parts of a MoE block share what they read (its norm's output) and are frozen apart from each other.
TEST_F(SegmentMemory, MoeKeepsForWeightGradientsWhatTheRestOfItTrains) {
  const std::set<Family> subsets[] = {{Family::dense},
                                      {Family::experts},
                                      {Family::routing},
                                      {Family::dense, Family::experts},
                                      {Family::dense, Family::routing},
                                      {Family::experts, Family::routing},
                                      {Family::dense, Family::experts, Family::routing}};
  for (const MixedDtypes& dtypes : {MixedDtypes{DType::float32, DType::float32},
                                    {DType::bfloat16, DType::bfloat16},
                                    {DType::float32, DType::bfloat16},
                                    {DType::bfloat16, DType::float32}}) {
    for (std::int64_t shared_width : {0, 8}) {
      SegmentCase the_case = with_dtypes(full_case(SegmentKind::moe), dtypes);
      the_case.model.moe.shared_expert_intermediate_size = shared_width;
      const SegmentInputs inputs = draw_inputs(the_case);
      const RankOutcome whole = run_segment(the_case, inputs)[0];
      EXPECT_EQ(whole.pending_bytes[0], whole.declared_pending_bytes) << describe_dtypes(the_case);
      for (const std::set<Family>& frozen : subsets) {
        the_case.frozen = frozen;
        const RankOutcome rank = run_segment(the_case, inputs)[0];
        SCOPED_TRACE(fmt::format("{}, shared width {}, {} families frozen, the first {}", describe_dtypes(the_case),
                                 shared_width, frozen.size(), name_of(*frozen.begin())));
        EXPECT_EQ(rank.pending_bytes[0], rank.declared_pending_bytes);
        EXPECT_LT(rank.pending_bytes[0], whole.pending_bytes[0]);
        EXPECT_EQ(rank.pending_bytes[0] == 0, frozen.size() == 3);
      }
    }
  }
}

TEST_F(SegmentMemory, MoeKeepsAtMostWhatItDeclaresAndReachesItWhenAllTokensArrive) {
  SegmentCase the_case = full_case(SegmentKind::moe, 2, 2, 4);
  for (const RankOutcome& rank : run_segment(the_case, draw_inputs(the_case))) {
    EXPECT_LT(rank.kept_bytes[0], rank.declared_bytes);
    EXPECT_LT(rank.pending_bytes[0], rank.declared_pending_bytes);
    EXPECT_EQ(rank.leaked_bytes, 0);
  }
  // Equal scores choose the lower experts, 0 and 1: with two experts a rank all choices arrive at rank 0.
  the_case = full_case(SegmentKind::moe, 2, 1, 2);
  SegmentInputs inputs = draw_inputs(the_case);
  for (double& value : inputs.parameters.at("blocks.0.router.weight")) value = 0.0;
  const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
  EXPECT_EQ(ranks[0].kept_bytes[0], ranks[0].declared_bytes);
  EXPECT_EQ(ranks[0].pending_bytes[0], ranks[0].declared_pending_bytes);
  // Rank 1 keeps no row of 12 hidden values and three times 5 inner ones, and later none of their gradients. The
  // gradients of the gate and of the product of both take the place of inner values.
  const std::int64_t row_bytes = (12 + 3 * 5) * 4, pending_row_bytes = (2 * 12 + 3 * 5) * 4;
  EXPECT_EQ(ranks[1].kept_bytes[0], ranks[1].declared_bytes - 2 * the_case.tokens() * 2 * row_bytes);
  EXPECT_EQ(ranks[1].pending_bytes[0], ranks[1].declared_pending_bytes - 2 * the_case.tokens() * 2 * pending_row_bytes);
}

TEST_F(SegmentTrafficTest, IsWhatTheCommunicatorsCountInEachPhase) {
  struct Layout {
    int data, tensor, expert, context = 1;
  };
  for (SegmentKind kind : all_kinds) {
    for (const Layout& layout : {Layout{1, 1, 1}, Layout{1, 2, 1}, Layout{1, 4, 1}, Layout{2, 1, 2}, Layout{1, 2, 2},
                                 Layout{2, 2, 4}, Layout{1, 1, 1, 2}, Layout{1, 2, 2, 2}}) {
      for (const MixedDtypes& dtypes : all_dtypes()) {
        SegmentCase the_case = with_dtypes(full_case(kind, layout.data, layout.tensor, layout.expert), dtypes);
        the_case.context = layout.context;
        the_case.masks_documents = layout.tensor == 2;
        the_case.microbatches = 2;
        SCOPED_TRACE(describe_dtypes(the_case));
        for (const RankOutcome& rank : run_segment(the_case, draw_inputs(the_case))) {
          expect_declared_traffic(rank, the_case.microbatches);
        }
      }
    }
  }
}

// What passes between ranks on the way into another dtype travels in the narrower of both.
TEST_F(SegmentTrafficTest, IsThatOfTheNarrowerDtype) {
  const auto bytes = [](SegmentKind kind, MixedDtypes dtypes) {
    const SegmentCase the_case = with_dtypes(full_case(kind, 2, 2, 4), dtypes);
    std::int64_t sum = 0;
    for (const SegmentTraffic& entry : make_segment(kind, the_case.setup(0))->traffic()) {
      const bool between =
          kind == SegmentKind::moe ? entry.op == CollectiveOp::all_to_all : entry.when == When::forward;
      if (between) sum += entry.bytes;
    }
    return sum;
  };
  for (SegmentKind kind : {SegmentKind::embedding, SegmentKind::moe}) {
    const std::int64_t wide = bytes(kind, {DType::float32, DType::float32});
    EXPECT_GT(wide, 0);
    EXPECT_EQ(2 * bytes(kind, {DType::float32, DType::bfloat16}), wide);
    EXPECT_EQ(2 * bytes(kind, {DType::float16, DType::float32}), wide);
  }
}

TEST_F(SegmentTrafficTest, MoeReachesItsBoundWhenAllTokensArrive) {
  const SegmentCase the_case = full_case(SegmentKind::moe, 2, 1, 2);
  SegmentInputs inputs = draw_inputs(the_case);
  for (double& value : inputs.parameters.at("blocks.0.router.weight")) value = 0.0;
  const RankOutcome rank = run_segment(the_case, inputs).front();
  std::int64_t declared = 0, counted = 0;
  for (const SegmentTraffic& entry : rank.declared_traffic) {
    if (entry.op == CollectiveOp::all_to_all) declared += entry.bytes;
  }
  for (const auto& [key, count] : rank.counted_traffic) {
    if (key.second.op == CollectiveOp::all_to_all) counted += count.bytes;
  }
  EXPECT_EQ(counted, declared);
}

// Weight gradients wait while other microbatches run, and come in another order than the input gradients.
TEST_F(SegmentCalls, InterleavedMicrobatchesGiveTheReferenceGradients) {
  const Schedule interleaved = {{When::forward, 0},        {When::forward, 1},         {When::backward_input, 0},
                                {When::forward, 2},        {When::backward_input, 1},  {When::backward_weight, 1},
                                {When::backward_input, 2}, {When::backward_weight, 0}, {When::backward_weight, 2}};
  for (SegmentKind kind : all_kinds) {
    SegmentCase the_case = full_case(kind, 1, 2, 2);
    the_case.microbatches = 3;
    SCOPED_TRACE(describe_dtypes(the_case));
    const SegmentInputs inputs = draw_inputs(the_case);
    const Outcome outcome = assemble(the_case, run_segment(the_case, inputs, {.schedule = interleaved}));
    EXPECT_LE(largest_relative_error(outcome, expected_outcome(the_case, inputs)), tolerance(the_case));
    // No microbatch leaves a trace in another: not a bit differs from running them one after the other.
    const Outcome alone = assemble(the_case, run_segment(the_case, inputs));
    EXPECT_EQ(outcome.y, alone.y);
    EXPECT_EQ(outcome.dx, alone.dx);
  }
}

// The harness passes no weights to those that read none: the gradients of an embedding are right without.
TEST_F(SegmentCalls, AllButTheEmbeddingReadWeightsForTheirInputGradient) {
  for (SegmentKind kind : all_kinds) {
    EXPECT_EQ(make_segment(kind, full_case(kind).setup(0))->reads_weights_backward(), kind != SegmentKind::embedding);
  }
}

TEST_F(SegmentCalls, WeightGradientsReadNoWeights) {
  for (SegmentKind kind : all_kinds) {
    const SegmentCase the_case = full_case(kind, 1, 2, 2);
    SCOPED_TRACE(describe_dtypes(the_case));
    const SegmentInputs inputs = draw_inputs(the_case);
    const Outcome poisoned =
        assemble(the_case, run_segment(the_case, inputs, {.poison_weights_before_weight_gradient = true}));
    EXPECT_EQ(poisoned.gradients, assemble(the_case, run_segment(the_case, inputs)).gradients);
  }
}

}  // namespace
}  // namespace weft
