// What nobody has to write: the root stays after a forward, a GPU computes in bfloat16, and buckets have the size of
// DDP's. Root and buckets change no bit of what a run learns.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

// Llama 2 7B on eight ranks that share everything, one microbatch a step.
std::string shape_of_7b(const std::string& more = "") {
  return fmt::format(R"(include = ["{}/configs/models/llama2_7b.toml"]
[run]
name = "shape"
steps = 1
[parallelism]
data_shard = 8
[training]
sequence_length = 128
global_batch_size = 8
[data]
train = ["none.txt"]
tokenizer = "none"
{})",
                     WEFT_SOURCE_DIR, more);
}

std::int64_t count(const Program& program, Op op) {
  return std::ranges::count(program.ranks.front(), op, &Action::op);
}

// FSDP's count of 32 blocks in a root that has the embedding, the last norm and the head. Each block is gathered twice
// and the root once, with 33 reductions. With a lookahead the last block, whose backward follows the head's, is not
// dropped.
TEST(DefaultPolicy, GathersTheRootOfTheShapeOf7BOnce) {
  const auto program_with = [](const Overrides& overrides) {
    const Config config = read_config_text(shape_of_7b(), "shape.toml", overrides).config;
    return step_program(ResolvedRun(config), Mesh(config.parallelism).coordinates(0));
  };
  const Overrides root = {"--shard.embedding.wrap=root", "--shard.head.wrap=root"};
  Overrides no_lookahead = root;
  no_lookahead.emplace_back("--shard.lookahead=0");
  EXPECT_EQ(count(program_with(no_lookahead), Op::unshard), 65);
  EXPECT_EQ(count(program_with(no_lookahead), Op::reduce_gradient), 33);
  EXPECT_EQ(count(program_with(root), Op::unshard), 64);
  // Resharded as its blocks are, the root is gathered for the embedding and for the head.
  no_lookahead.emplace_back("--shard.residency=reshard_after_use");
  EXPECT_EQ(count(program_with(no_lookahead), Op::unshard), 66);
  // Embedding and head as units of their own: the head stays too, because its backward follows at once.
  EXPECT_EQ(count(program_with({"--shard.lookahead=0"}), Op::unshard), 66);
  EXPECT_EQ(count(program_with({"--shard.lookahead=0"}), Op::reduce_gradient), 34);
}

TEST(DefaultPolicy, KeepsTheRootAloneUnderFullShard) {
  const Config config = read_config_text(shape_of_7b(), "shape.toml", {"--shard.head.wrap=root"}).config;
  for (const Family family : {Family::dense, Family::experts, Family::embedding, Family::root}) {
    const bool kept = family == Family::root;
    EXPECT_EQ(resolve_policy(config, family, 0).residency,
              kept ? Residency::keep_after_forward : Residency::reshard_after_use)
        << name_of(family);
    // What is written wins, and so does a strategy that gathers once a step.
    const Config written =
        read_config_text(shape_of_7b(), "shape.toml", {"--shard.residency=reshard_after_use"}).config;
    EXPECT_EQ(resolve_policy(written, family, 0).residency, Residency::reshard_after_use);
    const Config once = read_config_text(shape_of_7b(), "shape.toml", {"--shard.strategy=shard_grad_op"}).config;
    EXPECT_EQ(resolve_policy(once, family, 0).residency, Residency::step);
  }
}

TEST(DefaultPolicy, ComputesInBfloat16OnAGpu) {
  const auto computed_in = [](const std::string& more, const Overrides& overrides, Family family) {
    return read_config_text(shape_of_7b(more), "shape.toml", overrides).config.precision_of(family).compute.dtype;
  };
  const std::string heads = "[precision.head]\nreduction = \"bfloat16\"\n";
  for (const Family family : {Family::dense, Family::head}) {
    EXPECT_EQ(computed_in(heads, {}, family), DType::float32);
    EXPECT_EQ(computed_in(heads, {"--run.device=cuda", "--run.launch=processes"}, family), DType::bfloat16);
    EXPECT_EQ(
        computed_in(heads, {"--run.device=cuda", "--run.launch=processes", "--precision.compute=float32"}, family),
        DType::float32);
  }
  const Overrides head_wide = {"--run.device=cuda", "--run.launch=processes", "--precision.head.compute=float32"};
  EXPECT_EQ(computed_in("", head_wide, Family::dense), DType::bfloat16);
  EXPECT_EQ(computed_in("", head_wide, Family::head), DType::float32);
  // The resolved text says so, and is read to the same.
  const ResolvedConfig resolved =
      read_config_text(shape_of_7b(), "shape.toml", {"--run.device=cuda", "--run.launch=processes"});
  EXPECT_NE(resolved.toml.find("compute = \"bfloat16\""), std::string::npos);
  EXPECT_EQ(read_config_text(resolved.toml, "resolved.toml", {}).config, resolved.config);
}

// max(40M, 1M x ranks) parameters: blocks of 202 million are a bucket each, and of smaller ones several.
TEST(DefaultPolicy, BucketsHaveFortyMillionParametersOrAMillionARank) {
  EXPECT_EQ(bucket_parameters(8), 40'000'000);
  EXPECT_EQ(bucket_parameters(64), 64'000'000);
  const auto dense_units = [](const Overrides& overrides) {
    Overrides all = {"--model.hidden_size=512", "--model.intermediate_size=1376", "--model.head_dim=16",
                     "--shard.strategy=no_shard"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const Config config = read_config_text(shape_of_7b(), "shape.toml", all).config;
    const Mesh mesh(config.parallelism);
    std::vector<std::int64_t> sizes;
    for (const PlannedStage& stage : plan_stages(config, mesh, mesh.coordinates(0), {all_blocks(config.model)})) {
      for (const PlannedUnit& unit : stage.units) {
        if (unit.plan.family == Family::dense) sizes.push_back(unit.layout.parameter_size());
      }
    }
    return sizes;
  };
  // 4 x 512 x 512 + 3 x 512 x 1376 + 2 x 512 parameters a block.
  constexpr std::int64_t block = 3'163'136;
  EXPECT_EQ(dense_units({}), std::vector<std::int64_t>(32, block));
  // 13 blocks are 41.1 million; the 6 that are left join the second bucket.
  EXPECT_EQ(dense_units({"--shard.wrap=buckets"}), (std::vector<std::int64_t>{13 * block, 19 * block}));
}

// Dense blocks and experts on two stages of four ranks.
LearnedRun learned_by_policies(ShardStrategy strategy, const std::function<void(Family, ShardPolicy&)>& change) {
  Config config =
      config_of({.layers = "d e d e", .degrees = {.pipeline = 2, .data_shard = 4, .expert = 2}, .strategy = strategy});
  for (auto& [family, policy] : config.shard_by_family) change(family, policy);
  config.run.steps = 3;
  return learn(config);
}
// Equal bits, by other calls: the two are not the same program.
void expect_same_by_other_calls(const LearnedRun& one, const LearnedRun& other) {
  const RunDifference apart = difference(one, other);
  EXPECT_TRUE(apart.bitwise_equal) << apart.weights << " in " << apart.worst_parameter;
  EXPECT_NE(one.result.steps.back().communication, other.result.steps.back().communication);
  EXPECT_NE(one.losses.front(), one.losses.back());
}

TEST(DefaultPolicy, AKeptRootLearnsToTheBitWhatADroppedOneLearns) {
  const auto run = [](ResidencyChoice residency) {
    return learned_by_policies(ShardStrategy::full_shard, [&](Family family, ShardPolicy& policy) {
      if (family == Family::dense || family == Family::experts) return;
      policy.wrap = {WrapKind::root};
      policy.residency = residency;
    });
  };
  expect_same_by_other_calls(run({}), run({Residency::reshard_after_use}));
}

TEST(DefaultPolicy, BucketsLearnToTheBitWhatUnitsLearn) {
  const auto run = [](WrapKind wrap) {
    return learned_by_policies(ShardStrategy::no_shard, [&](Family, ShardPolicy& policy) { policy.wrap = {wrap}; });
  };
  expect_same_by_other_calls(run(WrapKind::block), run(WrapKind::buckets));
}

}  // namespace
}  // namespace weft
