// All segments of a model chained as a pipeline stage chains them: the loss and every parameter against the double
// reference. Single segments being right, this holds what lies between them: order, residuals, names by block.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "layers/prediction.h"
#include "layers/segments.h"
#include "parallel/comm/local.h"
#include "parallel/runtime/random.h"
#include "tests/layers/segment_expectation.h"

namespace weft {
namespace {

std::vector<std::unique_ptr<Segment>> make_chain(const SegmentSetup& setup) {
  std::vector<std::unique_ptr<Segment>> chain;
  chain.push_back(make_embedding(setup));
  const auto trunk = std::make_shared<PredictionTrunk>();
  for (int block = 0; block < static_cast<int>(setup.model.blocks.size()); ++block) {
    const ModelBlock& kind = setup.model.blocks[static_cast<std::size_t>(block)];
    const bool predicts = block >= setup.model.layers();
    if (predicts) chain.push_back(make_merge(setup, block, trunk));
    if (kind.mixer == Mixer::attention) chain.push_back(make_attention(setup, block));
    if (kind.mixer == Mixer::state_space) chain.push_back(make_state_space(setup, block));
    if (kind == BlockKind::dense) chain.push_back(make_mlp(setup, block));
    if (kind == BlockKind::moe) chain.push_back(make_moe(setup, block));
    if (predicts) chain.push_back(make_predict(setup, block, trunk));
  }
  chain.push_back(make_head(setup));
  return chain;
}

// One microbatch of this rank through the whole model and back.
RankOutcome run_chain(Communicator& world, const SegmentCase& the_case, const SegmentInputs& inputs) {
  TestRank rank(world, the_case);
  const std::vector<std::unique_ptr<Segment>> chain = make_chain(rank.setup);
  std::vector<ParameterMemory> memory;
  for (const auto& segment : chain) {
    memory.emplace_back(rank.kernels, rank.setup, segment->parameters(), inputs.parameters);
  }
  const auto g = static_cast<std::size_t>(rank.data_index);
  const TextMemory text(rank.kernels, inputs.tokens[g], inputs.targets[g], the_case.sequence_length, rank.rows);
  std::vector<std::unique_ptr<Saved>> saved(chain.size());
  Tensor activations, gradient;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    activations = chain[i]->forward(rank.context, memory[i].weights(), text.input(), std::move(activations), saved[i]);
  }
  for (std::size_t i = chain.size(); i-- > 0;) {
    gradient = chain[i]->backward_input(rank.context, memory[i].weights(), std::move(gradient), *saved[i]);
  }
  RankOutcome outcome;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    chain[i]->backward_weight(rank.context, memory[i].gradients(), *saved[i]);
    for (std::size_t p = 0; p < chain[i]->parameters().size(); ++p) {
      const Values own = rank.values_of(memory[i].gradients()[p].view);
      const auto known = std::ranges::find(outcome.parameters, chain[i]->parameters()[p]);
      if (known == outcome.parameters.end()) {
        outcome.parameters.push_back(chain[i]->parameters()[p]);
        outcome.gradients.push_back(own);
        continue;
      }
      // A tied weight, of which each end of the model adds its part.
      Values& sum = outcome.gradients[static_cast<std::size_t>(known - outcome.parameters.begin())];
      for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += own[j];
    }
  }
  outcome.report = rank.reported();
  return outcome;
}

Outcome run_model(const SegmentCase& the_case, const SegmentInputs& inputs) {
  std::vector<RankOutcome> ranks(static_cast<std::size_t>(the_case.ranks()));
  run_local_ranks(
      the_case.ranks(),
      [&](Communicator& world) { ranks[static_cast<std::size_t>(world.rank())] = run_chain(world, the_case, inputs); },
      std::chrono::seconds(60));
  return assemble(the_case, ranks);
}

SegmentCase model_case(int data, int tensor, int expert, const char* layers = "d e d e") {
  SegmentCase the_case{.model = small_model(), .data = data, .tensor = tensor, .expert = expert};
  // Enough tokens for every expert to be chosen.
  the_case.sequences = 8;
  const ModelLayers pattern = parse_layers(layers);
  the_case.model.blocks = pattern.blocks;
  the_case.model.mtp_depth = pattern.mtp_depth;
  the_case.model.moe.shared_expert_intermediate_size = 8;
  the_case.model.moe.router_aux_loss_coef = 0.5;
  the_case.model.moe.router_z_loss_coef = 0.1;
  the_case.loss_factor = 1.0 / static_cast<double>(the_case.tokens() * data);
  return the_case;
}

SegmentInputs draw_model_inputs(const SegmentCase& the_case) {
  SegmentInputs inputs = draw_inputs(the_case);
  inputs.parameters.clear();
  SegmentCase alone = the_case;
  alone.data = alone.tensor = alone.expert = 1;
  const SegmentSetup setup = alone.setup(0);
  for (const auto& segment : make_chain(setup)) draw_parameters(segment->parameters(), setup, inputs.parameters);
  return inputs;
}

SegmentCase tied(SegmentCase the_case) {
  the_case.model.tie_word_embeddings = true;
  return the_case;
}

void expect_reference(const SegmentCase& the_case) {
  SegmentInputs inputs = draw_model_inputs(the_case);
  const Outcome outcome = run_model(the_case, inputs);

  const ModelReference reference(the_case.model, inputs.parameters, the_case.sequence_length, the_case.loss_factor);
  const auto objective = [&] {
    double sum = 0.0;
    for (std::size_t g = 0; g < inputs.tokens.size(); ++g) {
      sum += reference.objective(inputs.tokens[g], inputs.targets[g]);
    }
    return sum;
  };
  // The roundings of all segments lie one behind the other.
  const double model_tolerance = tolerance(the_case) * static_cast<double>(2 * the_case.model.blocks.size() + 2);
  const double predicted =
      the_case.model.mtp_loss_coef * outcome.prediction_loss / std::max(the_case.model.mtp_depth, 1);
  const double objective_value =
      the_case.loss_factor * (outcome.loss_sum + predicted) + outcome.auxiliary_loss + outcome.z_loss;
  EXPECT_NEAR(objective_value, objective(), model_tolerance * objective());

  ASSERT_EQ(outcome.gradients.size(), inputs.parameters.size());
  for (auto& [name, values] : inputs.parameters) {
    const Values& gradient = outcome.gradients.at(name);
    double largest = 0.0;
    for (double value : gradient) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 1e-4) << name << " has no gradient that finite differences could tell from none";
    const RandomStream sample(3, name);
    for (std::uint64_t draw_index = 0; draw_index < 5; ++draw_index) {
      const std::size_t i = sample.bits(draw_index) % values.size();
      EXPECT_NEAR(gradient[i], central_difference(objective, values[i]), model_tolerance * largest)
          << name << " element " << i;
    }
  }
}

using FullModel = DeviceTest;

// A power of two moves the exponent of every number that depends on a gradient, and no rounding. Nothing here is small
// enough to vanish or large enough to overflow.
TEST_F(FullModel, LossScaleMultipliesEveryGradientExactlyAndNothingReported) {
  for (const std::array<int, 3>& layout : {std::array{1, 1, 1}, std::array{2, 2, 4}}) {
    SegmentCase the_case = model_case(layout[0], layout[1], layout[2]);
    const SegmentInputs inputs = draw_model_inputs(the_case);
    Outcome expected = run_model(the_case, inputs);
    for (auto& [name, gradient] : expected.gradients) {
      double largest = 0.0;
      for (double& value : gradient) {
        largest = std::max(largest, std::abs(value));
        value *= 1024.0;
      }
      ASSERT_GT(largest, 0.0) << name;
    }
    the_case.loss_scale = 1024.0;
    const Outcome scaled = run_model(the_case, inputs);
    EXPECT_EQ(scaled.gradients, expected.gradients);
    EXPECT_EQ(scaled.loss_sum, expected.loss_sum);
    EXPECT_EQ(scaled.auxiliary_loss, expected.auxiliary_loss);
    EXPECT_EQ(scaled.z_loss, expected.z_loss);
    EXPECT_EQ(scaled.expert_tokens, expected.expert_tokens);
    ASSERT_GT(scaled.auxiliary_loss, 0.0);
    ASSERT_GT(scaled.z_loss, 0.0);
  }
}

TEST_F(FullModel, LossAndGradientsMatchReferenceOnOneRank) {
  expect_reference(model_case(1, 1, 1));
}
TEST_F(FullModel, LossAndGradientsMatchReferenceOnATensorAndExpertGroup) {
  expect_reference(model_case(1, 2, 2));
}
TEST_F(FullModel, LossAndGradientsMatchReferenceOnAnExpertGroupOverData) {
  expect_reference(model_case(2, 2, 4));
}
// Parts that are blocks of their own, in any order.
TEST_F(FullModel, OfAHybridLossAndGradientsMatchReference) {
  for (const char* layers : {"M A E M D", "d M e"}) {
    SCOPED_TRACE(layers);
    expect_reference(model_case(1, 1, 1, layers));
    expect_reference(model_case(2, 2, 4, layers));
  }
}
TEST_F(FullModel, OfATiedModelLossAndGradientsMatchReference) {
  const SegmentCase the_case = tied(model_case(1, 1, 1));
  EXPECT_FALSE(draw_model_inputs(the_case).parameters.contains("head.weight"));
  expect_reference(the_case);
  expect_reference(tied(model_case(1, 2, 2)));
}

TEST_F(FullModel, WithPredictorsLossAndGradientsMatchReference) {
  for (const char* layers : {"d m", "d e m", "d e m*2"}) {
    SCOPED_TRACE(layers);
    expect_reference(model_case(1, 1, 1, layers));
  }
  expect_reference(model_case(2, 2, 4, "d e m*2"));
  expect_reference(tied(model_case(1, 2, 2, "d e m*2")));
}

TEST_F(FullModel, ATiedHeadHasThePrecisionOfTheEmbeddingAndIsFrozenWithIt) {
  SegmentSetup setup = tied(model_case(1, 1, 1)).setup(0);
  EXPECT_NO_THROW(make_head(setup));
  setup.head_compute = DType::bfloat16;
  EXPECT_THROW(make_head(setup), Error);
  setup.embedding_compute = DType::bfloat16;
  setup.frozen = {Family::embedding};
  EXPECT_THROW(make_head(setup), Error);
  setup.frozen = {Family::embedding, Family::head};
  EXPECT_NO_THROW(make_head(setup));
}

}  // namespace
}  // namespace weft
