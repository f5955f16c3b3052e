// A model that is used and not trained, on a GPU. The loss of held-out text and the text it makes are those of one
// rank on the CPU.
#include <gtest/gtest.h>

#include "tests/trainer/evaluate_files.h"
#include "tests/trainer/held_out_text.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/inference/generation.h"

namespace weft {
namespace {

class CudaEvaluation : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
  static Config on_gpu(Config config) {
    config.run.device = DeviceKind::cuda;
    config.run.ranks_per_device = config.parallelism.world();
    return config;
  }
  static Config of_bytes(const TinyLayout& layout) {
    Config config = config_of(layout);
    config.model.vocab_size = 256;
    return config;
  }
  static void expect_loss_of_the_cpu(const TinyLayout& layout) {
    HeldOutText text("weft-cuda-evaluation");
    for (std::size_t length : {37, 50}) text.add_random(length);
    Config config = on_gpu(of_bytes(layout));
    config.training.global_batch_size = 8;
    const HeldOutLoss cpu = evaluate(of_bytes({.layers = layout.layers}), text.files());
    const HeldOutLoss gpu = evaluate(config, text.files());
    EXPECT_EQ(gpu.tokens, 36 + 49);
    // As training_test.cpp: sums in another order.
    EXPECT_NEAR(gpu.loss, cpu.loss, 5e-6 * cpu.loss);
  }
};

class CudaTrainedModel : public CudaEvaluation, public ::testing::WithParamInterface<TinyLayout> {
 protected:
  static Config on_cpu() { return of_bytes({.layers = GetParam().layers}); }
  static Config configured() { return on_gpu(of_bytes(GetParam())); }
};

TEST_P(CudaTrainedModel, HasTheLossOfTheCpu) {
  expect_loss_of_the_cpu(GetParam());
}

// Text is generated without context parallelism; a loss is not.
TEST_F(CudaEvaluation, HasTheLossOfTheCpuOverContextRanks) {
  expect_loss_of_the_cpu({.layers = "d e", .degrees = {.context = 2}});
}

TEST_P(CudaTrainedModel, MakesTheTextOfTheCpu) {
  for (double temperature : {0.0, 0.8}) {
    const GenerationRequest request{
        .prompt = "warp", .max_tokens = 5, .samples = 2, .sampling = {.temperature = temperature, .top_p = 0.9}};
    const GenerationResult cpu = generate(on_cpu(), request), gpu = generate(configured(), request);
    for (std::size_t s = 0; s < 2; ++s) EXPECT_EQ(gpu.samples[s].text, cpu.samples[s].text) << temperature;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaTrainedModel,
                         ::testing::Values(TinyLayout{.name = "alone", .layers = "d e"},
                                           TinyLayout{
                                               .name = "pp2_tp2_shard2_ep2",
                                               .layers = "d e d e",
                                               .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
                                               .residency = "reshard_after_use"}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
