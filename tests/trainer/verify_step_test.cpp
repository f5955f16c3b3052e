// The owners over whole layouts, counted element by element, and the faults that a run refuses to begin with.
#include "trainer/rank/verify_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <numeric>

#include "tests/trainer/planned_stage.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

constexpr Degrees mesh16{.pipeline = 2, .data_shard = 2, .context = 2, .tensor = 2, .expert = 2, .expert_tensor = 2};

std::vector<TinyLayout> verify_step_layouts() {
  const std::string mixed = "d e d e";
  const auto no_shard = ShardStrategy::no_shard;
  return {
      {.name = "one_rank", .layers = mixed},
      {.name = "shard4", .degrees = {.data_shard = 4}},
      {.name = "shard7", .layers = mixed, .degrees = {.data_shard = 7}},
      {.name = "shard4_no_shard", .degrees = {.data_shard = 4}, .strategy = no_shard},
      {.name = "shard2_replicate2", .degrees = {.data_replicate = 2, .data_shard = 2}},
      {.name = "shard2_replicate2_no_shard",
       .layers = mixed,
       .degrees = {.data_replicate = 2, .data_shard = 2},
       .strategy = no_shard},
      {.name = "tp4", .layers = mixed, .degrees = {.tensor = 4}},
      {.name = "tp4_shard2", .degrees = {.data_shard = 2, .tensor = 4}},
      {.name = "cp2_shard2", .layers = mixed, .degrees = {.data_shard = 2, .context = 2}},
      {.name = "pp4", .layers = mixed, .degrees = {.pipeline = 4}},
      {.name = "ep4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 4}},
      {.name = "ep2_of_4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2}},
      {.name = "ep2_of_4_no_shard", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2}, .strategy = no_shard},
      {.name = "etp2_ep2_shard4", .layers = "e*4", .degrees = {.data_shard = 4, .expert = 2, .expert_tensor = 2}},
      {.name = "ep4_across_replicas", .layers = "e*4", .degrees = {.data_replicate = 2, .data_shard = 2, .expert = 4}},
      {.name = "replicate2_shard2_tp2_ep2",
       .layers = mixed,
       .degrees = {.data_replicate = 2, .data_shard = 2, .tensor = 2, .expert = 2}},
      {.name = "mesh16", .layers = mixed, .degrees = mesh16},
      {.name = "mesh16_no_shard", .layers = mixed, .degrees = mesh16, .strategy = no_shard},
      {.name = "shard2_tied", .degrees = {.data_shard = 2}, .tied = true},
      {.name = "mesh16_tied", .layers = mixed, .degrees = mesh16, .tied = true},
      {.name = "predictors_apart",
       .layers = "d e m*2",
       .degrees = {.pipeline = 4, .data_shard = 2, .tensor = 2},
       .stages = "Ed|e|mm|L"},
      {.name = "mesh16_tied_no_shard", .layers = mixed, .degrees = mesh16, .strategy = no_shard, .tied = true},
  };
}

std::string messages(const StageDescription& description) {
  std::string text;
  for (const ShardingFault& fault : find_sharding_faults(description)) text += fault.message + "\n";
  return text;
}

class OwnersOfLayout : public ::testing::TestWithParam<TinyLayout> {};

// Ranks with equal boxes of a parameter, by the meaning of the axes. Tensor parallelism splits dense parameters unless
// each tensor rank holds them all. Expert parallelism splits experts.
int copies_of(const Config& config, const ParameterSpec& parameter) {
  const Degrees& d = config.parallelism;
  if (parameter.family == Family::routing) return d.stage_ranks();
  const bool experts = parameter.family == Family::experts;
  const bool whole = config.shard.strategy == ShardStrategy::no_shard;
  const Mesh mesh(d);
  const int tensor = parameter.tensor_replicated ? d.tensor : 1;
  if (experts) return whole ? d.expert_data() : mesh.expert_replicas();
  // Embedding and head stand on the first and the last stage.
  const bool several = d.pipeline > 1 && (parameter.name == "embedding.weight" || parameter.name == "head.weight");
  const int predicts = config.model.mtp_depth > 0 ? 1 : 0;  // on a stage of their own
  const int stages = several ? 1 + predicts + (config.model.tie_word_embeddings ? 1 : 0) : 1;
  return (whole ? d.data() * d.context : d.data_replicate) * tensor * stages;
}

TEST_P(OwnersOfLayout, EveryElementIsOwnedOnceInEachReplica) {
  const Config config = config_of(GetParam());
  const Mesh mesh(config.parallelism);
  const OwnerTable table = owner_table(config, mesh);
  std::map<std::pair<std::string, int>, std::vector<int>> owners;  // by parameter and replica, by element
  Config lone = config;
  lone.parallelism = {};
  lone.pipeline = {};
  std::map<std::string, ParameterSpec> specs;
  for (const auto& segment : plan_stage(lone, Mesh(lone.parallelism), {}, 0).segments) {
    for (const ParameterSpec& spec : segment->parameters()) {
      specs[spec.name] = spec;
      for (int replica = 0; replica < copies_of(config, spec); ++replica) {
        owners[{spec.name, replica}].resize(static_cast<std::size_t>(spec.global_size()));
      }
    }
  }
  for (const OwnedRange& range : table) {
    const auto found = owners.find({range.parameter, range.replica});
    ASSERT_NE(found, owners.end()) << range.parameter << " replica " << range.replica;
    EXPECT_EQ(range.optimizer, "adamw");
    const std::int64_t columns = specs.at(range.parameter).global_columns;
    for (std::int64_t row = range.row_begin; row < range.row_begin + range.rows; ++row) {
      for (std::int64_t column = range.column_begin; column < range.column_begin + range.columns; ++column) {
        ++found->second.at(static_cast<std::size_t>(row * columns + column));
      }
    }
  }
  for (const auto& [key, counts] : owners) {
    EXPECT_EQ(std::ranges::count(counts, 1), std::ssize(counts)) << key.first << " replica " << key.second;
  }

  const auto parameters = global_parameters(config, mesh);
  EXPECT_EQ(parameters.size(), specs.size());
  for (const GlobalParameter& parameter : parameters) {
    EXPECT_EQ(parameter.replicas, copies_of(config, specs.at(parameter.name))) << parameter.name;
  }
  for (const OwnershipFault& fault : find_ownership_faults(table, parameters)) ADD_FAILURE() << fault.message;
}

TEST_P(OwnersOfLayout, EveryRankHoldsASoundStageAndStepsWhatItOwns) {
  const Config config = config_of(GetParam());
  const Mesh mesh(config.parallelism);
  std::map<int, std::vector<OwnedRange>> ranges_of;
  for (OwnedRange& range : owner_table(config, mesh)) ranges_of[range.rank].push_back(std::move(range));
  for (int rank = 0; rank < mesh.world(); ++rank) {
    SCOPED_TRACE(fmt::format("rank {}", rank));
    const Coordinates at = mesh.coordinates(rank);
    const PlannedStage planned = plan_stage(config, mesh, at, at.pp);
    EXPECT_EQ(messages(describe_stage(config, mesh, rank, planned, ranges_of[rank])), "");

    OwnedRange& last = ranges_of[rank].back();
    const std::string missed =
        fmt::format("the optimizer misses rows {} to {} of {}, which the rank owns\n", last.row_begin + last.rows - 1,
                    last.row_begin + last.rows - 1, last.parameter);
    --last.rows;
    EXPECT_EQ(messages(describe_stage(config, mesh, rank, planned, ranges_of[rank])), missed);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, OwnersOfLayout, ::testing::ValuesIn(verify_step_layouts()),
                         [](const auto& instance) { return instance.param.name; });

// Faults of planning, on a rank of a layout that uses every axis.
struct PlanFault {
  std::string name;
  ShardingSeam seam;
  std::function<void(PlannedStage&)> spoil;
};

PlannedUnit& unit_of(PlannedStage& planned, Family family) {
  return *std::ranges::find_if(planned.units, [&](const PlannedUnit& unit) { return unit.plan.family == family; });
}

TEST(VerifyStep, FindsFaultsOfPlanning) {
  const std::vector<PlanFault> faults = {
      // Context ranks would keep gradients of their own.
      {"dense without context", ShardingSeam::wrong_group,
       [](PlannedStage& planned) { unit_of(planned, Family::dense).shard_group = Group::dp_shard; }},
      {"experts over the dense group", ShardingSeam::wrong_group,
       [](PlannedStage& planned) { unit_of(planned, Family::experts).shard_group = Group::dp_shard_cp; }},
      {"dense over the expert group", ShardingSeam::wrong_group,
       [](PlannedStage& planned) { unit_of(planned, Family::dense).shard_group = Group::edp_shard; }},
      {"routing over data parallel ranks", ShardingSeam::wrong_group,
       [](PlannedStage& planned) { unit_of(planned, Family::routing).shard_group = Group::dp_shard_cp; }},
      {"one shard too many", ShardingSeam::shard_count,
       [](PlannedStage& planned) {
         PlannedUnit& unit = unit_of(planned, Family::experts);
         unit.layout = lay_out_unit(unit.plan.parameters, unit.layout.shards + 1);
       }},
      {"a unit forgotten", ShardingSeam::unmanaged,
       [](PlannedStage& planned) {
         std::erase_if(planned.units, [](const PlannedUnit& unit) { return unit.plan.replicated(); });
       }},
      {"experts beside dense parameters", ShardingSeam::dispatch,
       [](PlannedStage& planned) {
         PlannedUnit& dense = unit_of(planned, Family::dense);
         const PlannedUnit& experts = unit_of(planned, Family::experts);
         auto parameters = dense.plan.parameters;
         parameters.insert(parameters.end(), experts.plan.parameters.begin(), experts.plan.parameters.end());
         dense.layout = lay_out_unit(parameters, dense.layout.shards);
       }},
  };
  const Config config = config_of({.layers = "d e d e", .degrees = mesh16});
  const Mesh mesh(config.parallelism);
  constexpr int rank = 13;
  for (const PlanFault& fault : faults) {
    const Coordinates at = mesh.coordinates(rank);
    PlannedStage planned = plan_stage(config, mesh, at, at.pp);
    fault.spoil(planned);
    const auto found = find_sharding_faults(describe_stage(config, mesh, rank, planned));
    EXPECT_TRUE(std::ranges::any_of(found, [&](const ShardingFault& each) { return each.seam == fault.seam; }))
        << fault.name << ": " << found.size() << " others";
  }
}

// Everything that is wrong is said at once, with the parameter.
TEST(VerifyStep, RefusesAnOwnerTableThatIsNotSound) {
  const Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2}});
  const Mesh mesh(config.parallelism);
  const auto parameters = global_parameters(config, mesh);
  OwnerTable table = owner_table(config, mesh);
  require_sound_ownership(table, parameters);
  const OwnedRange lost = table.front();
  table.front() = table.back();
  try {
    require_sound_ownership(table, parameters);
    FAIL() << "a lost and a doubled range were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    const std::string text = error.what();
    EXPECT_NE(text.find("unowned: "), std::string::npos) << text;
    EXPECT_NE(text.find(lost.parameter + " (replica 0) are owned by no rank"), std::string::npos) << text;
    EXPECT_NE(text.find("doubled: "), std::string::npos) << text;
    EXPECT_NE(text.find(table.back().parameter), std::string::npos) << text;
  }
}

TEST(VerifyStep, NoRuleStepsWhatIsFrozen) {
  const Config config = config_of({.degrees = {.data_shard = 2}, .frozen = {Family::embedding}});
  const Mesh mesh(config.parallelism);
  const OwnerTable table = owner_table(config, mesh);
  for (const OwnedRange& range : table) {
    EXPECT_EQ(range.optimizer, range.parameter == "embedding.weight" ? "" : "adamw") << range.parameter;
  }
  require_sound_ownership(table, global_parameters(config, mesh));
}

// A plan of another stage, or one whose experts are fewer than the model has.
TEST(VerifyStep, FindsWhatBelongsElsewhere) {
  const Config config = config_of({.layers = "d e d e", .degrees = mesh16});
  const Mesh mesh(config.parallelism);
  PlannedStage planned = plan_stage(config, mesh, mesh.coordinates(0), 0);
  PlannedStage next = plan_stage(config, mesh, mesh.coordinates(0), 1);
  planned.units.push_back(std::move(next.units.front()));
  auto found = find_sharding_faults(describe_stage(config, mesh, 0, planned));
  ASSERT_FALSE(found.empty());
  for (const ShardingFault& fault : found) EXPECT_EQ(fault.seam, ShardingSeam::two_stages) << fault.message;

  Config fewer = config;
  fewer.model.moe.num_experts = 2;
  planned = plan_stage(fewer, mesh, mesh.coordinates(0), 0);
  found = find_sharding_faults(describe_stage(config, mesh, 0, planned));
  EXPECT_TRUE(std::ranges::any_of(
      found, [](const ShardingFault& fault) { return fault.seam == ShardingSeam::unmarked_experts; }));
}

// Four experts on three ranks: each takes one, as a whole number of the four, and the last is nobody's. The rules of
// the configuration refuse that; a run that comes around them ends before its first step.
TEST(VerifyStep, ARunWithAParameterOfNobodyDoesNotBegin) {
  const Config config = config_of({.layers = "e", .degrees = {.data_shard = 3, .expert = 3}});
  try {
    run_steps(config);
    FAIL() << "ran";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failure);
    EXPECT_NE(
        std::string(error.what())
            .find("\n  unowned: rows 0 to 9 of 10 of blocks.0.experts.3.gate_proj.weight (replica 0) are owned by no "
                  "rank"),
        std::string::npos)
        << error.what();
  }
}

// All matrices of the shipped configurations have hidden_size columns, which tests/parallel/unit_layout_test.cpp shows
// to be the case where padding is less than a row a shard.
TEST(VerifyStep, PadsShippedConfigurationsByLessThanARowAShard) {
  int units = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(WEFT_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".toml") continue;
    const Config config = read_config(entry.path()).config;
    const Mesh mesh(config.parallelism);
    for (int stage = 0; stage < config.parallelism.pipeline; ++stage) {
      for (const PlannedUnit& unit : plan_stage(config, mesh, {}, stage).units) {
        if (unit.plan.replicated()) continue;
        for (const std::int64_t shards : {unit.layout.shards, std::int64_t{3}, std::int64_t{8}, std::int64_t{512}}) {
          const UnitLayout layout = lay_out_unit(unit.plan.parameters, shards);
          std::int64_t widest = 0;
          for (const ParameterSpec& spec : layout.parameters) widest = std::max(widest, spec.columns);
          // A head that is tied to the embedding has its norm alone, and so has a block of experts without attention.
          const bool norm_alone = layout.parameters.size() == 1 && layout.parameters[0].name.ends_with(".norm.weight");
          EXPECT_EQ(widest, norm_alone ? 1 : config.model.hidden_size) << unit.plan.name;
          EXPECT_LT(layout.padding(), widest * shards)
              << entry.path() << ": " << unit.plan.name << ", " << shards << " shards";
          ++units;
        }
      }
    }
  }
  EXPECT_GT(units, 100);
}

}  // namespace
}  // namespace weft
