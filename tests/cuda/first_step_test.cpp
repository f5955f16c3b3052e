// The first step of several ranks meets nothing new: products, attention and host memory were met before. What a
// library compiles, loads or allocates in a step may wait for all that the GPU does. Needs the emulator, which counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>

#include "layers/kernels/attention.h"
#include "tests/cuda_emulator/machine.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/rank/backend.h"
#include "trainer/rank/dry_run.h"

namespace weft {
namespace {

using cuda_emulator::Machine;
using cuda_emulator::MachineCounters;

class FirstStep : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(FirstStep, MeetsNothingNew) {
  Machine::instance().configure({});
  Config config = config_of(GetParam());
  config.run.device = DeviceKind::cuda;
  config.run.steps = 2;
  config.run.ranks_per_device = config.parallelism.world();
  // By number of the meeting of all ranks: in front of the steps, and behind each.
  std::vector<MachineCounters> met;
  std::barrier meeting(config.parallelism.world(), [&]() noexcept { met.push_back(Machine::instance().counters()); });
  RunObserver observer;
  observer.before_first_step = [&](RankRun&) { meeting.arrive_and_wait(); };
  observer.after_step = [&](RankRun&, const StepMetrics&) { meeting.arrive_and_wait(); };
  run_steps(config, observer, [](int) { return make_cuda_backend(0); });
  ASSERT_EQ(met.size(), 3u);
  EXPECT_GT(met[0].product_searches, 0);
  EXPECT_EQ(met[1].product_searches, met[0].product_searches);
  EXPECT_EQ(met[2].product_searches, met[0].product_searches);
  // The update uploads two tables when all of the first step is queued.
  EXPECT_LE(met[1].pinned_blocks, met[0].pinned_blocks + 2 * config.parallelism.world());
  EXPECT_EQ(met[2].pinned_blocks, met[1].pinned_blocks);
}

// Wide: rows of experts begin at multiples of 16 bytes, wherever the routing lays them.
INSTANTIATE_TEST_SUITE_P(Layouts, FirstStep,
                         ::testing::Values(TinyLayout{.name = "dense_pp2_bfloat16",
                                                      .degrees = {.pipeline = 2},
                                                      .precision = {.compute = DType::bfloat16}},
                                           TinyLayout{.name = "mixed_pp2_ep2",
                                                      .layers = "d e d e",
                                                      .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
                                                      .wide = true}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
