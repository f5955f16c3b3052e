// shard.replicate: vectors that every rank of a stage has whole. A run learns what it learns with them sharded, and
// takes the memory that it says.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_rules.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/solved_timing.h"

namespace weft {
namespace {

Config replicating(const TinyLayout& layout, std::vector<std::string> patterns = {"*norm.weight"}) {
  Config config = config_of(layout);
  config.replicate = std::move(patterns);
  return config;
}

PrecisionConfig in_bfloat16() {
  PrecisionConfig precision;
  precision.compute = DType::bfloat16;
  return precision;
}

std::vector<TinyLayout> replicate_layouts() {
  const std::string mixed = "d e d e";
  return {
      {.name = "one_rank", .layers = mixed},
      {.name = "tp2", .layers = mixed, .degrees = {.tensor = 2}},
      {.name = "cp2_shard2", .layers = mixed, .degrees = {.data_shard = 2, .context = 2}},
      {.name = "mesh8",
       .layers = mixed,
       .degrees = {.pipeline = 2, .data_shard = 2, .tensor = 2, .expert = 2},
       .residency = "reshard_after_use"},
      {.name = "zbv_tied", .layers = mixed, .degrees = {.pipeline = 2}, .schedule = "zbv", .chunks = 2, .tied = true},
      {.name = "merged_units", .layers = "d*4", .degrees = {.data_shard = 2}, .wrap = "minimum_bytes 100000"},
      {.name = "half_blocks", .layers = mixed, .degrees = {.data_shard = 2}, .wrap = "half_block"},
      {.name = "predictors", .layers = "d e m*2", .degrees = {.pipeline = 4}, .stages = "Ed|e|mm|L"},
      {.name = "each_microbatch", .layers = mixed, .degrees = {.data_shard = 2}, .reduction = "each_microbatch"},
  };
}

class ReplicatedVectors : public ::testing::TestWithParam<TinyLayout> {};

TEST_P(ReplicatedVectors, LearnWhatShardedOnesLearn) {
  const LearnedRun one = learn(config_of({.layers = GetParam().layers, .tied = GetParam().tied}));
  const LearnedRun many = learn(replicating(GetParam()));
  EXPECT_TRUE(many.faults.empty()) << many.faults.front();
  const RunDifference apart = difference(many, one);
  EXPECT_LT(apart.loss, 1e-5);
  EXPECT_LT(apart.gradient_norm, 1e-5);
  EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;
}

TEST_P(ReplicatedVectors, TakeTheBytesOfTheDryRun) {
  for (const bool narrow : {false, true}) {
    TinyLayout layout = GetParam();
    if (narrow) layout.precision = in_bfloat16();
    const Config config = replicating(layout);
    const LearnedRun run = learn(config);
    const ResolvedRun resolved(config);
    for (int rank = 0; rank < resolved.mesh().world(); ++rank) {
      const Program program = step_program(resolved, resolved.mesh().coordinates(rank));
      const DryRun dry = dry_run(config, resolved.mesh(), program, rank);
      const BucketBytes& measured = run.result.measured[static_cast<std::size_t>(rank)];
      EXPECT_EQ(differing_static_buckets(dry.peak, measured), std::vector<Bucket>{}) << "rank " << rank;
      EXPECT_GT(measured[Bucket::replicated_parameters], 0);
    }
  }
}

TEST_P(ReplicatedVectors, AreInNoShardUnit) {
  const Config config = replicating(GetParam());
  const Mesh mesh(config.parallelism);
  std::set<std::string> found;
  for (const PlannedStage& stage : plan_stages(config, mesh, mesh.coordinates(0))) {
    for (const PlannedUnit& unit : stage.units) {
      for (const ParameterSpec& parameter : unit.plan.parameters) {
        EXPECT_EQ(unit.plan.replicated(), is_replicated(parameter.family) || parameter.name.ends_with("norm.weight"))
            << parameter.name << " in " << unit.plan.name;
        if (unit.plan.as_asked) found.insert(unit.plan.name);
      }
    }
  }
  EXPECT_TRUE(found.contains("stage.0.dense.replicated"));
}

INSTANTIATE_TEST_SUITE_P(Layouts, ReplicatedVectors, ::testing::ValuesIn(replicate_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// By size: norms of heads, which have fewer elements than those of the hidden state, and neither matrices nor experts.
TEST(ReplicatedBySize, LearnWhatShardedOnesLearn) {
  const auto config_for = [](const TinyLayout& layout, std::int64_t below) {
    Config config = config_of(layout);
    config.replicate_below = below;
    return config;
  };
  const std::string mixed = "d e d e";
  const LearnedRun one = learn(config_for({.layers = mixed}, 0));
  for (const TinyLayout& layout :
       {TinyLayout{.layers = mixed, .degrees = {.data_shard = 2, .tensor = 2, .expert = 2}},
        TinyLayout{.layers = mixed, .degrees = {.pipeline = 2, .data_shard = 2}, .tied = false}}) {
    const Config config = config_for(layout, 20);
    const LearnedRun many = learn(config);
    EXPECT_TRUE(many.faults.empty()) << many.faults.front();
    const RunDifference apart = difference(many, one);
    EXPECT_LT(apart.loss, 1e-5);
    EXPECT_LT(apart.weights, 1e-5) << apart.worst_parameter;
    std::set<bool> seen;
    const Mesh mesh(config.parallelism);
    for (const PlannedStage& stage : plan_stages(config, mesh, mesh.coordinates(0))) {
      for (const PlannedUnit& unit : stage.units) {
        for (const ParameterSpec& parameter : unit.plan.parameters) {
          if (is_replicated(parameter.family)) continue;
          const bool small = parameter.global_columns == 1 && parameter.global_size() < 20;
          EXPECT_EQ(unit.plan.replicated(), small && parameter.family != Family::experts) << parameter.name;
          seen.insert(unit.plan.replicated());
        }
      }
    }
    EXPECT_EQ(seen.size(), 2u);
  }
}

// Filters and biases of a state space's x, B and C have different sizes and are one to a kernel. Tensor ranks split all
// of its vectors but the norm's weight.
TEST(ReplicatedBySize, TakesWhatAKernelReadsAsOneAndNoPartsOfVectors) {
  const std::string mixed = "M D A E";
  const auto config_for = [&](int tensor, std::int64_t below) {
    Config config = config_of(TinyLayout{.layers = mixed, .degrees = {.data_shard = 2, .tensor = tensor}});
    config.replicate_below = below;
    return config;
  };
  const LearnedRun one = learn(config_of(TinyLayout{.layers = mixed}));
  for (const int tensor : {1, 2}) {
    for (const std::int64_t below : {9, 22, 66, 1000}) {
      const Config config = config_for(tensor, below);
      const LearnedRun many = learn(config);
      EXPECT_TRUE(many.faults.empty()) << many.faults.front();
      EXPECT_LT(difference(many, one).loss, 1e-5) << "tensor " << tensor << ", below " << below;
      const Mesh mesh(config.parallelism);
      const std::vector<PlannedStage> stages = plan_stages(config, mesh, mesh.coordinates(0));
      for (const PlannedUnit& unit : stages.front().units) {
        for (const ParameterSpec& parameter : unit.plan.parameters) {
          EXPECT_FALSE(unit.plan.as_asked && parameter.rows < parameter.global_rows) << parameter.name;
          const bool is_space =
              parameter.name.find("state_space") != std::string::npos && parameter.global_columns == 1;
          const bool is_whole = !is_space || below < 1000 || tensor > 1 || unit.plan.as_asked;
          EXPECT_TRUE(is_whole) << parameter.name;
        }
      }
    }
  }
}

// What is computed in 16 bits reads a copy, and the values are stepped in float32.
TEST(ReplicatedVectorsPrecision, ComputeInSixteenBits) {
  const TinyLayout one{.layers = "d e", .precision = in_bfloat16()};
  const LearnedRun alone = learn(replicating(one));
  EXPECT_LT(alone.losses.back(), alone.losses.front());
  EXPECT_LT(difference(learn(config_of(one)), alone).loss, 0x1p-8);
  const LearnedRun many = learn(replicating(
      {.layers = "d e", .degrees = {.data_shard = 2, .tensor = 2, .expert = 2}, .precision = in_bfloat16()}));
  EXPECT_TRUE(many.faults.empty()) << many.faults.front();
  EXPECT_LT(difference(many, alone).loss, 0x1p-7);
}

std::vector<std::string> faults_of(const Config& config) {
  std::vector<std::string> all;
  for (const ConfigRule& rule : config_rules()) {
    for (std::string& message : rule.check(config)) all.push_back(std::move(message));
  }
  return all;
}

TEST(ReplicatePatterns, NameVectorsAlone) {
  const auto fault = [](const std::string& pattern, const char* layers = "d e", int tensor = 1) {
    const auto faults = faults_of(replicating({.layers = layers, .degrees = {.tensor = tensor}}, {pattern}));
    EXPECT_LE(faults.size(), 1u);
    return faults.empty() ? std::string() : faults.front();
  };
  EXPECT_EQ(fault("*.norm.weight"), "");
  EXPECT_EQ(fault("*.router.*"), "");
  EXPECT_EQ(fault("blocks.?.attention.norm.weight"), "");
  EXPECT_TRUE(fault("*.norms.*").starts_with("replicate \"*.norms.*\" names no parameter of the model; one is "))
      << fault("*.norms.*");
  EXPECT_TRUE(fault("*").find("a matrix of 259 x 20") != std::string::npos) << fault("*");
  EXPECT_TRUE(fault("blocks.0.attention.q_proj.weight").find("names blocks.0.attention.q_proj.weight, a matrix") !=
              std::string::npos);
  EXPECT_TRUE(fault("*.experts.*").find("names blocks.1.experts.0.gate_proj.weight") != std::string::npos)
      << fault("*.experts.*");
  // Heads of a state space are split over tensor ranks, and their vectors with them.
  EXPECT_EQ(fault("*.a_log", "M e"), "");
  EXPECT_EQ(fault("*.norm.weight", "M e", 2), "");
  EXPECT_EQ(fault("*.a_log", "M e", 2),
            "replicate \"*.a_log\" names blocks.0.state_space.a_log, of which the ranks of tensor 2 have a part each: "
            "name other vectors only");
  // The filters of x, B and C are one to the kernel.
  EXPECT_EQ(fault("*.b_bias", "M e"),
            "replicate names blocks.0.state_space.b_bias without blocks.0.state_space.x_bias, and kernels read both as "
            "one: name both or neither");
  EXPECT_EQ(fault("*_bias", "M e"), "");
}

}  // namespace
}  // namespace weft
