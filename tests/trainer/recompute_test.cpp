// Activations recomputed in backward, as they are run. Whatever the layout, a run learns to the bit what it learns when
// they are kept. It holds less by what they take.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "tests/trainer/kept_activations.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/rank/forward_plan.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/solved_timing.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

constexpr Recompute recomputed[] = {Recompute::selective, Recompute::experts, Recompute::keep_dispatch,
                                    Recompute::full};
const PrecisionConfig computes_in_bfloat16{DType::float32, DType::bfloat16, DType::float32};

// The number that a refusal ends with: "... the smallest budget that does is 123 B (...)".
std::int64_t smallest_budget(Config config) {
  config.memory_budget = 1;
  try {
    const ResolvedRun refused(config);
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string before = "that does is ";
    return std::stoll(text.substr(text.find(before) + before.size()));
  }
  ADD_FAILURE() << "one byte was enough";
  return 0;
}

// Under residency "auto", some parameters stay and others do not.
Config configured(const TinyLayout& layout, Recompute recompute, int steps) {
  Config config = config_of(layout);
  config.training.recompute = recompute;
  config.run.steps = steps;
  config.model.moe.router_aux_loss_coef = config.model.moe.router_z_loss_coef = 0.01;
  if (!is_solved(config)) return config;
  const Mesh mesh(config.parallelism);
  std::int64_t all = 0;
  for (const ProgramUnit& unit : program_tables(config, mesh, {}).units) all += unit.unsharded_bytes;
  config.memory_budget = smallest_budget(config) + all / 10;
  return config;
}

class RecomputeParity : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(RecomputeParity, LearnsToTheBitWhatItLearnsWithEverythingKept) {
  const LearnedRun kept = learn(configured(GetParam(), Recompute::none, 4));
  ASSERT_TRUE(kept.faults.empty()) << kept.faults.front();
  for (const Recompute recompute : recomputed) {
    SCOPED_TRACE(name_of(recompute));
    const LearnedRun run = learn(configured(GetParam(), recompute, 4));
    EXPECT_TRUE(run.faults.empty()) << run.faults.front();
    const RunDifference apart = difference(run, kept);
    EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
    EXPECT_EQ(run.losses, kept.losses);
    EXPECT_EQ(run.gradient_norms, kept.gradient_norms);
    EXPECT_NE(run.losses.front(), run.losses.back());
    for (std::size_t step = 0; step < kept.result.steps.size(); ++step) {
      const auto &found = run.result.steps[step].moe, &expected = kept.result.steps[step].moe;
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t block = 0; block < found.size(); ++block) {
        EXPECT_EQ(found[block].auxiliary_loss, expected[block].auxiliary_loss);
        EXPECT_EQ(found[block].z_loss, expected[block].z_loss);
        EXPECT_EQ(found[block].max_over_mean, expected[block].max_over_mean);
      }
    }
  }
}

std::vector<TinyLayout> recompute_layouts() {
  const std::string dense = "d*4", moe = "e*4", mixed = "d e d e";
  const Degrees mesh8{.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2};
  return {
      {.name = "one_rank", .layers = mixed},
      {.name = "one_rank_bfloat16", .layers = mixed, .precision = computes_in_bfloat16},
      {.name = "pp4", .layers = dense, .degrees = {.pipeline = 4}},
      {.name = "pp2_gpipe", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "gpipe"},
      {.name = "tp2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "tp4_bfloat16", .layers = dense, .degrees = {.tensor = 4}, .precision = computes_in_bfloat16},
      {.name = "cp2", .layers = mixed, .degrees = {.context = 2}},
      {.name = "cp2_ep2", .layers = moe, .degrees = {.context = 2, .expert = 2}},
      {.name = "ep2_reshard_after_use",
       .layers = moe,
       .degrees = {.data_shard = 2, .expert = 2},
       .residency = "reshard_after_use"},
      {.name = "ep2_etp2", .layers = moe, .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "half_block_reshard_after_use",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .residency = "reshard_after_use",
       .wrap = "half_block"},
      {.name = "shard4_island", .layers = dense, .degrees = {.data_shard = 4}, .residency = "2"},
      {.name = "no_shard",
       .layers = mixed,
       .degrees = {.data_shard = 2},
       .reduction = "each_microbatch",
       .strategy = ShardStrategy::no_shard},
      {.name = "interleaved_visit",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .schedule = "interleaved",
       .residency = "while_on_stage",
       .chunks = 2},
      {.name = "zb_h1", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .schedule = "zb_h1"},
      {.name = "zbv_reshard_after_use",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
       .schedule = "zbv",
       .residency = "reshard_after_use",
       .chunks = 2},
      {.name = "dualpipev_visit",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
       .schedule = "dualpipev",
       .residency = "while_on_stage",
       .chunks = 2},
      {.name = "auto", .layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .residency = "auto"},
      {.name = "auto_zbv",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2},
       .schedule = "zbv",
       .residency = "auto",
       .chunks = 2},
      {.name = "frozen_dense", .layers = mixed, .degrees = {.data_shard = 2}, .frozen = {Family::dense}},
      {.name = "frozen_experts",
       .layers = mixed,
       .degrees = {.data_shard = 2},
       .precision = computes_in_bfloat16,
       .frozen = {Family::experts}},
      {.name = "tied", .layers = mixed, .degrees = {.pipeline = 2, .tensor = 2}, .tied = true},
      {.name = "predictors", .layers = "d e m*2", .degrees = {.pipeline = 2, .tensor = 2}},
      {.name = "one_rank_global", .layers = mixed, .aux_loss = AuxiliaryLoss::global},
      {.name = "mesh8_global", .layers = mixed, .degrees = mesh8, .aux_loss = AuxiliaryLoss::global},
      {.name = "dualpipev_global",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2},
       .schedule = "dualpipev",
       .residency = "while_on_stage",
       .chunks = 2,
       .aux_loss = AuxiliaryLoss::global},
      {.name = "mesh8_reshard_after_use", .layers = mixed, .degrees = mesh8, .residency = "reshard_after_use"},
      {.name = "mesh16_bfloat16",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 2},
       .schedule = "interleaved",
       .precision = computes_in_bfloat16,
       .chunks = 2},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, RecomputeParity, ::testing::ValuesIn(recompute_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// --- memory ---------------------------------------------------------------------------------------------------------

// Of one dense block, float32 and one tensor rank: per token, in floats. A block of which all is kept has x and the
// norm's output twice (hidden each) with two inverse roots. It has q, k and v, q and k after the rotary embedding, and
// the attention's output with a number a head. It has gate, up and their product.
struct BlockFloats {
  explicit BlockFloats(const ModelConfig& model)
      : hidden(model.hidden_size),
        qkv((model.num_attention_heads + 2 * model.num_key_value_heads) * model.head_dim),
        rotated((model.num_attention_heads + model.num_key_value_heads) * model.head_dim),
        out(model.num_attention_heads * (model.head_dim + 1)),
        width(model.intermediate_size) {}
  std::int64_t kept(Recompute recompute) const {
    switch (recompute) {
      case Recompute::none:
      case Recompute::experts:
        return 4 * hidden + 2 + qkv + rotated + out + 3 * width;
      case Recompute::selective:
        return 2 * hidden + 2 + qkv + out + 2 * width;
      case Recompute::keep_dispatch:
      case Recompute::full:
        return hidden;
    }
    return 0;
  }
  std::int64_t hidden, qkv, rotated, out, width;
};

// Peaks by pipeline rank, in the second step of a GPipe order, which keeps every microbatch.
std::vector<std::int64_t> gpipe_peaks(Recompute recompute, int microbatches) {
  Config config = config_of({.layers = "d*4", .degrees = {.pipeline = 2}, .schedule = "gpipe"});
  config.training.recompute = recompute;
  config.training.global_batch_size = microbatches;
  config.run.steps = 2;
  std::vector<std::int64_t> peaks(2);
  RunObserver observer;
  // Each rank writes its own element.
  observer.after_step = [&](RankRun& run, const StepMetrics&) {
    peaks[static_cast<std::size_t>(run.rank())] = run.ledger().peak_by_bucket()[Bucket::activations];
  };
  run_steps(config, observer);
  return peaks;
}

// One more microbatch adds to the ledger's peak what its blocks keep, to the byte. On the last stage it adds the head
// with x, its root, the norm's output unless it is recomputed, and the gradient of its logits.
TEST(RecomputeMemory, AMicrobatchTakesWhatItsBlocksKeep) {
  const Config config = config_of({.layers = "d*4", .degrees = {.pipeline = 2}});
  const BlockFloats block(config.model);
  ASSERT_TRUE(config.model.qk_norm);
  const std::int64_t tokens = config.microbatch_tokens();
  for (const Recompute recompute : all_values<Recompute>) {
    SCOPED_TRACE(name_of(recompute));
    const auto three = gpipe_peaks(recompute, 3), four = gpipe_peaks(recompute, 4);
    const std::int64_t normed = recompute == Recompute::selective ? 0 : block.hidden;
    const std::int64_t head = block.hidden + 1 + normed + config.model.vocab_size;
    Config dealt = config;
    dealt.training.recompute = recompute;
    const std::vector<StageBlocks> layout = stage_layout(dealt);
    ASSERT_EQ(layout[0].count + layout[1].count, 4);
    EXPECT_EQ(four[0] - three[0], 4 * tokens * layout[0].count * block.kept(recompute));
    EXPECT_EQ(four[1] - three[1], 4 * tokens * (layout[1].count * block.kept(recompute) + head));
  }
}

// The ledger's peak is the program's, and above it no more than flows and the tensors that one segment makes for
// itself. Of activations recomputed, these are the gradient that waits for them and what R hands on and drops. Of cheap
// ones they are those of one segment.
TEST(RecomputeMemory, IsInThePeakOfTheProgram) {
  for (const char* schedule : {"1f1b", "gpipe", "zb_h1"}) {
    std::map<Recompute, std::int64_t> peaks;
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(fmt::format("{}, {}", schedule, name_of(recompute)));
      Config config = config_of({.layers = "d*8", .degrees = {.pipeline = 2}, .schedule = schedule});
      config.training.recompute = recompute;
      config.training.global_batch_size = 4;
      config.run.steps = 2;
      const BlockFloats block(config.model);
      const std::int64_t tokens = config.microbatch_tokens();
      const std::int64_t more = recompute == Recompute::full        ? 2 * block.hidden
                                : recompute == Recompute::selective ? block.hidden + std::max(block.qkv, block.width)
                                                                    : 0;
      std::mutex mutex;
      RunObserver observer;
      observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
        const std::lock_guard lock(mutex);
        SCOPED_TRACE(fmt::format("rank {}, step {}", run.rank(), metrics.step));
        const std::int64_t measured = run.ledger().peak_by_bucket()[Bucket::activations];
        const std::int64_t kept = largest_kept(run.program(), run.rank());
        const std::int64_t boundary = tokens * block.hidden * 4;
        EXPECT_GE(measured, kept);
        EXPECT_LE(measured, kept + most_between_stages(run.program(), run.rank()) * boundary +
                                most_of_a_segment(config) + 4 * tokens * more);
        if (run.rank() == 0) peaks[recompute] = measured;
      };
      run_steps(config, observer);
    }
    EXPECT_LT(peaks[Recompute::selective], peaks[Recompute::none]) << schedule;
    EXPECT_LT(peaks[Recompute::full], peaks[Recompute::selective]) << schedule;
  }
}

// Some blocks only: from the first, every so many, with or without the model's last.
struct SomeBlocks {
  std::int64_t every;
  bool last;
  std::set<int> blocks;  // of six
};
const SomeBlocks some_blocks[] = {
    {2, true, {0, 2, 4}}, {3, true, {0, 3}}, {5, true, {0, 5}}, {5, false, {0}}, {1, false, {0, 1, 2, 3, 4}}};

TEST(RecomputeSomeBlocks, ThoseAloneRunAgainAndNoBitChanges) {
  for (const TinyLayout& layout :
       {TinyLayout{.layers = "d e d e d e"},
        TinyLayout{.layers = "d e d e d m", .degrees = {.pipeline = 2, .tensor = 2}, .wrap = "half_block"},
        TinyLayout{.layers = "e*6", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}, .schedule = "zb_h1"}}) {
    const LearnedRun kept = learn(configured(layout, Recompute::none, 3));
    for (const Recompute recompute : {Recompute::full, Recompute::keep_dispatch}) {
      for (const auto& [every, last, blocks] : some_blocks) {
        SCOPED_TRACE(fmt::format("{}, {}, every {}, last {}", layout.layers, name_of(recompute), every, last));
        Config config = configured(layout, recompute, 3);
        config.training.recompute_every = every;
        config.training.recompute_last_block = last;
        std::set<int> found;
        for (const ProgramSegment& segment : program_tables(config, Mesh(config.parallelism), {}).segments) {
          if (segment.region) found.insert(*segment.part.block);
        }
        EXPECT_EQ(found, blocks);
        const LearnedRun run = learn(config);
        EXPECT_TRUE(run.faults.empty()) << run.faults.front();
        EXPECT_TRUE(difference(run, kept).bitwise_equal);
        EXPECT_EQ(run.losses, kept.losses);
      }
    }
  }
}

TEST(RecomputeSomeBlocks, TakeMemoryInBetween) {
  for (const auto& [every, last, blocks] : some_blocks) {
    SCOPED_TRACE(fmt::format("every {}, last {}", every, last));
    Config config = config_of({.layers = "d*6", .degrees = {.pipeline = 2}});
    config.training.recompute = Recompute::full;
    config.training.recompute_every = every;
    config.training.recompute_last_block = last;
    const BlockFloats block(config.model);
    std::map<int, std::int64_t> kept;  // floats a token, by block
    for (const ProgramSegment& segment : program_tables(config, Mesh(config.parallelism), {}).segments) {
      if (segment.part.block) kept[*segment.part.block] += forward_bytes(segment) / 4 / config.microbatch_tokens();
    }
    for (int b = 0; b < 6; ++b) {
      EXPECT_EQ(kept[b], block.kept(blocks.contains(b) ? Recompute::full : Recompute::none)) << b;
    }
  }
}

// Evaluation and generation keep nothing, and make nothing again.
TEST(RecomputeMemory, OfAModelThatIsNotTrainedMeansNothing) {
  const TinyLayout layout{.layers = "d e d e", .degrees = {.pipeline = 2}};
  for (const Recompute recompute : recomputed) {
    Config config = configured(layout, recompute, 1);
    const Config used = without_training(config);
    const Mesh mesh(used.parallelism);
    EXPECT_EQ(plan_forward(used, mesh, {}).program,
              plan_forward(without_training(configured(layout, Recompute::none, 1)), mesh, {}).program);
  }
}

}  // namespace
}  // namespace weft
