// The coefficient of the load-balancing loss on its way from transformers and back, held against the formula of its
// load_balancing_loss_func in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "layers/kernels/routing.h"
#include "parallel/runtime/random.h"
#include "parallel/runtime/staging.h"
#include "trainer/huggingface/model_json.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

using Values = std::vector<double>;
constexpr std::int64_t sequence_length = 6, routed_sequences = 3, tokens = sequence_length * routed_sequences;

ModelConfig model_of(std::int64_t experts, std::int64_t choices, std::size_t moe_blocks) {
  ModelConfig model;
  // Dense blocks have no router and count for neither side.
  model.blocks.assign(moe_blocks + 2, BlockKind::moe);
  model.blocks.front() = model.blocks.back() = BlockKind::dense;
  model.moe.num_experts = experts;
  model.moe.num_experts_per_tok = choices;
  return model;
}

Values softmax(const double* logits, std::size_t experts) {
  const double largest = *std::max_element(logits, logits + experts);
  Values p;
  for (std::size_t e = 0; e < experts; ++e) p.push_back(std::exp(logits[e] - largest));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& probability : p) probability /= sum;
  return p;
}

// num_experts * sum(tokens_per_expert * router_prob_per_expert): the logits of all layers one below the other, the
// choices as one-hot [tokens, choices, experts], both averaged over tokens alone.
double transformers_loss(const std::vector<Values>& layers, std::size_t experts, std::size_t choices) {
  Values concatenated;
  for (const Values& layer : layers) concatenated.insert(concatenated.end(), layer.begin(), layer.end());
  const std::size_t rows = concatenated.size() / experts;
  std::vector<Values> tokens_per_expert(choices, Values(experts));
  Values probability_per_expert(experts);
  for (std::size_t t = 0; t < rows; ++t) {
    const Values p = softmax(concatenated.data() + t * experts, experts);
    std::vector<std::size_t> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater(), [&](std::size_t e) { return p[e]; });
    for (std::size_t k = 0; k < choices; ++k) tokens_per_expert[k][order[k]] += 1.0 / static_cast<double>(rows);
    for (std::size_t e = 0; e < experts; ++e) probability_per_expert[e] += p[e] / static_cast<double>(rows);
  }
  double sum = 0.0;
  for (const Values& choice : tokens_per_expert) {
    for (std::size_t e = 0; e < experts; ++e) sum += choice[e] * probability_per_expert[e];
  }
  return sum * static_cast<double>(experts);
}

// What Weft's kernels make of one block's logits: its loss, and the gradient of the logits.
struct BlockOutcome {
  double loss = 0.0;
  Values gradient;
};

class RouterCoefficient : public testing::Test {
 protected:
  Tensor tensor(DType dtype, std::int64_t rows, std::int64_t columns) {
    return ledger_.allocate(Bucket::moe_routing, dtype, rows, columns);
  }
  // As router.cpp does, with a global batch of these routed_sequences: the mean over them.
  BlockOutcome balanced(const Values& logits, const ModelConfig& model) {
    const std::int64_t experts = model.moe.num_experts, choices = model.moe.num_experts_per_tok;
    Tensor in = tensor(DType::float32, tokens, experts), scores = tensor(DType::float32, tokens, experts);
    Tensor indices = tensor(DType::int32, tokens, choices), weights = tensor(DType::float32, tokens, choices);
    const std::vector<float> narrow(logits.begin(), logits.end());
    write<float>(*stream_, narrow, in);
    route_forward(context_, in, {}, {}, nullptr, scores, indices, weights);
    const TokenSlice slice{0, sequence_length, sequence_length};
    Tensor counts = tensor(DType::float32, routed_sequences, experts),
           sums = tensor(DType::float32, routed_sequences, experts);
    expert_statistics(context_, scores, indices, Scoring::softmax, slice, counts, sums);
    const double factor = model.moe.router_aux_loss_coef / routed_sequences;
    Tensor loss = tensor(DType::float64, 1, 1);
    fill_zero(loss);
    auxiliary_loss(context_, counts, sums, choices, sequence_length, factor, loss);
    Tensor dscores = tensor(DType::float32, tokens, experts), dweights = tensor(DType::float32, tokens, choices);
    fill_zero(dscores);
    fill_zero(dweights);
    auxiliary_loss_backward(context_, scores, counts, Scoring::softmax, slice, choices, static_cast<float>(factor),
                            dscores);
    Tensor dlogits = tensor(DType::float32, tokens, experts);
    route_backward(context_, dweights, dscores, scores, indices, {}, dlogits);
    const std::vector<float> gradient = read<float>(*stream_, dlogits);
    return {read<double>(*stream_, loss).at(0), Values(gradient.begin(), gradient.end())};
  }

 private:
  void fill_zero(Tensor& tensor) {
    if (tensor.dtype() == DType::float64) {
      write<double>(*stream_, Values(static_cast<std::size_t>(tensor.view().size())), tensor);
    } else {
      write<float>(*stream_, std::vector<float>(static_cast<std::size_t>(tensor.view().size())), tensor);
    }
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  std::unique_ptr<Stream> stream_ = backend_->device->create_stream("compute");
  MemoryLedger ledger_{*backend_->device, *stream_};
  PhaseClock clock_;
  std::unique_ptr<MatrixProducts> products_ = backend_->make_products(*stream_, ledger_);
  KernelContext context_{ledger_, clock_, *stream_, *products_, backend_->layer_kernels};
};

// One sequence's logits, in every sequence of every block: value and gradient are those of transformers, whatever the
// numbers of experts, choices and blocks.
TEST_F(RouterCoefficient, HasTheValueAndTheGradientOfTransformers) {
  constexpr double of_folder = 0.02;
  for (const auto& [experts, choices, blocks] : {std::tuple(5, 2, 3), std::tuple(8, 3, 7), std::tuple(4, 1, 1)}) {
    SCOPED_TRACE(fmt::format("{} experts, {} choices, {} blocks", experts, choices, blocks));
    ModelConfig model = model_of(experts, choices, static_cast<std::size_t>(blocks));
    model.moe.router_aux_loss_coef = coefficient_from_folder(of_folder, model);
    const RandomStream random(11, "router logits");
    Values logits;
    // Rounded to what the kernels are given.
    for (std::int64_t i = 0; i < tokens * experts; ++i)
      logits.push_back(static_cast<float>(random.normal(i % (sequence_length * experts))));
    const BlockOutcome block = balanced(logits, model);
    std::vector<Values> layers(static_cast<std::size_t>(blocks), logits);
    const auto objective = [&] {
      return of_folder *
             transformers_loss(layers, static_cast<std::size_t>(experts), static_cast<std::size_t>(choices));
    };
    // A score passes some 10 roundings and is added to 6 others: 20 x 6e-8 of the whole.
    constexpr double roundings = 2e-6;
    const double expected = objective();
    EXPECT_NEAR(blocks * block.loss, expected, roundings * expected);
    // Half the difference over a step of 1e-5: its error is 1e-10 of the third derivative, and 1e-11 of the loss.
    constexpr double step = 1e-5;
    double largest = 0.0;
    for (const double element : block.gradient) largest = std::max(largest, std::abs(element));
    ASSERT_GT(largest, 1e-6);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double value = layers[0][i];
      layers[0][i] = value + step;
      const double above = objective();
      layers[0][i] = value - step;
      const double slope = (above - objective()) / (2.0 * step);
      layers[0][i] = value;
      ASSERT_NEAR(block.gradient[i], slope, 20.0 * roundings * largest) << "logit " << i;
    }
  }
}

// Where routing is uniform transformers has the number of choices, and Weft the number of blocks.
TEST_F(RouterCoefficient, UniformRoutingCostsChoicesThereAndBlocksHere) {
  const ModelConfig model = model_of(4, 2, 3);
  // Token t prefers experts t and t + 1 of 4, round and round: over 4 tokens, each expert has 2 of 8 choices.
  Values logits;
  for (std::int64_t t = 0; t < 4; ++t) {
    for (std::int64_t e = 0; e < 4; ++e) logits.push_back(e == t || e == (t + 1) % 4 ? 1.0 : 0.0);
  }
  EXPECT_NEAR(transformers_loss({logits, logits, logits}, 4, 2), 2.0, 1e-14);
  EXPECT_DOUBLE_EQ(coefficient_from_folder(0.3, model), 0.3 * 2.0 / 3.0);
}

// What no factor expresses: one block neglects what the other prefers. transformers sees no imbalance.
TEST_F(RouterCoefficient, ImbalanceThatBlocksMakeUpForIsSeenByWeftAlone) {
  ModelConfig model = model_of(2, 1, 2);
  model.moe.router_aux_loss_coef = coefficient_from_folder(1.0, model);
  Values first, second;
  for (std::int64_t t = 0; t < tokens; ++t) {
    first.insert(first.end(), {20.0, 0.0});
    second.insert(second.end(), {0.0, 20.0});
  }
  EXPECT_NEAR(transformers_loss({first, second}, 2, 1), 1.0, 1e-12);
  EXPECT_NEAR(balanced(first, model).loss + balanced(second, model).loss, 2.0, 1e-6);
}

TEST(RouterCoefficients, ComeBackAsTheyWere) {
  for (const double of_folder : {0.0, 0.001, 0.02, 0.01, 1e-4, 0.123456}) {
    for (std::int64_t choices = 1; choices <= 8; ++choices) {
      for (std::size_t blocks = 1; blocks <= 100; ++blocks) {
        ModelConfig model = model_of(8, choices, blocks);
        model.moe.router_aux_loss_coef = coefficient_from_folder(of_folder, model);
        ASSERT_EQ(coefficient_for_folder(model), of_folder) << choices << " choices, " << blocks << " blocks";
      }
    }
  }
  // Qwen3-30B-A3B and Mixtral-8x7B: the number is 6 and 16 times smaller here.
  EXPECT_DOUBLE_EQ(coefficient_from_folder(0.001, model_of(128, 8, 48)), 0.001 / 6.0);
  EXPECT_DOUBLE_EQ(coefficient_from_folder(0.02, model_of(8, 2, 32)), 0.02 / 16.0);
  EXPECT_EQ(coefficient_from_folder(0.02, model_of(8, 2, 0)), 0.0);
}

TEST(RouterCoefficients, AreToldInALine) {
  ModelConfig model = model_of(128, 8, 48);
  EXPECT_EQ(coefficient_text(model), "");
  model.moe.router_aux_loss_coef = coefficient_from_folder(0.001, model);
  EXPECT_EQ(coefficient_text(model),
            "router_aux_loss_coef: 0.001 in transformers is 0.000166667 in Weft: x 8 choices / 48 MoE blocks");
}

}  // namespace
}  // namespace weft
