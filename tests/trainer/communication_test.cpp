// The communication of a step is that of its program: counters of all ranks against their lists and tables, group by
// group. Where routing decides how much moves it holds, too.
#include <gtest/gtest.h>

#include <mutex>

#include "tests/parallel/traffic.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/tiny_layout.h"

namespace weft {
namespace {

// all_to_all sends rows wherever routing says. Each exchange moves every choice's row once out to its expert and once
// back. Over a whole group both ways therefore move the rows of the way out, which are known. Each rank of an
// expert-tensor group then gathers the rows of all of them, and reduces as many. Traffic that is declared as a bound
// has its known share in these sums. `choices` are the bytes of the rows of a rank's own choices.
void add_routed(const Traffic& traffic, std::int64_t choices, int expert_tensor, CommunicationCounters& sum) {
  for (const auto& [key, bound] : traffic.bounds) {
    const std::int64_t share = key.group == name_of(Group::etp) ? choices * expert_tensor : choices;
    EXPECT_GE(bound.bytes, bound.count * share);
    sum[key].count += bound.count;
    sum[key].bytes += bound.count * share;
  }
}

class Communication : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(Communication, IsWhatTheProgramSays) {
  Config config = config_of(GetParam());
  config.run.steps = 2;
  const Mesh mesh(config.parallelism);
  std::mutex mutex;
  CommunicationCounters expected;
  RunObserver observer;
  const Degrees& degrees = config.parallelism;
  const std::int64_t choices = config.microbatch_tokens() / (degrees.context * degrees.tensor) *
                               config.model.moe.num_experts_per_tok * config.model.hidden_size *
                               size_of(config.precision.compute);
  observer.before_first_step = [&](RankRun& run) {
    const Traffic traffic = traffic_of(run.program(), mesh, run.rank());
    const std::lock_guard lock(mutex);
    for (const auto& [key, count] : traffic.exact) {
      expected[key].count += count.count;
      expected[key].bytes += count.bytes;
    }
    add_routed(traffic, choices, degrees.expert_tensor, expected);
  };
  const KeptRun result = run_kept(config, observer);
  ASSERT_FALSE(expected.empty());
  for (const StepMetrics& step : result.steps) {
    CommunicationCounters counted = step.communication;
    EXPECT_EQ(counted.size(), expected.size());
    for (const auto& [key, count] : expected) {
      EXPECT_EQ(counted[key].count, count.count) << key.group << " " << name_of(key.op) << ", step " << step.step;
      EXPECT_EQ(counted[key].bytes, count.bytes) << key.group << " " << name_of(key.op) << ", step " << step.step;
    }
  }
}

std::vector<TinyLayout> communication_layouts() {
  const std::string mixed = "d e d e";
  const Degrees mesh8{.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2};
  return {
      {.name = "shard4", .degrees = {.data_shard = 4}},
      {.name = "shard4_no_shard", .degrees = {.data_shard = 4}, .strategy = ShardStrategy::no_shard},
      {.name = "shard2_replicate2", .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "tp4", .degrees = {.tensor = 4}},
      {.name = "pp4", .degrees = {.pipeline = 4}},
      {.name = "ep4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 4}},
      {.name = "all_tokens_to_ep4",
       .layers = "e*4",
       .degrees = {.data_shard = 4, .expert = 4, .expert_dispatch = ExpertDispatch::all_gather}},
      {.name = "all_tokens_to_ep2_etp2_full",
       .layers = mixed,
       .degrees = {.pipeline = 2,
                   .data_shard = 2,
                   .tensor = 2,
                   .expert = 2,
                   .expert_tensor = 2,
                   .expert_dispatch = ExpertDispatch::all_gather},
       .recompute = Recompute::full},
      {.name = "all_tokens_keep_dispatch",
       .layers = mixed,
       .degrees = {.data_shard = 2, .expert = 2, .expert_dispatch = ExpertDispatch::all_gather},
       .recompute = Recompute::keep_dispatch},
      {.name = "ep2_of_4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2}},
      {.name = "mesh8", .layers = mixed, .degrees = mesh8},
      {.name = "mesh8_gpipe_reshard_after_use",
       .layers = mixed,
       .degrees = mesh8,
       .schedule = "gpipe",
       .residency = "reshard_after_use"},
      {.name = "mesh8_step", .layers = mixed, .degrees = mesh8, .residency = "step"},
      {.name = "mesh8_each_microbatch", .layers = mixed, .degrees = mesh8, .reduction = "each_microbatch"},
      {.name = "mesh8_bfloat16",
       .layers = mixed,
       .degrees = mesh8,
       .precision = {DType::float32, DType::bfloat16, DType::bfloat16}},
      {.name = "etp2_ep2_shard4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "context2_tp2_shard2_ep2",
       .layers = mixed,
       .degrees = {.data_shard = 2, .context = 2, .tensor = 2, .expert = 2}},
      {.name = "replicate2_shard2_tp2_ep2",
       .layers = mixed,
       .degrees = {.data_replicate = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
      {.name = "mesh8_tied", .layers = mixed, .degrees = mesh8, .tied = true},
      {.name = "pp4_tied_no_shard", .degrees = {.pipeline = 4}, .strategy = ShardStrategy::no_shard, .tied = true},
      {.name = "zbv_tied", .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zbv", .chunks = 2, .tied = true},
      {.name = "shard2_tied", .degrees = {.data_shard = 2}, .tied = true},
      {.name = "predictors_apart", .layers = "d e m*2", .degrees = {.pipeline = 4, .tensor = 2}, .stages = "Ed|e|mm|L"},
      {.name = "predictor_tied_apart",
       .layers = "d e m",
       .degrees = {.pipeline = 4, .data_shard = 2},
       .tied = true,
       .stages = "Ed|e|m|L"},
      {.name = "mesh8_selective", .layers = mixed, .degrees = mesh8, .recompute = Recompute::selective},
      {.name = "mesh8_full", .layers = mixed, .degrees = mesh8, .recompute = Recompute::full},
      {.name = "mesh8_full_reshard_after_use",
       .layers = mixed,
       .degrees = mesh8,
       .schedule = "zb_h1",
       .residency = "reshard_after_use",
       .recompute = Recompute::full},
      {.name = "etp2_ep2_shard4_full",
       .layers = "e*4",
       .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2},
       .recompute = Recompute::full},
      {.name = "context2_tp2_shard2_ep2_full",
       .layers = mixed,
       .degrees = {.data_shard = 2, .context = 2, .tensor = 2, .expert = 2},
       .recompute = Recompute::full},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, Communication, ::testing::ValuesIn(communication_layouts()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace weft
