// Several stages a rank on streams that run behind the host. Whatever the schedule and however long parameters stay, a
// run learns what one rank on the CPU learns. Once ranks are threads and hand messages over, and once they exchange
// over NCCL. There a message holds the lanes of both its ends, and hosts wait for counts of tokens. The first message
// between two ranks waits for both hosts, and an order that stands still ends in a timeout.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "parallel/pipeline/orders/orders.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/rank/backend.h"

namespace weft {
namespace {

// As in training_test.cpp.
constexpr double cuda_schedule_training_tolerance = 1e-5;
constexpr std::int64_t cuda_schedule_training_steps = 2;

LearnedRun on_cpu(const TinyLayout& layout) {
  Config config = config_of({.layers = layout.layers, .tied = layout.tied});
  config.run.steps = cuda_schedule_training_steps;
  return learn(config);
}

Config config_on_gpu(const TinyLayout& layout) {
  Config config = config_of(layout);
  config.run.steps = cuda_schedule_training_steps;
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = config.parallelism.world();
  return config;
}

// Ranks are threads, their world is NCCL's.
LearnedRun over_nccl(const Config& config) {
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  NvtxDomain domain;
  std::mutex mutex;
  WeightCollector weights;
  LearnedRun learned;
  const auto errors = run_nccl_ranks(resolved.mesh().world(), [&](NcclRank& self) {
    const auto backend = make_cuda_backend(emulated ? 0 : self.world.rank());
    RankRun run(resolved, data, domain,
                {*backend, self.world, [&](std::string_view action) { self.watch.set_action(action); }});
    for (std::int64_t step = 1; step <= config.run.steps; ++step) {
      const StepMetrics metrics = run.step(step);
      if (self.world.rank() > 0) continue;
      learned.losses.push_back(metrics.loss);
      learned.gradient_norms.push_back(metrics.gradient_norm);
    }
    const std::lock_guard lock(mutex);
    weights.add(run.stream(), run.stages());
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  weights.finish(learned);
  return learned;
}

void expect_close(const LearnedRun& gpu, const LearnedRun& cpu) {
  ASSERT_TRUE(gpu.faults.empty()) << gpu.faults.front() << " and " << gpu.faults.size() - 1 << " more";
  ASSERT_EQ(gpu.losses.size(), static_cast<std::size_t>(cuda_schedule_training_steps));
  const RunDifference apart = difference(gpu, cpu);
  EXPECT_LT(apart.loss, cuda_schedule_training_tolerance);
  EXPECT_LT(apart.gradient_norm, cuda_schedule_training_tolerance);
  EXPECT_LT(apart.weights, cuda_schedule_training_tolerance) << apart.worst_parameter;
}

class CudaSchedules : public ::testing::TestWithParam<TinyLayout> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
};

TEST_P(CudaSchedules, LearnWhatOneRankLearns) {
  const LearnedRun gpu = learn(config_on_gpu(GetParam()), {}, [](int) { return make_cuda_backend(0); });
  expect_close(gpu, on_cpu(GetParam()));
}

TEST_P(CudaSchedules, LearnTheSameOverNccl) {
  const Config config = config_on_gpu(GetParam());
  if (const auto reason = why_no_ranks(config.parallelism.world()); !reason.empty()) GTEST_SKIP() << reason;
  connect_at_first_message(true);
  const LearnedRun gpu = over_nccl(config);
  connect_at_first_message(false);
  expect_close(gpu, on_cpu(GetParam()));
}

// Every schedule of several stages a rank or of parted backwards, on 2 ranks with one residency after the other, and on
// 4. From 3 ranks on a rank receives and sends on one lane.
std::vector<TinyLayout> cuda_schedule_training_layouts() {
  const std::vector<std::tuple<std::string, std::string, std::string>> variants = {
      {"reshard_after_use", "reshard_after_use", "d*8"},
      {"window", "window 1", "d e d e d e d e"},
      {"step", "step", "d d e e"}};
  std::vector<TinyLayout> all;
  for (const Schedule& row : schedules()) {
    const std::string schedule(row.name);
    const int chunks = row.shown_chunks();
    const bool parted = std::ranges::any_of(row.order({.ranks = 2, .chunks = chunks, .microbatches = 4})[0],
                                            [](const Action& action) { return action.op == Op::backward_weight; });
    if (chunks == 1 && !parted) continue;
    const auto& [name, residency, layers] = variants[all.size() / 2 % variants.size()];
    all.push_back({.name = schedule + "_" + name,
                   .layers = layers,
                   .degrees = {.pipeline = 2},
                   .schedule = schedule,
                   .residency = residency,
                   .chunks = chunks});
    all.push_back({.name = schedule + "_pp4",
                   .layers = "d e d e d e d e",
                   .degrees = {.pipeline = 4},
                   .schedule = schedule,
                   .chunks = chunks});
  }
  // Gathers and reductions that meet another rank's.
  all.push_back({.name = "interleaved_shard2",
                 .layers = "d e d e",
                 .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                 .schedule = "interleaved",
                 .residency = "reshard_after_use",
                 .lookahead = 2,
                 .chunks = 2});
  // Rows of experts that travel beside the other half of a pair, once again where a block is recomputed.
  for (const char* schedule : {"dualpipev", "combined_1f1b"}) {
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
      all.push_back({.name = fmt::format("{}_experts_recompute_{}", schedule, name_of(recompute)),
                     .layers = "d e e e",
                     .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                     .schedule = schedule,
                     .chunks = 2,
                     .recompute = recompute});
    }
  }
  // A tie between two ranks' reduce lanes, and one on a rank's own.
  for (const auto& [schedule, chunks] : {std::pair("1f1b", 1), std::pair("zbv", 2)}) {
    all.push_back({.name = fmt::format("{}_tied", schedule),
                   .layers = "d e d e",
                   .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                   .schedule = schedule,
                   .chunks = chunks,
                   .tied = true});
    // Ties of two weights, and of three copies of one, with two on a rank.
    for (const bool tied : {false, true}) {
      all.push_back({.name = fmt::format("{}_predictors{}", schedule, tied ? "_tied" : ""),
                     .layers = "d e m*2",
                     .degrees = {.pipeline = 4 / chunks},
                     .schedule = schedule,
                     .chunks = chunks,
                     .tied = tied,
                     .stages = "Ed|e|mm|L"});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Schedules, CudaSchedules, ::testing::ValuesIn(cuda_schedule_training_layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
