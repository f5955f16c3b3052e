// The MoE segment against the double reference, over tensor and expert parallelism together. Expert groups are cut out
// of the data- and tensor-parallel ranks. Without tensor parallelism each of their ranks has a microbatch of its own,
// with it each has a slice of one.
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <numeric>

#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

struct Layout {
  int data, tensor, expert;
};
constexpr Layout layouts[] = {{1, 1, 1}, {1, 2, 1}, {1, 2, 2}, {1, 4, 2}, {1, 4, 4}, {2, 1, 1},
                              {2, 1, 2}, {2, 2, 2}, {2, 2, 4}, {4, 1, 2}, {4, 1, 4}};

SegmentCase moe_case(Scoring scoring, bool normalise, std::int64_t shared_width, Layout layout) {
  SegmentCase the_case{.kind = SegmentKind::moe,
                       .model = small_model(),
                       .data = layout.data,
                       .tensor = layout.tensor,
                       .expert = layout.expert};
  MoeConfig& moe = the_case.model.moe;
  moe.scoring = scoring;
  moe.norm_topk_prob = normalise;
  moe.shared_expert_intermediate_size = shared_width;
  // Of the order of the other gradients.
  moe.router_aux_loss_coef = 2.0;
  moe.router_z_loss_coef = 0.5;
  return the_case;
}

void expect_outcome(const SegmentCase& the_case, const std::vector<RankOutcome>& ranks, const Outcome& expected) {
  const Outcome actual = assemble(the_case, ranks);
  EXPECT_LE(largest_relative_error(actual, expected), tolerance(the_case));
  EXPECT_EQ(actual.expert_tokens, expected.expert_tokens);
  EXPECT_EQ(actual.null_choices, expected.null_choices);
}

void expect_reference(const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
  expect_outcome(the_case, run_segment(the_case, inputs), expected);
}

void expect_reference_in_all_layouts(Scoring scoring, bool normalise, std::int64_t shared_width) {
  for (int data : {1, 2, 4}) {
    const SegmentCase alone = moe_case(scoring, normalise, shared_width, {data, 1, 1});
    const SegmentInputs inputs = draw_inputs(alone);
    const Outcome expected = expected_outcome(alone, inputs);
    for (const Layout& layout : layouts) {
      if (layout.data != data) continue;
      SCOPED_TRACE(fmt::format("data {}, tensor {}, expert {}", layout.data, layout.tensor, layout.expert));
      expect_reference(moe_case(scoring, normalise, shared_width, layout), inputs, expected);
    }
  }
}

using MoeSegment = DeviceTest;

TEST_F(MoeSegment, SoftmaxNormalised) {
  expect_reference_in_all_layouts(Scoring::softmax, true, 0);
}
// Each token has its noise, on whichever rank; the same again for its gradients and for a second forward.
TEST_F(MoeSegment, NoiseMultipliesTheInputOfTheRouter) {
  const auto noisy = [&](Layout layout) {
    SegmentCase the_case = moe_case(Scoring::softmax, true, 8, layout);
    the_case.model.moe.router_jitter_noise = 0.25;
    return the_case;
  };
  const SegmentInputs inputs = draw_inputs(noisy({2, 1, 1}));
  const Outcome expected = expected_outcome(noisy({2, 1, 1}), inputs);
  EXPECT_GT(largest_relative_error(expected_outcome(moe_case(Scoring::softmax, true, 8, {2, 1, 1}), inputs), expected),
            0.01);
  for (const Layout& layout : layouts) {
    if (layout.data != 2) continue;
    SCOPED_TRACE(fmt::format("tensor {}, expert {}", layout.tensor, layout.expert));
    expect_reference(noisy(layout), inputs, expected);
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      SegmentCase the_case = noisy(layout);
      the_case.compute = dtype;
      const Outcome kept = assemble(the_case, run_segment(the_case, inputs));
      const Outcome again = assemble(the_case, run_segment(the_case, inputs, {.forward_again = true}));
      the_case.recompute_cheap = true;
      const Outcome cheap = assemble(the_case, run_segment(the_case, inputs));
      EXPECT_EQ(again.gradients, kept.gradients);
      EXPECT_EQ(cheap.gradients, kept.gradients);
      EXPECT_EQ(again.dx, kept.dx);
      EXPECT_EQ(cheap.dx, kept.dx);
    }
  }
}

// Statistics of all tokens of a microbatch, of which a rank of the tensor group holds a part.
TEST_F(MoeSegment, BalancesTheMicrobatch) {
  for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid}) {
    const auto batch_case = [&](Layout layout) {
      SegmentCase the_case = moe_case(scoring, true, 0, layout);
      the_case.model.moe.aux_loss = AuxiliaryLoss::microbatch;
      return the_case;
    };
    const SegmentInputs inputs = draw_inputs(batch_case({2, 1, 1}));
    const Outcome expected = expected_outcome(batch_case({2, 1, 1}), inputs);
    for (const Layout& layout : layouts) {
      if (layout.data == 2) expect_reference(batch_case(layout), inputs, expected);
    }
    // By sequence it is another loss.
    const Outcome by_sequence = expected_outcome(moe_case(scoring, true, 0, {2, 1, 1}), inputs);
    EXPECT_GT(largest_relative_error(by_sequence, expected), 100 * tolerance(batch_case({2, 1, 1})));
  }
}
// Choices in the step so far: of the third microbatch on two data ranks, of six, or of the rank's own three.
TEST_F(MoeSegment, BalancesTheStepSoFar) {
  for (const Scoring scoring : {Scoring::softmax, Scoring::sigmoid}) {
    for (const AuxiliaryLoss loss : {AuxiliaryLoss::rank_batch, AuxiliaryLoss::global}) {
      const auto step_case = [&](Layout layout) {
        SegmentCase the_case = moe_case(scoring, true, 0, layout);
        the_case.model.moe.aux_loss = loss;
        the_case.microbatches = 3;
        return the_case;
      };
      const SegmentInputs inputs = draw_inputs(step_case({2, 1, 1}));
      const Outcome expected = expected_outcome(step_case({2, 1, 1}), inputs);
      for (const Layout& layout : layouts) {
        if (layout.data == 2) expect_reference(step_case(layout), inputs, expected);
      }
      // What is recomputed takes the choices of the first time, whatever came in between.
      SegmentCase again = step_case({2, 2, 2});
      expect_outcome(again, run_segment(again, inputs, {.forward_again = true}), expected);
      // By microbatch, or counted over other ranks, it is another loss.
      for (const AuxiliaryLoss other : all_values<AuxiliaryLoss>) {
        if (other == loss) continue;
        again.model.moe.aux_loss = other;
        EXPECT_GT(largest_relative_error(expected_outcome(again, inputs), expected), 100 * tolerance(again))
            << name_of(other);
      }
    }
  }
}
TEST_F(MoeSegment, SoftmaxNormalisedWithSharedExpert) {
  expect_reference_in_all_layouts(Scoring::softmax, true, 8);
}
TEST_F(MoeSegment, SoftmaxNotNormalised) {
  expect_reference_in_all_layouts(Scoring::softmax, false, 0);
}
TEST_F(MoeSegment, SigmoidNormalised) {
  expect_reference_in_all_layouts(Scoring::sigmoid, true, 0);
}
// Four groups of two experts, of which a token chooses from two.
TEST_F(MoeSegment, RouterOfGroupsWithABiasAndAGatedSharedExpert) {
  for (const Scoring scoring : {Scoring::sigmoid, Scoring::sqrt_softplus}) {
    const auto deep_case = [&](Layout layout) {
      SegmentCase the_case = moe_case(scoring, true, 8, layout);
      MoeConfig& moe = the_case.model.moe;
      moe.num_experts = 8;
      moe.n_group = 4;
      moe.topk_group = 2;
      moe.selection_bias = moe.shared_expert_gate = true;
      moe.routed_scaling_factor = 2.5;
      return the_case;
    };
    for (int data : {1, 2, 4}) {
      const SegmentCase alone = deep_case({data, 1, 1});
      const SegmentInputs inputs = draw_inputs(alone);
      const Outcome expected = expected_outcome(alone, inputs);
      for (const Layout& layout : layouts) {
        if (layout.data != data) continue;
        SCOPED_TRACE(fmt::format("data {}, tensor {}, expert {}", layout.data, layout.tensor, layout.expert));
        const SegmentCase the_case = deep_case(layout);
        expect_reference(the_case, inputs, expected);
        expect_outcome(the_case, run_segment(the_case, inputs, {.forward_again = true}), expected);
      }
      // Each of the new parts matters.
      for (const auto& change : std::initializer_list<std::function<void(MoeConfig&)>>{
               [](MoeConfig& moe) { moe.topk_group = 3; }, [](MoeConfig& moe) { moe.selection_bias = false; },
               [](MoeConfig& moe) { moe.shared_expert_gate = false; },
               [](MoeConfig& moe) { moe.routed_scaling_factor = 1.0; }}) {
        SegmentCase other = alone;
        change(other.model.moe);
        SegmentInputs same = inputs;
        std::erase_if(same.parameters, [&](const auto& parameter) {
          return (!other.model.moe.selection_bias && parameter.first.ends_with("selection_bias")) ||
                 (!other.model.moe.shared_expert_gate && parameter.first.find("_gate.") != std::string::npos);
        });
        EXPECT_GT(largest_relative_error(expected_outcome(other, same), expected), 100 * tolerance(alone));
      }
    }
  }
}
// A capacity is that of a whole sequence, of which tensor and context ranks have parts, and no layout drops other
// tokens.
TEST_F(MoeSegment, FullExpertsDropTheSameTokensInEveryLayout) {
  for (const DropPolicy policy : all_values<DropPolicy>) {
    const auto full_experts = [&](Layout layout, int context) {
      SegmentCase the_case = moe_case(Scoring::softmax, true, 8, layout);
      the_case.context = context;
      the_case.model.moe.capacity_factor = 0.75;
      the_case.model.moe.drop_policy = policy;
      return the_case;
    };
    for (int data : {1, 2}) {
      const SegmentCase alone = full_experts({data, 1, 1}, 1);
      const SegmentInputs inputs = draw_inputs(alone);
      const Outcome expected = expected_outcome(alone, inputs);
      const std::int64_t choices = alone.tokens() * alone.all_microbatches() * alone.model.moe.num_experts_per_tok;
      EXPECT_LT(std::accumulate(expected.expert_tokens.begin(), expected.expert_tokens.end(), std::int64_t{0}),
                choices);
      for (const auto& [layout, context] : {std::pair(Layout{1, 1, 1}, 1),
                                            {{1, 2, 1}, 1},
                                            {{1, 2, 2}, 1},
                                            {{1, 4, 4}, 1},
                                            {{1, 1, 1}, 2},
                                            {{1, 2, 2}, 2},
                                            {{2, 1, 1}, 1},
                                            {{2, 1, 2}, 1},
                                            {{2, 2, 4}, 1},
                                            {{2, 1, 4}, 2}}) {
        if (layout.data != data) continue;
        SCOPED_TRACE(fmt::format("data {}, context {}, tensor {}, expert {}, {}", layout.data, context, layout.tensor,
                                 layout.expert, name_of(policy)));
        const SegmentCase the_case = full_experts(layout, context);
        const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
        expect_outcome(the_case, ranks, expected);
        for (const RankOutcome& rank : ranks) expect_declared_traffic(rank, the_case.microbatches);
        expect_outcome(the_case, run_segment(the_case, inputs, {.forward_again = true}), expected);
        // Rows of zeros change nothing, and what is declared is exact.
        SegmentCase padded = the_case;
        padded.model.moe.pad_to_capacity = true;
        const std::vector<RankOutcome> padded_ranks = run_segment(padded, inputs);
        expect_outcome(padded, padded_ranks, expected);
        for (const RankOutcome& rank : padded_ranks) expect_declared_traffic(rank, padded.microbatches);
        expect_outcome(padded, run_segment(padded, inputs, {.forward_again = true}), expected);
      }
    }
  }
}
// Null slots beside what a router may have: as many as experts, or one. Tokens go to different numbers of experts.
TEST_F(MoeSegment, NullSlotsTakeChoicesInEveryLayout) {
  using Change = std::function<void(MoeConfig&)>;
  for (const Change& change : std::initializer_list<Change>{
           [](MoeConfig&) {}, [](MoeConfig& moe) { moe.real_fraction = 0.8; },
           [](MoeConfig& moe) { moe.scoring = Scoring::sigmoid, moe.selection_bias = true; },
           [](MoeConfig& moe) { moe.norm_topk_prob = false, moe.routed_scaling_factor = 2.5; },
           [](MoeConfig& moe) { moe.scoring = Scoring::sigmoid, moe.aux_loss = AuxiliaryLoss::global; },
           [](MoeConfig& moe) { moe.capacity_factor = 0.75; },
           [](MoeConfig& moe) { moe.capacity_factor = 0.75, moe.pad_to_capacity = true; }}) {
    const auto null_case = [&](Layout layout) {
      SegmentCase the_case = moe_case(Scoring::softmax, true, 8, layout);
      the_case.microbatches = 2;
      the_case.model.moe.real_fraction = 0.5;
      change(the_case.model.moe);
      return the_case;
    };
    const SegmentCase alone = null_case({2, 1, 1});
    const MoeConfig& moe = alone.model.moe;
    const SegmentInputs inputs = draw_inputs(alone);
    const Outcome expected = expected_outcome(alone, inputs);
    const std::int64_t choices = alone.tokens() * alone.all_microbatches() * moe.choices();
    EXPECT_GT(expected.null_choices, choices / 10);
    EXPECT_LT(expected.null_choices, choices * 9 / 10);
    for (const Layout& layout : layouts) {
      if (layout.data != 2) continue;
      const SegmentCase the_case = null_case(layout);
      SCOPED_TRACE(fmt::format("tensor {}, expert {}, {} null slots, {} {}", layout.tensor, layout.expert,
                               moe.null_copies(), name_of(moe.scoring), moe.capacity_factor));
      const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
      expect_outcome(the_case, ranks, expected);
      for (const RankOutcome& rank : ranks) {
        expect_declared_traffic(rank, the_case.microbatches);
        EXPECT_LE(rank.kept_bytes[0], rank.declared_bytes);
        EXPECT_LE(rank.pending_bytes[0], rank.declared_pending_bytes);
      }
      expect_outcome(the_case, run_segment(the_case, inputs, {.forward_again = true}), expected);
    }
  }
}
// What a search counts for a microbatch, by every dispatch and kind of recompute.
TEST_F(MoeSegment, BytesOfEvenRoutingAreThoseOfARouterThatBalances) {
  using Change = std::function<void(SegmentCase&)>;
  const Change dispatches[] = {[](SegmentCase&) {},
                               [](SegmentCase& one) { one.expert_dispatch = ExpertDispatch::all_gather; },
                               [](SegmentCase& one) {
                                 one.expert_dispatch = ExpertDispatch::hierarchical;
                                 one.expert_nodes = 2;
                               }};
  const Change recomputes[] = {[](SegmentCase&) {},
                               [](SegmentCase& one) { one.recompute_cheap = true; },
                               [](SegmentCase& one) { one.recompute_experts = true; },
                               [](SegmentCase& one) { one.keep_dispatch = true; },
                               [](SegmentCase& one) { one.weights_at_experts = true; },
                               [](SegmentCase& one) { one.model.moe.capacity_factor = 0.75; },
                               [](SegmentCase& one) {
                                 one.model.moe.capacity_factor = 1.5;
                                 one.model.moe.pad_to_capacity = true;
                               }};
  for (const Layout& layout : layouts) {
    for (std::size_t d = 0; d < std::size(dispatches); ++d) {
      if (d > 0 && layout.expert < 4) continue;
      for (std::size_t r = 0; r < std::size(recomputes); ++r) {
        SegmentCase the_case = moe_case(Scoring::softmax, true, 8, layout);
        the_case.model.moe.force_balance = true;
        dispatches[d](the_case);
        recomputes[r](the_case);
        SCOPED_TRACE(fmt::format("data {}, tensor {}, expert {}, dispatch {}, recompute {}", layout.data, layout.tensor,
                                 layout.expert, d, r));
        const SegmentInputs inputs = draw_inputs(the_case);
        const std::int64_t x = the_case.tokens() / layout.tensor * the_case.model.hidden_size * size_of(DType::float32);
        for (const RankOutcome& rank : run_segment(the_case, inputs)) {
          EXPECT_EQ(rank.kept_bytes[0], rank.even_bytes.activations);
          EXPECT_EQ(rank.pending_bytes[0], rank.even_bytes.pending);
        }
        for (const RankOutcome& rank : run_segment(the_case, inputs, {.forward_again = true})) {
          EXPECT_EQ(rank.kept_bytes[0], x + rank.even_bytes.remembered);
        }
      }
    }
  }
}
TEST_F(MoeSegment, SigmoidNotNormalisedWithSharedExpert) {
  expect_reference_in_all_layouts(Scoring::sigmoid, false, 8);
}

TEST_F(MoeSegment, WithoutAuxiliaryLosses) {
  SegmentCase the_case = moe_case(Scoring::softmax, true, 0, {1, 2, 2});
  the_case.model.moe.router_aux_loss_coef = the_case.model.moe.router_z_loss_coef = 0.0;
  const SegmentInputs inputs = draw_inputs(the_case);
  expect_reference(the_case, inputs, expected_outcome(the_case, inputs));
}

// Makes the first hidden value of a data rank's tokens decide their experts. +3 chooses those of `upper` (experts 2
// and 3), -3 the lower ones, by a margin that the other values do not reach.
void force_routing(const SegmentCase& the_case, SegmentInputs& inputs, const std::vector<bool>& upper) {
  const std::int64_t hidden = the_case.model.hidden_size;
  for (std::size_t g = 0; g < inputs.x.size(); ++g) {
    for (std::int64_t t = 0; t < the_case.tokens(); ++t) {
      inputs.x[g][static_cast<std::size_t>(t * hidden)] = upper[g] ? 3.0 : -3.0;
    }
  }
  Values& router = inputs.parameters.at("blocks.0.router.weight");
  for (std::int64_t e = 0; e < the_case.model.moe.num_experts; ++e) {
    for (std::int64_t i = 0; i < hidden; ++i) router[static_cast<std::size_t>(e * hidden + i)] *= 0.5;
    router[static_cast<std::size_t>(e * hidden)] = e < 2 ? -2.0 : 2.0;
  }
}

// How many choices of each rank's own tokens fell on each expert.
std::vector<std::vector<std::int64_t>> expert_tokens_by_rank(const std::vector<RankOutcome>& ranks) {
  std::vector<std::vector<std::int64_t>> tokens;
  for (const RankOutcome& rank : ranks) tokens.push_back(rank.report.blocks[0].expert_tokens);
  return tokens;
}

TEST_F(MoeSegment, RanksOfAnExpertGroupWithZeroIncomingRows) {
  for (const Layout& layout : {Layout{2, 1, 2}, Layout{4, 1, 4}, Layout{1, 4, 4}}) {
    SCOPED_TRACE(fmt::format("data {}, tensor {}, expert {}", layout.data, layout.tensor, layout.expert));
    const SegmentCase the_case = moe_case(Scoring::softmax, true, 0, layout);
    SegmentInputs inputs = draw_inputs(the_case);
    force_routing(the_case, inputs, std::vector(inputs.x.size(), true));
    const Outcome expected = expected_outcome(the_case, inputs);
    // All tokens choose experts 2 and 3: the ranks that hold 0 and 1 receive nothing.
    ASSERT_EQ(expected.expert_tokens[0] + expected.expert_tokens[1], 0);
    expect_reference(the_case, inputs, expected);
  }
}

TEST_F(MoeSegment, RankThatOwnsNoExpertOfItsTokens) {
  const SegmentCase the_case = moe_case(Scoring::sigmoid, true, 0, {2, 1, 2});
  SegmentInputs inputs = draw_inputs(the_case);
  // Rank 0 holds experts 0 and 1: every row leaves for the other rank, and the other rank's all come here.
  force_routing(the_case, inputs, {true, false});
  const Outcome expected = expected_outcome(the_case, inputs);
  const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
  const std::vector<std::vector<std::int64_t>> crossed = {{0, 0, 8, 8}, {8, 8, 0, 0}};
  ASSERT_EQ(expert_tokens_by_rank(ranks), crossed);
  EXPECT_LE(largest_relative_error(assemble(the_case, ranks), expected), tolerance(the_case));
}

// The backward's longest path is twice the forward's.
void expect_close(const SegmentCase& the_case) {
  const SegmentInputs inputs = draw_inputs(the_case);
  const Outcome expected = expected_outcome(the_case, inputs);
  const Outcome actual = assemble(the_case, run_segment(the_case, inputs));
  // A choice that rounding turns round would be an error of its own; none is near a tie.
  ASSERT_EQ(actual.expert_tokens, expected.expert_tokens);
  for (std::size_t g = 0; g < expected.y.size(); ++g) {
    EXPECT_LE(relative_error(actual.y[g], expected.y[g]), tolerance(the_case));
  }
  EXPECT_LE(largest_relative_error(actual, expected), 2.0 * tolerance(the_case));
}

TEST_F(MoeSegment, SixteenBitForwardAndGradientsAreCloseToTheReference) {
  for (const Layout& layout : {Layout{1, 1, 1}, Layout{2, 2, 4}}) {
    for (DType compute : {DType::bfloat16, DType::float16}) {
      SCOPED_TRACE(name_of(compute));
      SegmentCase the_case = moe_case(Scoring::softmax, true, 8, layout);
      the_case.compute = compute;
      expect_close(the_case);
    }
  }
}

TEST_F(MoeSegment, ExpertsOfTheirOwnDtypeAreCloseToTheReference) {
  for (const Layout& layout : {Layout{1, 1, 1}, Layout{1, 4, 4}}) {
    for (const MixedDtypes& dtypes : mixed_dtypes) {
      SCOPED_TRACE(fmt::format("{} with experts of {}, {} ranks", name_of(dtypes.compute), name_of(dtypes.family),
                               layout.tensor));
      expect_close(with_dtypes(moe_case(Scoring::softmax, true, 8, layout), dtypes));
    }
  }
}

}  // namespace
}  // namespace weft
