// Several stages a rank on streams that run behind the host. Whatever the schedule and however long parameters stay, a
// run learns what one rank on the CPU learns. Once ranks are threads and hand messages over, and once they exchange
// over NCCL. There a message holds the lanes of both its ends, and hosts wait for counts of tokens. The first message
// between two ranks waits for both hosts, and an order that stands still ends in a timeout.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "parallel/pipeline/orders/orders.h"
#include "tests/cuda/nccl_ranks.h"
#include "tests/cuda/schedule_layouts.h"
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

INSTANTIATE_TEST_SUITE_P(Schedules, CudaSchedules, ::testing::ValuesIn(schedule_layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
