// The place of blocks changes nothing that is learned: the same operations in the same order on other ranks.
#include <gtest/gtest.h>

#include "tests/trainer/tiny_run.h"
#include "trainer/layout/stage_layout.h"

namespace weft {
namespace {

Config run_config(int pipeline) {
  Config config = tiny_config("d e*2 d");
  config.run.steps = 3;
  config.parallelism = {.pipeline = pipeline, .data_shard = 2, .expert = 2};
  // A norm adds the squares of each rank and then those of the ranks. The order, and so a clipped gradient's last bit,
  // would follow the layout.
  config.training.max_grad_norm = 0;
  return config;
}

TEST(LayoutRuns, LearnTheSameBitForBit) {
  const LearnedRun one_stage = learn(run_config(1));
  ASSERT_TRUE(one_stage.faults.empty());
  for (const char* layout : {"auto", "E|deed|L", "Ed|ee|dL", "Edee|d|L", "E|d|eedL"}) {
    Config config = run_config(3);
    config.pipeline.layout = layout;
    const LearnedRun run = learn(config);
    EXPECT_TRUE(run.faults.empty()) << layout;
    const RunDifference differs = difference(run, one_stage);
    EXPECT_EQ(differs.loss, 0.0) << layout;
    EXPECT_EQ(differs.weights, 0.0) << layout << " " << differs.worst_parameter;
    EXPECT_LT(differs.gradient_norm, 1e-5) << layout;
  }
  Config counts = run_config(3);
  counts.pipeline.first_stage_blocks = 0;
  counts.pipeline.last_stage_blocks = 1;
  ASSERT_EQ(to_string(stage_layout(counts), counts.model), "E|dee|dL");
  EXPECT_EQ(difference(learn(counts), one_stage).weights, 0.0);
}

}  // namespace
}  // namespace weft
