// Actions of segments as CUDA graphs (run.captured_regions). The bits are those without. There are as many graphs as
// actions of segments without experts and messages. Whatever needs the stream in between ends a capture.
#include <gtest/gtest.h>

#include "parallel/runtime/error.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/rank/backend.h"

#if __has_include("cuda_emulator.h")
#include "tests/cuda_emulator/machine.h"
#define WEFT_ON_EMULATOR 1
#endif

namespace weft {
namespace {

constexpr std::int64_t captured_steps = 2;

LearnedRun learned(const TinyLayout& layout, bool captured) {
  Config config = config_of(layout);
  config.run.steps = captured_steps;
  config.run.device = DeviceKind::cuda;
  config.run.ranks_per_device = config.parallelism.world();
  return learn(config, {},
               [=](int) { return make_cuda_backend(0, {.deterministic = true, .captured_regions = captured}); });
}

class CapturedRegions : public ::testing::TestWithParam<TinyLayout> {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "needs a GPU: " << *reason;
  }
};

TEST_P(CapturedRegions, LearnTheSameBits) {
  const LearnedRun plain = learned(GetParam(), false), captured = learned(GetParam(), true);
  ASSERT_TRUE(captured.faults.empty()) << captured.faults.front();
  const RunDifference apart = difference(captured, plain);
  EXPECT_TRUE(apart.bitwise_equal) << apart.worst_parameter << " differs by " << apart.weights;
}

std::vector<TinyLayout> captured_layouts() {
  const std::string mixed = "d e d e";
  // pp, dp_replicate, dp_shard, cp, tp, ep, etp
  return {
      {.name = "mixed_alone", .layers = mixed, .tied = true},
      {.name = "hybrid_recomputed", .layers = "M D A E", .recompute = Recompute::full},
      {.name = "mixed_pp2_shard2_zbv",
       .layers = mixed,
       .degrees = {2, 1, 2, 1, 1, 2, 1},
       .schedule = "zbv",
       .residency = "reshard_after_use",
       .chunks = 2},
      {.name = "predictor_frozen", .layers = "d e m", .frozen = {Family::dense}},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, CapturedRegions, ::testing::ValuesIn(captured_layouts()),
                         [](const auto& instance) { return instance.param.name; });

#ifdef WEFT_ON_EMULATOR
struct Graphs {
  std::int64_t made = 0, launched = 0;
};

Graphs graphs_of(const TinyLayout& layout) {
  const cuda_emulator::MachineCounters before = cuda_emulator::Machine::instance().counters();
  EXPECT_TRUE(learned(layout, true).faults.empty());
  const cuda_emulator::MachineCounters after = cuda_emulator::Machine::instance().counters();
  return {after.graphs - before.graphs, after.graph_launches - before.graph_launches};
}

// Embedding, attention and MLP, attention of the block with experts, head; forward, input and weight gradient of each.
// The first of each is not captured.
TEST(CapturedRegionsCount, IsThatOfActionsWithoutExperts) {
  const std::int64_t actions = 5 * 3;
  const std::int64_t microbatches = config_of({}).microbatches();
  const Graphs found = graphs_of({.layers = "d e"});
  EXPECT_EQ(found.made, actions);
  EXPECT_EQ(found.launched, actions * (microbatches * captured_steps - 1));
}

TEST(CapturedRegionsCount, IsNoneWhereSegmentsExchange) {
  EXPECT_EQ(graphs_of({.layers = "d e", .degrees = {.tensor = 2}}).launched, 0);
}

// A pool without room waits for work under way, and what is captured is not under way.
TEST(CapturedRegionsCount, AnAllocationWithoutRoomEndsTheCapture) {
  const TinyLayout layout{.layers = "d e"};
  const LearnedRun plain = learned(layout, false);
  for (const int passing : {200, 203, 220}) {
    cuda_emulator::Machine::instance().fail_next("cudaMallocFromPoolAsync", cudaErrorMemoryAllocation, passing);
    EXPECT_TRUE(difference(learned(layout, true), plain).bitwise_equal) << passing;
  }
}

TEST(CapturedRegionsCount, AFailureEndsTheRunByName) {
  for (const char* call :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphLaunch"}) {
    cuda_emulator::Machine::instance().fail_next(call, cudaErrorUnknown, 3);
    try {
      learned({.layers = "d"}, true);
      ADD_FAILURE() << call << " failed unnoticed";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::string(call) + "("), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(learned({.layers = "d"}, true).faults.empty());
}
#endif

}  // namespace
}  // namespace weft
