// The kernels of a step against what is counted without walking through it: the model's operations, and sizes by hand.
#include "trainer/planning/kernel_plan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>

#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/costs/step_flops.h"

namespace weft {
namespace {

Config config_of_gpu(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.run.device = DeviceKind::cuda;
  return config;
}

KernelPlan planned(const Config& config) {
  return plan_kernels(ResolvedRun(config), find_hardware("h100"));
}

double flops_of(const KernelPlan& plan, const std::string& part, const std::string& phase, KernelKind kind) {
  double sum = 0.0;
  for (const KernelRow& row : plan.rows) {
    if ((part.empty() || row.part == part) && (phase.empty() || row.phase == phase) && row.kind == kind)
      sum += row.flops;
  }
  return sum;
}

double tokens_of(const Config& config) {
  return static_cast<double>(config.training.global_batch_size * config.training.sequence_length);
}

// Products are the model's, forward and twice backward. A query meets its own key, which half a sequence leaves out.
// Attention's backward makes its scores once more.
TEST(KernelPlan, ComputesWhatTheModelDemands) {
  const Config config = config_of_gpu({.layers = "d e e d"});
  const KernelPlan plan = planned(config);
  const TokenFlops model = token_flops(config.model, config.training.sequence_length);
  const double tokens = tokens_of(config);
  EXPECT_DOUBLE_EQ(flops_of(plan, "", "", KernelKind::product), 3.0 * tokens * (model.total() - model.scores));
  const auto length = static_cast<double>(config.training.sequence_length);
  const double scores = tokens * model.scores * (length + 1) / length;
  EXPECT_DOUBLE_EQ(flops_of(plan, "attention", "forward", KernelKind::attention), scores);
  EXPECT_DOUBLE_EQ(flops_of(plan, "attention", "backward", KernelKind::attention) +
                       flops_of(plan, "attention", "input gradient", KernelKind::attention),
                   2.5 * scores);
  EXPECT_DOUBLE_EQ(flops_of(plan, "head", "", KernelKind::product), 3.0 * tokens * model.head);
  EXPECT_EQ(plan.step_flops, published_step_flops(config));
}

TEST(KernelPlan, SharesProductsOverRanksAndRepeatsThemWhereTheyAreRecomputed) {
  const Config alone = config_of_gpu({.layers = "d e e d"});
  const double all = flops_of(planned(alone), "", "", KernelKind::product);
  const Config shared = config_of_gpu({.layers = "d e e d", .degrees = {.data_shard = 2, .tensor = 2, .expert = 2}});
  // Of 259 tokens of the vocabulary the first of two ranks has 130.
  const double head = 3.0 * tokens_of(alone) * token_flops(alone.model, alone.training.sequence_length).head;
  const auto rows = static_cast<double>(alone.model.vocab_size);
  EXPECT_DOUBLE_EQ(flops_of(planned(shared), "", "", KernelKind::product),
                   (all - head) / 4 + head / 2 * std::ceil(rows / 2) / rows);
  Config again = alone;
  again.training.recompute = Recompute::full;
  const KernelPlan plan = planned(again);
  EXPECT_DOUBLE_EQ(flops_of(plan, "mlp", "recompute", KernelKind::product),
                   flops_of(plan, "mlp", "forward", KernelKind::product));
  EXPECT_GT(flops_of(plan, "experts", "recompute", KernelKind::product), 0.0);
}

TEST(KernelPlan, TakesTheRankWhoseKernelsTakeLongest) {
  Config config = config_of_gpu({.layers = "d d d d d d", .degrees = {.pipeline = 2}});
  for (const auto& [first, slowest] : {std::pair(1, 1), std::pair(5, 0)}) {
    config.pipeline.first_stage_blocks = first;
    const KernelPlan plan = planned(config);
    EXPECT_EQ(plan.world, 2);
    EXPECT_EQ(plan.rank, slowest);
    const double head = flops_of(plan, "head", "", KernelKind::product);
    EXPECT_EQ(head > 0.0, slowest == 1);
  }
}

// By hand: rows of the norm of one attention part, each element read and written once.
TEST(KernelPlan, CountsBytesOfOperands) {
  const Config config = config_of_gpu({.layers = "d"});
  const KernelPlan plan = planned(config);
  const double tokens = tokens_of(config), hidden = static_cast<double>(config.model.hidden_size);
  const auto microbatches = static_cast<double>(config.microbatches());
  bool found = false;
  for (const KernelRow& row : plan.rows) {
    if (row.part != "mlp" || row.phase != "forward" || row.kernel != "rms_norm_forward") continue;
    found = true;
    // x and y, the weight at each microbatch, a float32 root for each token; all float32.
    EXPECT_EQ(row.bytes, 4.0 * (2.0 * tokens * hidden + microbatches * hidden + tokens));
    EXPECT_EQ(static_cast<double>(row.calls), microbatches);
  }
  EXPECT_TRUE(found);
}

// Every kernel of this model lasts less than a launch. A row's own time is at least its bytes over the memory's rate.
TEST(KernelPlan, CapturedRegionsSaveTheLaunchesOfShortKernelsOutsideExperts) {
  const KernelPlan plan = planned(config_of_gpu({.layers = "d e"}));
  const double memory = *find_hardware("h100").moved_bytes_per_second();
  double most = 0.0, least = 0.0, of_experts = 0.0;
  for (const KernelRow& row : plan.rows) {
    const double launches = static_cast<double>(row.calls) * least_kernel_seconds;
    EXPECT_NEAR(row.seconds.at[0] / launches, 1.0, 1e-12) << row.kernel;
    EXPECT_LE(row.launch.at[0], launches - row.bytes / memory + 1e-15) << row.kernel;
    if (row.part == "experts") of_experts += row.launch.at[0];
    if (row.part == "experts" || row.part == "units" || row.part == "step") continue;
    most += launches;
    least += row.launch.at[0];
  }
  EXPECT_GT(of_experts, 0.0);
  EXPECT_NEAR(plan.capture_saves().at[0] / least, 1.0, 1e-12);
  EXPECT_GT(plan.capture_saves().at[0], 0.9 * most);
}

TEST(KernelSeconds, AreOfOperationsOrOfBytesOrOfACall) {
  const Hardware& card = find_hardware("h200");
  const double peak = card.flops_per_second_16bit.value, memory = card.memory_bytes_per_second->value;
  KernelCall product{.name = "multiply", .kind = KernelKind::product, .read = 1 << 20, .written = 1 << 20};
  product.flops = 1e12;
  product.dtype = DType::bfloat16;
  for (std::size_t i = 0; i < product_shares.size(); ++i) {
    EXPECT_DOUBLE_EQ(kernel_seconds(product, card).at[i], 1e12 / (product_shares[i] * peak));
  }
  product.dtype = DType::float32;
  EXPECT_DOUBLE_EQ(kernel_seconds(product, card).at[0],
                   1e12 / (product_shares[0] * card.flops_per_second_float32.value));
  // A thin product is bound by its weights, whatever products reach.
  product = {.name = "multiply", .kind = KernelKind::product, .read = 4'000'000'000, .written = 80'000'000};
  product.flops = 1e9;
  EXPECT_EQ(kernel_seconds(product, card).at[0], kernel_seconds(product, card).at[3]);
  EXPECT_DOUBLE_EQ(kernel_seconds(product, card).at[0], 4.08e9 / (0.75 * memory));
  EXPECT_DOUBLE_EQ(kernel_seconds({.name = "fill", .written = 4}, card).at[0], 2.5e-6);
}

TEST(KernelSeconds, AreNotMadeUpForHardwareNobodyMeasured) {
  const auto seconds = [] { kernel_seconds({.name = "fill", .written = 4}, find_hardware("cpu")); };
  EXPECT_THROW(seconds(), Error);
}

}  // namespace
}  // namespace weft
