// The dense segments against the double reference: outputs, input gradients and all weight gradients, over every degree
// of tensor parallelism. What is held for any layout is also held between layouts.
#include <gtest/gtest.h>

#include "layers/kernels/state_space.h"
#include "parallel/runtime/element_type.h"
#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

constexpr int tensor_degrees[] = {1, 2, 4};

// 8 query and 4 key heads, so that four ranks have a key head each.
ModelConfig model_for_four_ranks() {
  ModelConfig model = small_model();
  model.num_attention_heads = 8;
  model.num_key_value_heads = 4;
  return model;
}

// Two data-parallel ranks of `tensor` ranks each; both hold all parameters and see other tokens.
void expect_reference(SegmentCase the_case, std::span<const int> degrees) {
  the_case.data = 2;
  const SegmentInputs inputs = draw_inputs(the_case);
  const Outcome expected = expected_outcome(the_case, inputs);
  for (int tensor : degrees) {
    SCOPED_TRACE(fmt::format("{} tensor ranks", tensor));
    the_case.tensor = tensor;
    EXPECT_LE(largest_relative_error(assemble(the_case, run_segment(the_case, inputs)), expected), tolerance(the_case));
  }
}

using EmbeddingSegment = DeviceTest;
using AttentionSegment = DeviceTest;
using StateSpaceSegment = DeviceTest;
using MlpSegment = DeviceTest;
using HeadSegment = DeviceTest;
using DenseSegments = DeviceTest;

TEST_F(EmbeddingSegment, MatchesReferenceWithAVocabularyThatDoesNotDivide) {
  expect_reference({.kind = SegmentKind::embedding, .model = small_model()}, tensor_degrees);
}

TEST_F(EmbeddingSegment, EmptyVocabularyShard) {
  ModelConfig model = small_model();
  model.vocab_size = 3;
  expect_reference({.kind = SegmentKind::embedding, .model = model}, tensor_degrees);
}

TEST_F(AttentionSegment, MatchesReferenceWithQkNorm) {
  expect_reference({.kind = SegmentKind::attention, .model = model_for_four_ranks()}, tensor_degrees);
}

TEST_F(AttentionSegment, MatchesReferenceWithoutQkNorm) {
  ModelConfig model = model_for_four_ranks();
  model.qk_norm = false;
  expect_reference({.kind = SegmentKind::attention, .model = model}, tensor_degrees);
}

TEST_F(AttentionSegment, MatchesReferenceWithHowManyKeyHeadsThereAre) {
  for (std::int64_t key_heads : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} key heads", key_heads));
    ModelConfig model = small_model();
    model.num_key_value_heads = key_heads;
    const std::vector<int> degrees = key_heads == 1 ? std::vector{1} : std::vector{1, 2};
    expect_reference({.kind = SegmentKind::attention, .model = model}, degrees);
  }
}

TEST_F(AttentionSegment, MatchesReferenceWithSharedSequences) {
  SegmentCase the_case{.kind = SegmentKind::attention, .model = small_model(), .context = 2};
  expect_reference(the_case, std::vector{1, 2});
  the_case.model.qk_norm = false;
  expect_reference(the_case, std::vector{1, 2});
}

TEST_F(AttentionSegment, MatchesReferenceWithAWindow) {
  SegmentCase the_case{.kind = SegmentKind::attention, .model = model_for_four_ranks()};
  for (std::int64_t window : {3, 5, 100}) {
    the_case.model.sliding_window = window;
    the_case.context = 1;
    expect_reference(the_case, tensor_degrees);
    the_case.context = 2;
    expect_reference(the_case, std::vector{1, 2});
  }
}

// Sequences of several chunks, the last one in part, too.
TEST_F(StateSpaceSegment, MatchesReferenceWithHowManyGroupsThereAre) {
  for (std::int64_t groups : {1, 2, 4}) {
    SCOPED_TRACE(fmt::format("{} groups", groups));
    SegmentCase the_case{.kind = SegmentKind::state_space, .model = small_model()};
    the_case.model.state_space.n_groups = groups;
    const auto degrees = std::span(tensor_degrees).first(groups == 4 ? 3 : static_cast<std::size_t>(groups));
    expect_reference(the_case, degrees);
    // Context ranks have a part of the heads each, and of the groups if there are enough. Among more tokens is one with
    // a small norm, as in full_case().
    the_case.model.rms_norm_eps = 0.01;
    for (const int context : {2, 4}) {
      SCOPED_TRACE(fmt::format("context {}", context));
      the_case.context = context;
      the_case.sequence_length = 4 * context;
      expect_reference(the_case, std::vector{1});
      if (groups > 1 && context == 2) expect_reference(the_case, std::vector{2});
    }
  }
  SegmentCase the_case = full_case(SegmentKind::state_space);
  the_case.model.hidden_size = 4;
  the_case.sequence_length = 2 * shortest_scan_chunk + 12;
  the_case.sequences = 1;
  expect_reference(the_case, std::vector{1, 2});
  the_case.context = 2;
  expect_reference(the_case, std::vector{1, 2});
}

TEST_F(MlpSegment, MatchesReference) {
  expect_reference({.kind = SegmentKind::mlp, .model = small_model()}, tensor_degrees);
}

TEST_F(HeadSegment, MatchesReferenceWithAVocabularyThatDoesNotDivide) {
  expect_reference({.kind = SegmentKind::head, .model = small_model()}, tensor_degrees);
  for (const SegmentKind kind : {SegmentKind::merge, SegmentKind::predict}) {
    expect_reference({.kind = kind, .model = small_model()}, tensor_degrees);
  }
}

TEST_F(HeadSegment, EmptyVocabularyShard) {
  ModelConfig model = small_model();
  model.vocab_size = 3;
  expect_reference({.kind = SegmentKind::head, .model = model}, tensor_degrees);
}

// Rows of the table are rounded once on their way into the other dtype, and their sum over the ranks is exact.
TEST_F(EmbeddingSegment, RoundsRowsOfItsTableOnce) {
  for (const MixedDtypes& dtypes : mixed_dtypes) {
    for (int tensor : tensor_degrees) {
      const SegmentCase the_case =
          with_dtypes({.kind = SegmentKind::embedding, .model = small_model(), .tensor = tensor}, dtypes);
      const SegmentInputs inputs = draw_inputs(the_case);
      Values expected = expected_outcome(the_case, inputs).y[0];
      with_element_type(dtypes.compute, [&](auto element) {
        using T = decltype(element);
        for (double& value : expected) value = static_cast<float>(T(static_cast<float>(value)));
      });
      EXPECT_EQ(assemble(the_case, run_segment(the_case, inputs)).y[0], expected)
          << name_of(dtypes.family) << " to " << name_of(dtypes.compute) << ", " << tensor << " tensor ranks";
    }
  }
}

TEST_F(DenseSegments, FamiliesOfTheirOwnDtypeAreCloseToTheReference) {
  for (SegmentKind kind : {SegmentKind::embedding, SegmentKind::merge, SegmentKind::predict, SegmentKind::head}) {
    for (const MixedDtypes& dtypes : mixed_dtypes) {
      for (int tensor : {1, 2}) {
        SCOPED_TRACE(fmt::format("segment {}, {} with {}, {} tensor ranks", static_cast<int>(kind),
                                 name_of(dtypes.compute), name_of(dtypes.family), tensor));
        const SegmentCase the_case = with_dtypes({.kind = kind, .model = small_model(), .tensor = tensor}, dtypes);
        const SegmentInputs inputs = draw_inputs(the_case);
        const Outcome expected = expected_outcome(the_case, inputs);
        const Outcome actual = assemble(the_case, run_segment(the_case, inputs));
        EXPECT_LE(relative_error(actual.y[0], expected.y[0]), tolerance(the_case));
        EXPECT_LE(largest_relative_error(actual, expected), 2.0 * tolerance(the_case));
      }
    }
  }
}

// The backward's longest path is twice the forward's.
TEST_F(DenseSegments, SixteenBitForwardAndGradientsAreCloseToTheReference) {
  for (SegmentKind kind : {SegmentKind::embedding, SegmentKind::attention, SegmentKind::state_space, SegmentKind::mlp,
                           SegmentKind::merge, SegmentKind::predict, SegmentKind::head}) {
    for (DType compute : {DType::bfloat16, DType::float16}) {
      for (int tensor : {1, 2}) {
        SCOPED_TRACE(fmt::format("segment {}, {}, {} tensor ranks", static_cast<int>(kind), name_of(compute), tensor));
        const SegmentCase the_case{.kind = kind, .model = small_model(), .tensor = tensor, .compute = compute};
        const SegmentInputs inputs = draw_inputs(the_case);
        const Outcome expected = expected_outcome(the_case, inputs);
        const Outcome actual = assemble(the_case, run_segment(the_case, inputs));
        EXPECT_LE(relative_error(actual.y[0], expected.y[0]), tolerance(the_case));
        EXPECT_LE(largest_relative_error(actual, expected), 2.0 * tolerance(the_case));
      }
    }
  }
}

}  // namespace
}  // namespace weft
