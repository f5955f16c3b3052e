// Faults put into runs that really ran, one setting at a time. Each is named and nothing else is. The change that is
// proposed, made, leaves nothing to find.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/trainer/diagnosed_run.h"

namespace weft {
namespace {

enum class Claims : std::uint8_t { time, memory };

struct SettingFault {
  std::string rule, stack;
  Overrides base, fault;
  Overrides changes;
  HardwareConfig hardware = {};
  Claims claims = Claims::time;
  bool own_lanes = false;  // judged as in retimed_on_own_lanes()
};

void PrintTo(const SettingFault& fault, std::ostream* out) {
  *out << fault.rule << "_" << fault.stack;
}

Diagnosed diagnosed_with(const SettingFault& fault, const Overrides& changes) {
  const TemporaryFolder folder;
  leave_run(folder, fault.base + fault.fault + changes);
  RunOutputs run = read_run(folder.path());
  if (fault.own_lanes) retimed_on_own_lanes(run, fault.hardware);
  return diagnosed(run, fault.hardware);
}

// Two nodes of two ranks. Full sharding sends 2 x 2 bytes for each of 4 microbatches and 4 bytes of gradient. Of these
// 20 bytes a parameter, 3.9 MB in all, 3/4 leave a node, in 2 ms at this rate. There are 0.8 ms of computation. Hybrid
// sharding sends 4 bytes of gradient alone.
const HardwareConfig two_nodes{.ranks_per_node = 2, .node_bytes_per_second = 1.5e9};
const HardwareConfig roomy{.memory = std::int64_t{1} << 30};

const Overrides deferred = {"shard.reduction=\"last_microbatch\""};
const Overrides tiny_batch = {"training.microbatch_size=1", "training.sequence_length=8",
                              "training.global_batch_size=4"};

const std::vector<SettingFault> setting_faults = {
    {"root_only_units", "dense", {}, {"shard.wrap=\"root\""}, {"shard.wrap=\"block\""}, {}, Claims::memory},
    {"root_only_units",
     "hybrid",
     sharded_hybrid,
     {"shard.wrap=\"root\""},
     {"shard.wrap=\"block\""},
     {},
     Claims::memory},
    {"root_only_units",
     "hybrid_on_own_lanes",
     sharded_hybrid,
     {"shard.wrap=\"root\""},
     {"shard.wrap=\"block\""},
     cpu_rates,
     Claims::time,
     true},
    {"reductions_not_deferred",
     "dense",
     pipelined_dense,
     {"shard.reduction=\"each_microbatch\""},
     {"shard.reduction=\"last_microbatch\""}},
    {"reductions_not_deferred",
     "hybrid",
     pipelined_hybrid,
     {"shard.reduction=\"each_microbatch\""},
     {"shard.reduction=\"last_microbatch\""}},
    {"gathers_repeated",
     "dense",
     pipelined_dense + deferred,
     {"shard.residency=\"reshard_after_use\""},
     {"shard.residency=\"step\""},
     roomy},
    {"gathers_repeated",
     "hybrid",
     pipelined_hybrid + deferred,
     {"shard.residency=\"reshard_after_use\""},
     {"shard.residency=\"step\""},
     roomy},
    // 4 ranks x 2 us x 8 GB/s.
    {"units_too_small", "dense", {}, {"shard.wrap=\"half_block\""}, {"shard.wrap=\"minimum_bytes 64000\""}},
    {"units_too_small",
     "hybrid",
     mixture + Overrides{"parallelism.expert=2"},
     {"shard.wrap=\"half_block\""},
     {"shard.wrap=\"minimum_bytes 64000\""}},
    // The root family has units only where a family has wrap "root".
    {"units_too_small",
     "dense_of_its_own",
     {},
     {"shard.dense.wrap=\"half_block\""},
     {"shard.wrap=\"minimum_bytes 64000\"", "shard.dense.wrap=\"minimum_bytes 64000\""}},
    {"gathers_in_fp32", "dense", {}, {"precision.compute=\"float32\""}, {"precision.compute=\"bfloat16\""}},
    {"gathers_in_fp32",
     "dense_of_its_own",
     {},
     {"precision.compute=\"float32\"", "precision.dense.compute=\"float32\""},
     {"precision.compute=\"bfloat16\"", "precision.dense.compute=\"bfloat16\""}},
    {"gathers_in_fp32",
     "hybrid",
     sharded_hybrid,
     {"precision.compute=\"float32\""},
     {"precision.compute=\"bfloat16\""}},
    {"lookahead_off",
     "dense_on_own_lanes",
     {},
     {"shard.lookahead=0"},
     {"shard.lookahead=1"},
     cpu_rates,
     Claims::time,
     true},
    {"lookahead_off",
     "hybrid_on_own_lanes",
     sharded_hybrid,
     {"shard.lookahead=0"},
     {"shard.lookahead=1"},
     cpu_rates,
     Claims::time,
     true},
    {"strategy_wrong_for_topology",
     "dense",
     {},
     {"parallelism.data_shard=4"},
     {"parallelism.data_replicate=2", "parallelism.data_shard=2"},
     two_nodes},
    {"strategy_wrong_for_topology",
     "hybrid",
     sharded_hybrid,
     {"parallelism.data_shard=4"},
     {"parallelism.data_replicate=2", "parallelism.data_shard=2"},
     two_nodes},
    {"batch_below_break_even",
     "dense",
     {},
     tiny_batch,
     {"training.global_batch_size=16", "training.microbatch_size=4"}},
    {"batch_below_break_even",
     "hybrid",
     sharded_hybrid,
     tiny_batch,
     {"training.global_batch_size=12", "training.microbatch_size=3"}},
    {"stage_imbalance", "dense", pipelined_dense, {"pipeline.layout=\"Ed|dddL\""}, {"pipeline.layout=\"Edd|ddL\""}},
    {"stage_imbalance", "hybrid", pipelined_hybrid, {"pipeline.layout=\"Ed|eeeL\""}, {"pipeline.layout=\"Ede|eeL\""}},
};

class SettingFaults : public ::testing::TestWithParam<SettingFault> {};

TEST_P(SettingFaults, AreNamedAloneAndTheirChangeMendsThem) {
  const SettingFault& fault = GetParam();
  const Diagnosed found = diagnosed_with(fault, {});
  ASSERT_EQ(found.names, std::vector<std::string>{fault.rule}) << found.text;
  const DiagnosedFault& finding = found.diagnosis.findings.front();
  if (fault.claims == Claims::time) {
    ASSERT_TRUE(finding.step) << found.text;
    EXPECT_GT(finding.step->seconds, 0.0);
    EXPECT_EQ(finding.step->basis, Basis::measured);
  } else {
    EXPECT_FALSE(finding.step) << found.text;
    ASSERT_TRUE(finding.memory) << found.text;
    EXPECT_GT(finding.memory->bytes, 0);
  }
  EXPECT_FALSE(finding.evidence.empty());
  EXPECT_EQ(changes_of(finding), fault.changes);
  const Diagnosed mended = diagnosed_with(fault, changes_of(finding));
  EXPECT_EQ(mended.names, std::vector<std::string>{}) << mended.text;
}

INSTANTIATE_TEST_SUITE_P(Diagnosis, SettingFaults, ::testing::ValuesIn(setting_faults),
                         [](const auto& instance) { return instance.param.rule + "_" + instance.param.stack; });

// A family with a value of its own is not reached by the default's key, so the change names its key too. A family
// without the fault may have one.
TEST(Diagnosis, NamesTheSettingsOfFamilies) {
  const auto settings_of = [](const std::string& rule, const Overrides& overrides) {
    const Diagnosed found = diagnosed(overrides, {.memory = std::int64_t{1} << 30});
    const auto finding = std::ranges::find(found.diagnosis.findings, rule, &DiagnosedFault::rule);
    return finding != found.diagnosis.findings.end() ? finding->changes.at(0).setting : found.text;
  };
  const Overrides dropped = pipelined_dense + deferred + Overrides{"shard.residency=\"reshard_after_use\""};
  EXPECT_EQ(settings_of("gathers_repeated", dropped + Overrides{"shard.dense.residency=\"keep_after_forward\""}),
            "shard.residency, shard.dense.residency");
  // The root family inherits still, and has no units.
  EXPECT_EQ(settings_of("gathers_repeated", dropped + Overrides{"shard.dense.residency=\"keep_after_forward\"",
                                                                "shard.embedding.residency=\"keep_after_forward\"",
                                                                "shard.head.residency=\"keep_after_forward\""}),
            "shard.dense.residency, shard.embedding.residency, shard.head.residency");
  // It has units where a family has wrap "root", and none where that changes.
  EXPECT_EQ(
      settings_of("root_only_units", dropped + Overrides{"shard.dense.wrap=\"root\"", "shard.root.wrap=\"parameter\""}),
      "shard.dense.wrap");
  EXPECT_EQ(settings_of("gathers_repeated", dropped + Overrides{"shard.head.residency=\"step\""}), "shard.residency");
  EXPECT_EQ(settings_of("gathers_in_fp32", dropped + Overrides{"precision.dense.compute=\"float32\""}),
            "precision.dense.compute");
  EXPECT_EQ(settings_of("gathers_in_fp32",
                        dropped + Overrides{"precision.compute=\"float32\"", "precision.head.compute=\"bfloat16\""}),
            "precision.compute");
  // Written for the family, although it is the value that the family would inherit.
  EXPECT_EQ(settings_of("gathers_in_fp32",
                        dropped + Overrides{"precision.compute=\"float32\"", "precision.dense.compute=\"float32\""}),
            "precision.compute, precision.dense.compute");
}

// The same check on healthy runs, on lanes of their own.
TEST(Diagnosis, FindsNothingInHealthyRunsOnOwnLanes) {
  for (const Overrides& overrides : {Overrides{}, sharded_hybrid, pipelined_hybrid}) {
    const SettingFault none{.rule = "",
                            .stack = "",
                            .base = overrides,
                            .fault = {},
                            .changes = {},
                            .hardware = cpu_rates,
                            .own_lanes = true};
    const Diagnosed found = diagnosed_with(none, {});
    EXPECT_EQ(found.names, std::vector<std::string>{}) << found.text;
  }
}

}  // namespace
}  // namespace weft
