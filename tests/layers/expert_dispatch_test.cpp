// Ways of tokens to their experts. Whatever is passed on, to whom and in how many hops, outputs, gradients and losses
// are those of the double reference. Memory and collectives are those that are declared.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <span>

#include "layers/token_relay.h"
#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

struct Way {
  ExpertDispatch dispatch;
  int nodes;
};
constexpr Way ways[] = {
    {ExpertDispatch::all_gather, 1}, {ExpertDispatch::hierarchical, 2}, {ExpertDispatch::hierarchical, 4}};
constexpr Way straight[] = {{ExpertDispatch::all_to_all, 1}};
struct DispatchLayout {
  int data, context, tensor, expert;
};
constexpr DispatchLayout dispatch_layouts[] = {{2, 1, 1, 2}, {1, 1, 2, 2}, {2, 1, 2, 4}, {4, 1, 1, 4}, {1, 2, 2, 4}};

SegmentCase way_case(const DispatchLayout& layout, const Way& way) {
  SegmentCase the_case = full_case(SegmentKind::moe, layout.data, layout.tensor, layout.expert);
  the_case.context = layout.context;
  the_case.expert_dispatch = way.dispatch;
  the_case.expert_nodes = way.nodes;
  // Of the order of the other gradients.
  the_case.model.moe.router_aux_loss_coef = 2.0;
  the_case.model.moe.router_z_loss_coef = 0.5;
  return the_case;
}

SegmentCase alone(SegmentCase the_case) {
  the_case.context = the_case.tensor = the_case.expert = the_case.expert_nodes = 1;
  the_case.expert_dispatch = ExpertDispatch::all_to_all;
  return the_case;
}

// Each layout and way, changed by `change`, against the reference of one rank with as many microbatches.
void for_each_way(const std::function<void(SegmentCase&)>& change,
                  const std::function<void(const SegmentCase&, const SegmentInputs&, const Outcome&)>& check,
                  std::span<const DispatchLayout> layouts = dispatch_layouts, std::span<const Way> of = ways) {
  for (const DispatchLayout& layout : layouts) {
    for (const Way& way : of) {
      if (way.nodes > layout.expert) continue;
      SegmentCase the_case = way_case(layout, way);
      change(the_case);
      SCOPED_TRACE(fmt::format("data {}, context {}, tensor {}, expert {}, {} over {} nodes", layout.data,
                               layout.context, layout.tensor, layout.expert, name_of(way.dispatch), way.nodes));
      const SegmentInputs inputs = draw_inputs(alone(the_case));
      check(the_case, inputs, expected_outcome(alone(the_case), inputs));
    }
  }
}

void expect_outcome_of_way(const SegmentCase& the_case, const std::vector<RankOutcome>& ranks,
                           const Outcome& expected) {
  const Outcome actual = assemble(the_case, ranks);
  EXPECT_LE(largest_relative_error(actual, expected), tolerance(the_case));
  EXPECT_EQ(actual.expert_tokens, expected.expert_tokens);
  for (const RankOutcome& rank : ranks) {
    expect_declared_traffic(rank, the_case.microbatches);
    EXPECT_EQ(rank.leaked_bytes, 0);
    for (const std::int64_t bytes : rank.kept_bytes) EXPECT_LE(bytes, rank.declared_bytes);
    for (const std::int64_t bytes : rank.pending_bytes) EXPECT_LE(bytes, rank.declared_pending_bytes);
  }
}

using ExpertDispatchTest = DeviceTest;

TEST_F(ExpertDispatchTest, GivesTheReferenceOverEveryWay) {
  for_each_way([](SegmentCase& the_case) { the_case.microbatches = 2; },
               [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
                 expect_outcome_of_way(the_case, run_segment(the_case, inputs), expected);
                 const Outcome again = assemble(the_case, run_segment(the_case, inputs, {.forward_again = true}));
                 EXPECT_EQ(again.gradients, assemble(the_case, run_segment(the_case, inputs)).gradients);
               });
}

// Groups of experts, a bias, a gate: four groups of two experts, so that nodes have whole groups or parts of one.
TEST_F(ExpertDispatchTest, GivesTheReferenceOfADeepRouter) {
  for_each_way(
      [](SegmentCase& the_case) {
        MoeConfig& moe = the_case.model.moe;
        moe.num_experts = 8;
        moe.n_group = 4;
        moe.topk_group = 2;
        moe.scoring = Scoring::sigmoid;
        moe.selection_bias = moe.shared_expert_gate = true;
      },
      [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
        expect_outcome_of_way(the_case, run_segment(the_case, inputs), expected);
      });
}

TEST_F(ExpertDispatchTest, DropsTheSameTokensAndPadsToTheSameRows) {
  for (const bool pads : {false, true}) {
    for_each_way(
        [&](SegmentCase& the_case) {
          the_case.model.moe.capacity_factor = 0.75;
          the_case.model.moe.pad_to_capacity = pads;
        },
        [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
          expect_outcome_of_way(the_case, run_segment(the_case, inputs), expected);
          const Outcome again = assemble(the_case, run_segment(the_case, inputs, {.forward_again = true}));
          EXPECT_LE(largest_relative_error(again, expected), tolerance(the_case));
        });
  }
}

TEST_F(ExpertDispatchTest, SendsNothingForNullSlots) {
  for (const bool inside : {false, true}) {
    for_each_way(
        [&](SegmentCase& the_case) {
          the_case.model.moe.real_fraction = 0.5;
          the_case.weights_at_experts = inside;
        },
        [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
          EXPECT_GT(expected.null_choices, 0);
          expect_outcome_of_way(the_case, run_segment(the_case, inputs), expected);
          const Outcome again = assemble(the_case, run_segment(the_case, inputs, {.forward_again = true}));
          EXPECT_LE(largest_relative_error(again, expected), tolerance(the_case));
        });
  }
}

// What a second forward takes from the first: the choices, or rows and sums too. Both give the same bits.
TEST_F(ExpertDispatchTest, RemembersWhatARecomputedForwardNeeds) {
  for_each_way([](SegmentCase& the_case) { the_case.microbatches = 2; },
               [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome&) {
                 const Outcome kept = assemble(the_case, run_segment(the_case, inputs));
                 SegmentCase rows = the_case;
                 rows.keep_dispatch = true;
                 for (const SegmentCase* each : {&the_case, &std::as_const(rows)}) {
                   const Outcome again = assemble(*each, run_segment(*each, inputs, {.forward_again = true}));
                   EXPECT_EQ(again.y, kept.y);
                   EXPECT_EQ(again.dx, kept.dx);
                   EXPECT_EQ(again.gradients, kept.gradients);
                 }
               });
}

// Weights inside experts: the same sums, and outputs that are not kept, not by any way and with no kind of capacity.
TEST_F(ExpertDispatchTest, WeighsInsideExperts) {
  for (const std::span<const Way> of : {std::span<const Way>(straight), std::span<const Way>(ways)}) {
    for (const auto& [capacity, pads] : {std::pair(0.0, false), {0.75, false}, {0.75, true}}) {
      for_each_way(
          [&](SegmentCase& the_case) {
            the_case.weights_at_experts = true;
            the_case.microbatches = 2;
            the_case.model.moe.capacity_factor = capacity;
            the_case.model.moe.pad_to_capacity = pads;
          },
          [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
            const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
            expect_outcome_of_way(the_case, ranks, expected);
            if (the_case.model.moe.drops()) return;
            const Outcome kept = assemble(the_case, ranks);
            SegmentCase rows = the_case, inside = the_case, cheap = the_case;
            rows.keep_dispatch = true;
            inside.recompute_experts = true;
            cheap.recompute_cheap = true;
            for (const auto& [each, again] : {std::pair(&std::as_const(the_case), true),
                                              {&std::as_const(rows), true},
                                              {&std::as_const(inside), false},
                                              {&std::as_const(cheap), false}}) {
              const Outcome other = assemble(*each, run_segment(*each, inputs, {.forward_again = again}));
              EXPECT_EQ(other.dx, kept.dx);
              EXPECT_EQ(other.gradients, kept.gradients);
            }
          },
          std::span(dispatch_layouts).last(2), of);
    }
  }
}

TEST_F(ExpertDispatchTest, WeighsInsideExpertsWithoutKeepingTheirOutputs) {
  for (const MixedDtypes& dtypes : {MixedDtypes{DType::float32, DType::float32}, {DType::float32, DType::bfloat16}}) {
    SegmentCase the_case = with_dtypes(full_case(SegmentKind::moe), dtypes);
    const SegmentInputs inputs = draw_inputs(the_case);
    const Outcome expected = expected_outcome(the_case, inputs);
    const std::int64_t outside = run_segment(the_case, inputs).front().kept_bytes[0];
    the_case.weights_at_experts = true;
    const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
    EXPECT_LE(largest_relative_error(assemble(the_case, ranks), expected), 2.0 * tolerance(the_case));
    EXPECT_EQ(ranks[0].kept_bytes[0], ranks[0].declared_bytes);
    // Of each choice a row of outputs less, and a weight more.
    const std::int64_t choices = the_case.tokens() * the_case.model.moe.num_experts_per_tok;
    EXPECT_EQ(outside - ranks[0].kept_bytes[0], choices * (the_case.model.hidden_size * 4 - 4));
  }
}

// Every mixture of dtypes, rounded where rows are relayed too.
TEST_F(ExpertDispatchTest, IsCloseToTheReferenceInSixteenBits) {
  for (const MixedDtypes& dtypes : mixed_dtypes) {
    SCOPED_TRACE(fmt::format("{} with experts of {}", name_of(dtypes.compute), name_of(dtypes.family)));
    for_each_way([&](SegmentCase& the_case) { the_case = with_dtypes(the_case, dtypes); },
                 [](const SegmentCase& the_case, const SegmentInputs& inputs, const Outcome& expected) {
                   SegmentCase inside = the_case;
                   inside.weights_at_experts = true;
                   EXPECT_LE(largest_relative_error(assemble(inside, run_segment(inside, inputs)), expected),
                             2.0 * tolerance(inside));
                   const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
                   const Outcome actual = assemble(the_case, ranks);
                   ASSERT_EQ(actual.expert_tokens, expected.expert_tokens);
                   EXPECT_LE(largest_relative_error(actual, expected), 2.0 * tolerance(the_case));
                   for (const RankOutcome& rank : ranks) expect_declared_traffic(rank, the_case.microbatches);
                 },
                 std::span(dispatch_layouts).last(1));
  }
}

// Equal scores choose experts 0 and 1: rank 0 gets all rows that it can get, others none.
TEST_F(ExpertDispatchTest, ReachesItsBoundsWhenAllTokensChooseTheSameExperts) {
  for_each_way([](SegmentCase&) {},
               [](const SegmentCase& the_case, SegmentInputs inputs, const Outcome&) {
                 for (double& value : inputs.parameters.at("blocks.0.router.weight")) value = 0.0;
                 const std::vector<RankOutcome> ranks = run_segment(the_case, inputs);
                 EXPECT_EQ(ranks[0].kept_bytes[0], ranks[0].declared_bytes);
                 EXPECT_EQ(ranks[0].pending_bytes[0], ranks[0].declared_pending_bytes);
                 for (const RankOutcome& rank : ranks) {
                   EXPECT_LE(rank.kept_bytes[0], rank.declared_bytes);
                   expect_declared_traffic(rank, the_case.microbatches);
                 }
               });
}

// Against counting: of many random routers' choices.
TEST(TokenCopiesTest, AreThoseOfRandomChoices) {
  std::mt19937_64 random(7);
  for (const auto& [experts, each, groups, chosen_groups, parts, fraction] : {std::tuple(16, 4, 1, 1, 4, 1.0),
                                                                              {16, 4, 8, 4, 4, 1.0},
                                                                              {16, 2, 4, 2, 8, 1.0},
                                                                              {24, 6, 1, 1, 2, 1.0},
                                                                              {32, 8, 8, 4, 8, 1.0},
                                                                              {12, 2, 3, 2, 4, 1.0},
                                                                              {8, 8, 1, 1, 4, 1.0},
                                                                              {16, 4, 1, 1, 4, 0.5},
                                                                              {24, 3, 1, 1, 8, 0.75}}) {
    MoeConfig moe{.num_experts = experts, .num_experts_per_tok = each, .real_fraction = fraction};
    const std::int64_t chosen = moe.choices();
    moe.n_group = groups;
    moe.topk_group = chosen_groups;
    constexpr int tokens = 20'000;
    std::int64_t copies = 0;
    std::size_t most = 0;
    std::vector<int> all_groups_of_model(static_cast<std::size_t>(groups));
    std::iota(all_groups_of_model.begin(), all_groups_of_model.end(), 0);
    for (int token = 0; token < tokens; ++token) {
      std::ranges::shuffle(all_groups_of_model, random);
      std::vector<int> candidates;
      for (int g = 0; g < chosen_groups; ++g) {
        const int of_group = experts / groups;
        for (int e = 0; e < of_group; ++e)
          candidates.push_back(all_groups_of_model[static_cast<std::size_t>(g)] * of_group + e);
      }
      for (int e = experts; e < moe.pool(); ++e) candidates.push_back(e);
      std::ranges::shuffle(candidates, random);
      std::set<int> reached;
      for (std::size_t k = 0; k < static_cast<std::size_t>(chosen); ++k) {
        if (candidates[k] < experts) reached.insert(candidates[k] / (experts / parts));
      }
      copies += std::ssize(reached);
      most = std::max(most, reached.size());
    }
    const TokenCopies found = copies_of_token(moe, parts);
    SCOPED_TRACE(
        fmt::format("{} of {} experts, {} of {} groups, {} parts", chosen, experts, chosen_groups, groups, parts));
    // Three standard deviations of a mean of 20,000 numbers below 8.
    EXPECT_NEAR(found.mean, static_cast<double>(copies) / tokens, groups == 3 ? 0.3 : 0.03);
    EXPECT_GE(found.most, static_cast<std::int64_t>(most));
    if (groups != 3) {
      EXPECT_EQ(found.most, static_cast<std::int64_t>(most));
    }
  }
}

// Choices dealt in turn: of 8 experts two by two, a token reaches one part of four experts, or of three in turns.
TEST(TokenCopiesTest, AreThoseOfChoicesDealtInTurn) {
  MoeConfig moe{.num_experts = 8, .num_experts_per_tok = 2, .force_balance = true};
  EXPECT_EQ(copies_of_token(moe, 2).mean, 1.0);
  EXPECT_EQ(copies_of_token(moe, 8).mean, 2.0);
  moe.num_experts = 6;
  moe.num_experts_per_tok = 4;
  EXPECT_EQ(copies_of_token(moe, 2).mean, (2.0 + 2.0 + 2.0) / 3.0);
  // Four choices of eight experts and eight null slots: one part, the other, none, none.
  moe = {.num_experts = 8, .num_experts_per_tok = 2, .real_fraction = 0.5, .force_balance = true};
  EXPECT_EQ(copies_of_token(moe, 2).mean, 0.5);
}

}  // namespace
}  // namespace weft
