// The spine on a GPU: ranks as threads share one, every axis is split, and the run is that of one rank on the CPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

// The CPU adds the same float32 terms in other orders than a GPU. As between layouts on the CPU (parity_test.cpp), a
// sum of n <= 259 terms differs by about sqrt(n) * 6e-8 = 1e-6 of their magnitudes. A step changes a weight by at most
// 1e-3 of itself.
constexpr double cuda_training_tolerance = 1e-5;
constexpr std::int64_t cuda_training_steps = 3;

LearnedRun on_cpu(Config config) {
  config.run.steps = cuda_training_steps;
  return learn(config);
}

LearnedRun on_gpu(
    Config config, const BackendFactory& backend = [](int) { return make_cuda_backend(0); }) {
  config.run.steps = cuda_training_steps;
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = config.parallelism.world();
  return learn(config, {}, backend);
}

void expect_close(const LearnedRun& gpu, const LearnedRun& cpu, double bound) {
  ASSERT_TRUE(gpu.faults.empty()) << gpu.faults.front() << " and " << gpu.faults.size() - 1 << " more";
  const RunDifference apart = difference(gpu, cpu);
  EXPECT_LT(apart.loss, bound);
  EXPECT_LT(apart.gradient_norm, bound);
  EXPECT_LT(apart.weights, bound) << apart.worst_parameter;
}

class CudaTraining : public ::testing::TestWithParam<TinyLayout> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
};

TEST_P(CudaTraining, EqualsOneRankOnTheCpu) {
  expect_close(on_gpu(config_of(GetParam())), on_cpu(tiny_config(GetParam().layers)), cuda_training_tolerance);
}

std::vector<TinyLayout> cuda_training_layouts() {
  const std::string mixed = "d e d e";
  // pp, dp_replicate, dp_shard, cp, tp, ep, etp
  return {
      {.name = "dense_alone", .degrees = {1, 1, 1, 1, 1, 1, 1}},
      {.name = "moe_alone", .layers = "e*4", .degrees = {1, 1, 1, 1, 1, 1, 1}},
      {.name = "dense_pp4", .degrees = {4, 1, 1, 1, 1, 1, 1}},
      {.name = "dense_pp2_gpipe", .degrees = {2, 1, 1, 1, 1, 1, 1}, .schedule = "gpipe"},
      {.name = "dense_tp4", .degrees = {1, 1, 1, 1, 4, 1, 1}},
      {.name = "dense_shard4", .degrees = {1, 1, 4, 1, 1, 1, 1}},
      {.name = "dense_shard2_replicate2", .degrees = {1, 2, 2, 1, 1, 1, 1}},
      {.name = "dense_cp2", .degrees = {1, 1, 1, 2, 1, 1, 1}},
      {.name = "moe_ep4", .layers = "e*4", .degrees = {1, 1, 4, 1, 1, 4, 1}},
      {.name = "moe_ep2_etp2", .layers = "e*4", .degrees = {1, 1, 4, 1, 1, 2, 2}},
      {.name = "moe_all_tokens_to_ep2_etp2",
       .layers = "e*4",
       .degrees = {1, 1, 4, 1, 1, 2, 2, ExpertDispatch::all_gather}},
      {.name = "moe_ep4_over_two_nodes_weights_at_experts",
       .layers = "e*4",
       .degrees = {1, 1, 4, 1, 1, 4, 1, ExpertDispatch::hierarchical, 2},
       .recompute = Recompute::full,
       .weights_at_experts = true},
      {.name = "mixed_pp2_tp2_shard2_ep2", .layers = mixed, .degrees = {2, 1, 2, 1, 2, 2, 1}},
      {.name = "mixed_pp2_shard2_reshard_after_use_lookahead3",
       .layers = mixed,
       .degrees = {2, 1, 2, 1, 1, 1, 1},
       .residency = "reshard_after_use",
       .lookahead = 3},
      {.name = "mixed_pp2_shard2_each_microbatch",
       .layers = mixed,
       .degrees = {2, 1, 2, 1, 1, 2, 1},
       .reduction = "each_microbatch"},
      {.name = "mixed_pp2_no_shard2",
       .layers = mixed,
       .degrees = {2, 1, 2, 1, 1, 1, 1},
       .strategy = ShardStrategy::no_shard},
      {.name = "mixed_shard4_island2", .layers = mixed, .degrees = {1, 1, 4, 1, 1, 1, 1}, .residency = "2"},
      {.name = "mixed_shard2_replicate2_scattered",
       .layers = mixed,
       .degrees = {1, 2, 2, 1, 1, 1, 1},
       .accumulate_sharded = true},
      {.name = "mixed_pp2_shard2_grad_op_half_blocks",
       .layers = mixed,
       .degrees = {2, 1, 2, 1, 1, 1, 1},
       .reduction = "auto",
       .strategy = ShardStrategy::shard_grad_op,
       .wrap = "half_block",
       .reduce_inputs = 3},
      {.name = "mixed_pp2_tp2_shard2_cp2_ep2_etp2", .layers = mixed, .degrees = {2, 1, 2, 2, 2, 2, 2}},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, CudaTraining, ::testing::ValuesIn(cuda_training_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Rules with a step of more than one launch or a product of matrices, or with narrow states. They are rounded by the
// same bits on both devices, except where a moment that differs by 1e-6 is on the edge. For these
// optimizer_run_test.cpp derives 1e-4 for 10 steps.
TEST(CudaTrainingRules, StepAsOnTheCpu) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  for (const auto& [rule, state, bound] :
       {std::tuple(UpdateRule::lamb, DType::float32, cuda_training_tolerance),
        std::tuple(UpdateRule::sgd, DType::float32, cuda_training_tolerance),
        std::tuple(UpdateRule::muon, DType::float32, cuda_training_tolerance),
        std::tuple(UpdateRule::muon, DType::bfloat16, 1e-3), std::tuple(UpdateRule::adamw, DType::bfloat16, 1e-4)}) {
    Config config = config_of({.layers = "d e", .degrees = {1, 1, 2, 1, 2, 1, 1}});
    config.optimizer.rule = rule;
    config.optimizer.state = state;
    expect_close(on_gpu(config), on_cpu(config), bound);
  }
}

// Products in 8 bits. Both devices round tensors in bfloat16, and their sums come in other orders. So they are apart
// as two layouts on the CPU are after some steps (float8_test.cpp). The emulator's kernels are apart by up to 0.8 % of
// the gradient norm, an H200's by up to 1.3 %.
TEST(CudaTrainingFloat8, IsThatOfTheCpu) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  for (const ProductFormat format : {ProductFormat::float8, ProductFormat::float8_blocks}) {
    for (const Degrees& degrees : {Degrees{1, 1, 1, 1, 1, 1, 1}, Degrees{2, 1, 2, 1, 2, 2, 2}}) {
      const Config config = config_of({.layers = "d e",
                                       .degrees = degrees,
                                       .precision = {.compute = format},
                                       .recompute = Recompute::selective,
                                       .wide = true});
      const LearnedRun gpu = on_gpu(config);
      SCOPED_TRACE(fmt::format("{} on {} ranks", name_of(format), degrees.world()));
      ASSERT_TRUE(gpu.faults.empty()) << gpu.faults.front();
      const RunDifference apart = difference(gpu, on_cpu(config));
      fmt::print("{} on {} ranks: apart by {:.1e} of the losses, {:.1e} of the gradient norms, {:.1e} of the weights\n",
                 name_of(format), degrees.world(), apart.loss, apart.gradient_norm, apart.weights);
      EXPECT_LT(apart.loss, 5e-3);
      EXPECT_LT(apart.gradient_norm, 2.5e-2);
      EXPECT_LT(apart.weights, 2.5e-2) << apart.worst_parameter;
    }
  }
}

// States and activations that wait in host memory change no bit, however late the copies run.
TEST(CudaTrainingBits, HostMemoryDoesNotChangeABit) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  const TinyLayout deep{.layers = "d d e d d e d d", .degrees = {2, 1, 2, 1, 1, 2, 1}};
  TinyLayout recomputed = deep, parted = deep;
  recomputed.recompute = Recompute::full;
  parted.schedule = "zbv";
  parted.chunks = 2;
  for (const TinyLayout& layout : {TinyLayout{.layers = "d e d"}, deep, recomputed, parted}) {
    Config config = config_of(layout);
    const LearnedRun base = on_gpu(config);
    config.training.offload = 1.0;
    config.state_offload = 0.6;
    const LearnedRun moved = on_gpu(config);
    ASSERT_TRUE(moved.faults.empty()) << moved.faults.front();
    const RunDifference apart = difference(moved, base);
    EXPECT_TRUE(apart.bitwise_equal) << layout.schedule << ": " << apart.weights << " in " << apart.worst_parameter;
  }
}

// When parameters are gathered and how many lanes run ahead of each other changes no bit.
TEST(CudaTrainingBits, ResidencyAndLookaheadDoNotChangeABit) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  TinyLayout layout{.layers = "d e d e", .degrees = {2, 1, 2, 1, 1, 2, 1}, .residency = "step"};
  const LearnedRun base = on_gpu(config_of(layout));
  for (int lookahead : {0, 1, 4}) {
    layout.residency = "reshard_after_use";
    layout.lookahead = lookahead;
    const RunDifference apart = difference(on_gpu(config_of(layout)), base);
    EXPECT_TRUE(apart.bitwise_equal) << "lookahead " << lookahead << ": " << apart.weights << " in "
                                     << apart.worst_parameter;
  }
}

TEST(CudaTrainingBits, HowLongParametersStayDoesNotChangeABit) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  TinyLayout layout{.layers = "d e", .degrees = {1, 1, 4, 1, 1, 1, 1}, .residency = "step"};
  const LearnedRun base = on_gpu(config_of(layout));
  for (const char* residency : {"keep_after_forward", "keep_after_backward", "2"}) {
    layout.residency = residency;
    const RunDifference apart = difference(on_gpu(config_of(layout)), base);
    EXPECT_TRUE(apart.bitwise_equal) << residency << ": " << apart.weights << " in " << apart.worst_parameter;
  }
}

// Timed algorithms of products compute the same, and a file of them repeats a run to the bit.
TEST(CudaTrainingBits, AreRepeatedByRememberedProducts) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  const TemporaryFolder cache;
  setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
  Config config = config_of({.layers = "d e d e", .degrees = {2, 1, 2, 1, 2, 2, 1}});
  const auto timed = [&] {
    return on_gpu(config, [](int) { return make_cuda_backend(0, {.measured_products = true}); });
  };
  expect_close(timed(), on_cpu(tiny_config("d e d e")), cuda_training_tolerance);
  EXPECT_TRUE(std::filesystem::exists(cache.path() / "weft" / "products.txt"));
  const LearnedRun again = timed();  // with what all ranks have written
  EXPECT_TRUE(difference(timed(), again).bitwise_equal);
  unsetenv("XDG_CACHE_HOME");
}

// bfloat16 rounds what passes between products to 2^-9 of itself, in other places of a sum on the two devices. The loss
// of a step averages over thousands of tokens; a weight moves by at most the learning rate, 1e-3 of itself, a step.
TEST(CudaTrainingBits, Bfloat16StaysNearTheCpu) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  const TinyLayout layout{.layers = "d e", .precision = {.compute = DType::bfloat16}};
  expect_close(on_gpu(config_of(layout)), on_cpu(config_of(layout)), 0x1.0p-7);
}

// float16 has three bits more, but a choice of experts that is on the edge falls otherwise on the two devices all the
// same. It moves an expert's weights by a step (1e-3 each). Gradients of the scaled loss overflow on both or on
// neither.
TEST(CudaTrainingBits, Float16StaysNearTheCpu) {
  if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  const TinyLayout layout{.layers = "d e",
                          .degrees = {1, 1, 2, 1, 1, 1, 1},
                          .precision = {.compute = DType::float16, .reduction = DType::float32}};
  const LearnedRun gpu = on_gpu(config_of(layout)), cpu = on_cpu(config_of(layout));
  expect_close(gpu, cpu, 0x1.0p-7);
  for (std::size_t step = 0; step < gpu.result.steps.size(); ++step) {
    EXPECT_EQ(gpu.result.steps[step].skipped, cpu.result.steps[step].skipped);
    EXPECT_EQ(gpu.result.steps[step].loss_scale, cpu.result.steps[step].loss_scale);
  }
}

}  // namespace
}  // namespace weft
