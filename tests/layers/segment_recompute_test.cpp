// Activations that are recomputed in backward, cheap ones inside a segment or all of them by a forward again. No
// computed bit changes, and what is kept is less by what is not kept.
#include <gtest/gtest.h>

#include <utility>

#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

using When = SegmentTraffic::When;

constexpr SegmentKind of_blocks[] = {SegmentKind::attention, SegmentKind::state_space, SegmentKind::mlp,
                                     SegmentKind::moe};

struct RemakeLayout {
  int data, context, tensor, expert;
};
constexpr RemakeLayout recompute_layouts[] = {{1, 1, 1, 1}, {1, 1, 2, 1}, {1, 2, 1, 1}, {2, 1, 2, 4}, {1, 2, 2, 2}};

SegmentCase laid_out(SegmentKind kind, const RemakeLayout& layout,
                     MixedDtypes dtypes = {DType::float32, DType::float32}) {
  SegmentCase the_case = with_dtypes(full_case(kind, layout.data, layout.tensor, layout.expert), dtypes);
  the_case.context = layout.context;
  return the_case;
}

std::string describe(const SegmentCase& the_case) {
  return fmt::format("segment {}, data {}, context {}, tensor {}, expert {}, {}, qk_norm {}, {} frozen",
                     static_cast<int>(the_case.kind), the_case.data, the_case.context, the_case.tensor, the_case.expert,
                     name_of(the_case.compute), the_case.model.qk_norm, the_case.frozen.size());
}

void expect_same_report(const Reported& found, const Reported& expected) {
  EXPECT_EQ(found.loss_sum, expected.loss_sum);
  ASSERT_EQ(found.blocks.size(), expected.blocks.size());
  for (std::size_t block = 0; block < found.blocks.size(); ++block) {
    EXPECT_EQ(found.blocks[block].auxiliary_loss, expected.blocks[block].auxiliary_loss);
    EXPECT_EQ(found.blocks[block].z_loss, expected.blocks[block].z_loss);
    EXPECT_EQ(found.blocks[block].expert_tokens, expected.blocks[block].expert_tokens);
  }
}

void expect_same_bits(const std::vector<RankOutcome>& found, const std::vector<RankOutcome>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    EXPECT_EQ(found[rank].y, expected[rank].y);
    EXPECT_EQ(found[rank].dx, expected[rank].dx);
    EXPECT_EQ(found[rank].gradients, expected[rank].gradients);
    EXPECT_EQ(found[rank].leaked_bytes, 0);
    expect_same_report(found[rank].report, expected[rank].report);
  }
}

using SegmentRecompute = DeviceTest;

TEST_F(SegmentRecompute, CheapActivationsGiveTheSameBits) {
  for (SegmentKind kind : all_kinds) {
    for (const RemakeLayout& layout : recompute_layouts) {
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        for (bool qk_norm : {true, false}) {
          if (!qk_norm && kind != SegmentKind::attention) continue;
          SegmentCase the_case = laid_out(kind, layout, {dtype, dtype});
          the_case.model.qk_norm = qk_norm;
          the_case.microbatches = 2;
          SCOPED_TRACE(describe(the_case));
          const SegmentInputs inputs = draw_inputs(the_case);
          const auto kept = run_segment(the_case, inputs);
          the_case.recompute_cheap = true;
          const auto recomputed = run_segment(the_case, inputs);
          expect_same_bits(recomputed, kept);
          for (std::size_t rank = 0; rank < kept.size(); ++rank) {
            EXPECT_EQ(recomputed[rank].counted_traffic, kept[rank].counted_traffic);
          }
        }
      }
    }
  }
}

TEST_F(SegmentRecompute, CheapActivationsGiveTheGradientsOfTheReference) {
  for (SegmentKind kind : all_kinds) {
    SegmentCase the_case = laid_out(kind, {1, 1, 2, 1});
    the_case.recompute_cheap = true;
    SCOPED_TRACE(describe(the_case));
    const SegmentInputs inputs = draw_inputs(the_case);
    EXPECT_LE(
        largest_relative_error(assemble(the_case, run_segment(the_case, inputs)), expected_outcome(the_case, inputs)),
        tolerance(the_case));
  }
}

// Weight gradients come when weights may be gone, also those that need the output of a norm again.
TEST_F(SegmentRecompute, WeightGradientsReadNoWeights) {
  for (SegmentKind kind : all_kinds) {
    SegmentCase the_case = laid_out(kind, {1, 1, 2, 2});
    the_case.recompute_cheap = true;
    SCOPED_TRACE(describe(the_case));
    const SegmentInputs inputs = draw_inputs(the_case);
    const auto poisoned = run_segment(the_case, inputs, {.poison_weights_before_weight_gradient = true});
    EXPECT_EQ(assemble(the_case, poisoned).gradients, assemble(the_case, run_segment(the_case, inputs)).gradients);
  }
}

// What is not kept, by hand. Of all tokens of a microbatch T, a slice of a tensor rank has S.
std::int64_t not_kept(const SegmentCase& the_case, const SegmentSetup& setup) {
  const ModelConfig& model = the_case.model;
  const std::int64_t slice = setup.slice_tokens(), tokens = setup.microbatch_tokens;
  const std::int64_t element = size_of(
      the_case.kind == SegmentKind::head || the_case.kind == SegmentKind::predict ? setup.head_compute : setup.compute);
  const std::int64_t normed = slice * model.hidden_size * element;
  switch (the_case.kind) {
    case SegmentKind::embedding:
      return 0;
    case SegmentKind::attention: {
      const std::int64_t heads = (model.num_attention_heads + model.num_key_value_heads) / setup.tensor;
      return normed + (model.qk_norm ? tokens * heads * model.head_dim * element : 0);
    }
    case SegmentKind::state_space: {
      const StateSpaceConfig& space = model.state_space;
      const std::int64_t mixed = space.inner() + 2 * space.n_groups * space.state_size;
      return normed + tokens * (mixed + space.inner()) / setup.tensor * element;
    }
    case SegmentKind::mlp:
      return normed + tokens * model.intermediate_size / setup.tensor * element;
    case SegmentKind::moe: {
      const std::int64_t routed = slice * model.moe.num_experts_per_tok * model.moe.moe_intermediate_size;
      const std::int64_t shared = tokens * model.moe.shared_expert_intermediate_size / setup.tensor;
      const std::int64_t wide_input = setup.compute == DType::float32 ? 0 : slice * model.hidden_size * 4;
      return normed + routed * size_of(setup.expert_compute) + shared * element + wide_input;
    }
    case SegmentKind::merge:
      return 2 * normed;
    case SegmentKind::predict:
    case SegmentKind::head:
      return normed;
  }
  return 0;
}

TEST_F(SegmentRecompute, CheapActivationsAreNotKept) {
  for (SegmentKind kind : all_kinds) {
    for (const RemakeLayout& layout : {RemakeLayout{1, 1, 1, 1}, RemakeLayout{1, 1, 2, 1}, RemakeLayout{1, 2, 2, 1}}) {
      if (kind == SegmentKind::moe && layout.tensor > 1) continue;  // routing decides how many rows a rank has
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        for (bool qk_norm : {true, false}) {
          SegmentCase the_case = laid_out(kind, layout, {dtype, dtype});
          the_case.model.qk_norm = qk_norm;
          SCOPED_TRACE(describe(the_case));
          const SegmentInputs inputs = draw_inputs(the_case);
          const auto kept = run_segment(the_case, inputs);
          the_case.recompute_cheap = true;
          const auto recomputed = run_segment(the_case, inputs);
          for (std::size_t rank = 0; rank < kept.size(); ++rank) {
            const std::int64_t less = not_kept(the_case, the_case.setup(static_cast<int>(rank)));
            EXPECT_EQ(kept[rank].kept_bytes[0] - recomputed[rank].kept_bytes[0], less);
            EXPECT_EQ(recomputed[rank].kept_bytes[0], recomputed[rank].declared_bytes);
            EXPECT_EQ(recomputed[rank].pending_bytes[0], recomputed[rank].declared_pending_bytes);
            EXPECT_LE(recomputed[rank].pending_bytes[0], kept[rank].pending_bytes[0]);
          }
        }
      }
    }
  }
}

// Families of a block are frozen apart, and share the output of its norm.
TEST_F(SegmentRecompute, FrozenFamiliesKeepNothingForThemselves) {
  const std::set<Family> subsets[] = {{Family::dense},
                                      {Family::experts},
                                      {Family::routing},
                                      {Family::head},
                                      {Family::embedding},
                                      {Family::dense, Family::experts},
                                      {Family::dense, Family::routing},
                                      {Family::dense, Family::experts, Family::routing}};
  for (SegmentKind kind : all_kinds) {
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      for (std::int64_t shared_width : {0, 8}) {
        for (const std::set<Family>& frozen : subsets) {
          SegmentCase the_case = laid_out(kind, recompute_layouts[0], {dtype, dtype});
          the_case.model.moe.shared_expert_intermediate_size = shared_width;
          the_case.frozen = frozen;
          SCOPED_TRACE(describe(the_case));
          const SegmentInputs inputs = draw_inputs(the_case);
          const auto kept = run_segment(the_case, inputs);
          the_case.recompute_cheap = true;
          const auto recomputed = run_segment(the_case, inputs);
          expect_same_bits(recomputed, kept);
          EXPECT_EQ(recomputed[0].pending_bytes[0], recomputed[0].declared_pending_bytes);
          EXPECT_EQ(recomputed[0].kept_bytes[0], recomputed[0].declared_bytes);
        }
      }
    }
  }
}

// Choices and scores of each sequence, by expert.
std::int64_t balance_bytes(const SegmentCase& the_case) {
  return 2 * the_case.sequences * the_case.model.moe.num_experts * size_of(DType::float32);
}

// Traffic of one microbatch, by hand, that a forward again does not repeat. It brings the number of rows of each
// expert on each rank, and the choices and scores that the load-balancing loss reads of other ranks.
PhaseTraffic asked_once(const SegmentCase& the_case) {
  if (the_case.kind != SegmentKind::moe) return {};
  PhaseTraffic once;
  const std::int64_t counts = the_case.model.moe.num_experts * size_of(DType::int32);
  if (the_case.expert > 1) {
    once[{When::forward, {"ep", CollectiveOp::all_gather}}] = {1, the_case.expert * counts};
  }
  for (const auto& [group, ranks] : {std::pair("tp", the_case.tensor), std::pair("cp", the_case.context)}) {
    if (ranks > 1) once[{When::forward, {group, CollectiveOp::all_reduce}}] = {1, balance_bytes(the_case)};
  }
  return once;
}

// A whole forward again, from its input and what it remembers alone: the same bits, nothing reported twice, and its
// collectives once more.
TEST_F(SegmentRecompute, AForwardAgainGivesTheSameBitsAndReportsNothing) {
  for (SegmentKind kind : of_blocks) {
    for (const RemakeLayout& layout : recompute_layouts) {
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        SegmentCase the_case = laid_out(kind, layout, {dtype, dtype});
        the_case.microbatches = 2;
        SCOPED_TRACE(describe(the_case));
        const SegmentInputs inputs = draw_inputs(the_case);
        const auto kept = run_segment(the_case, inputs);
        const auto again = run_segment(the_case, inputs, {.forward_again = true});
        expect_same_bits(again, kept);
        const std::int64_t input = the_case.setup(0).slice_tokens() * the_case.model.hidden_size * size_of(dtype);
        const std::int64_t remembered = kind == SegmentKind::moe ? balance_bytes(the_case) : 0;
        const PhaseTraffic once = asked_once(the_case);
        for (std::size_t rank = 0; rank < kept.size(); ++rank) {
          EXPECT_EQ(again[rank].kept_bytes[0], input + remembered);
          EXPECT_EQ(again[rank].pending_bytes, kept[rank].pending_bytes);
          PhaseTraffic expected = kept[rank].counted_traffic;
          for (const auto& [key, count] : kept[rank].counted_traffic) {
            if (key.first != When::forward) continue;
            const CommunicationCount less = once.contains(key) ? once.at(key) : CommunicationCount{};
            CommunicationCount& sum = expected[{When::backward_input, key.second}];
            sum.count += count.count - the_case.microbatches * less.count;
            sum.bytes += count.bytes - the_case.microbatches * less.bytes;
          }
          std::erase_if(expected, [](const auto& entry) { return entry.second.count == 0; });
          EXPECT_EQ(again[rank].counted_traffic, expected);
        }
      }
    }
  }
}

// What is inside experts is made again from their rows: three times their width less is kept of each row, on whichever
// rank it lies.
TEST_F(SegmentRecompute, ExpertsAlone) {
  for (const RemakeLayout& layout : recompute_layouts) {
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      for (const std::set<Family>& frozen : {std::set<Family>{}, {Family::experts}, {Family::dense}}) {
        SegmentCase the_case = laid_out(SegmentKind::moe, layout, {dtype, dtype});
        the_case.microbatches = 2;
        the_case.frozen = frozen;
        SCOPED_TRACE(describe(the_case));
        const SegmentInputs inputs = draw_inputs(the_case);
        const auto kept = run_segment(the_case, inputs);
        the_case.recompute_experts = true;
        const auto recomputed = run_segment(the_case, inputs);
        expect_same_bits(recomputed, kept);
        std::int64_t rows = 0, less = 0;
        const SegmentSetup setup = the_case.setup(0);
        for (std::size_t rank = 0; rank < kept.size(); ++rank) {
          EXPECT_EQ(recomputed[rank].counted_traffic, kept[rank].counted_traffic);
          EXPECT_EQ(recomputed[rank].pending_bytes, kept[rank].pending_bytes);
          less += kept[rank].kept_bytes[0] - recomputed[rank].kept_bytes[0];
          rows += setup.slice_tokens() * setup.model.moe.num_experts_per_tok;
        }
        EXPECT_EQ(less, rows * 3 * setup.model.moe.moe_intermediate_size * size_of(dtype));
      }
    }
  }
}

// A forward again that has the rows which its experts got and gave. Nothing is sent between experts a second time, but
// the tensor group gathers again for the shared expert.
TEST_F(SegmentRecompute, AForwardAgainWithItsRowsExchangesNothing) {
  for (const RemakeLayout& layout : recompute_layouts) {
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      SegmentCase the_case = laid_out(SegmentKind::moe, layout, {dtype, dtype});
      the_case.microbatches = 2;
      SCOPED_TRACE(describe(the_case));
      const SegmentInputs inputs = draw_inputs(the_case);
      const auto kept = run_segment(the_case, inputs);
      const auto whole = run_segment(the_case, inputs, {.forward_again = true});
      the_case.keep_dispatch = true;
      const auto again = run_segment(the_case, inputs, {.forward_again = true});
      expect_same_bits(again, kept);
      const SegmentSetup setup = the_case.setup(0);
      std::int64_t choices = 0, more = 0;
      for (std::size_t rank = 0; rank < kept.size(); ++rank) {
        EXPECT_EQ(again[rank].pending_bytes, kept[rank].pending_bytes);
        for (const auto& [key, count] : again[rank].counted_traffic) {
          const bool of_experts = key.second.group == "ep" || key.second.group == "etp";
          EXPECT_EQ(count, (of_experts ? kept : whole)[rank].counted_traffic.at(key)) << key.second.group;
        }
        EXPECT_EQ(again[rank].counted_traffic.size(), whole[rank].counted_traffic.size());
        more += again[rank].kept_bytes[0] - whole[rank].kept_bytes[0];
        choices += setup.slice_tokens() * setup.model.moe.num_experts_per_tok;
      }
      EXPECT_EQ(more, 2 * choices * setup.model.hidden_size * size_of(dtype));
    }
  }
}

TEST_F(SegmentRecompute, EndsOfTheModelAndOfPredictorsDoNotRunAgain) {
  for (SegmentKind kind : all_kinds) {
    const bool of_block = std::ranges::find(of_blocks, kind) != std::end(of_blocks);
    EXPECT_EQ(make_segment(kind, laid_out(kind, recompute_layouts[0]).setup(0))->recomputes_forward(), of_block);
    if (of_block) continue;
    const SegmentCase the_case = laid_out(kind, recompute_layouts[0]);
    EXPECT_THROW(run_segment(the_case, draw_inputs(the_case), {.forward_again = true}), Error);
  }
}

}  // namespace
}  // namespace weft
