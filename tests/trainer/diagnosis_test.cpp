// Faults put into runs that really ran, one at a time: each is named and nothing else is, and the change that is
// proposed, made, leaves nothing to find. Runs without a fault are said to have none.
#include "trainer/diagnosis/diagnose.h"

#include <gtest/gtest.h>

#include "parallel/runtime/error.h"
#include "tests/trainer/diagnosed_run.h"

namespace weft {
namespace {

std::vector<std::string> names_of(const Diagnosis& diagnosis) {
  std::vector<std::string> names;
  for (const Finding& finding : diagnosis.findings) names.push_back(finding.rule);
  return names;
}

std::string text_of(const Diagnosis& diagnosis) {
  std::string text;
  for (const RuleResult& result : diagnosis.rules) text += fmt::format("{}: {}\n", result.rule, result.verdict.note);
  for (const Finding& finding : diagnosis.findings) {
    text += fmt::format("{}: {} ({} s)\n", finding.rule, finding.sentence, finding.seconds.value_or(-1.0));
    for (const EvidenceLine& line : finding.evidence) {
      text += fmt::format("  {}: {}; expected {} ({})\n", line.what, line.measured, line.expected, line.source);
    }
    for (const SettingChange& change : finding.changes)
      text += fmt::format("  {} = {}\n", change.setting, change.value);
  }
  return text;
}

using Names = std::vector<std::string>;

struct Diagnosed {
  Names names;
  Diagnosis diagnosis;
  std::string text;
};

Diagnosed diagnosed(RunOutputs run, const HardwareConfig& hardware = {}) {
  run.config.hardware = hardware;
  const Diagnosis diagnosis = diagnose(gather_evidence(run));
  return {names_of(diagnosis), diagnosis, text_of(diagnosis)};
}

Diagnosed diagnosed(const Overrides& overrides, const HardwareConfig& hardware = {}, const RunFaults& faults = {}) {
  const TemporaryFolder folder;
  leave_run(folder, overrides, faults);
  return diagnosed(read_run(folder.path()), hardware);
}

Overrides changes_of(const Finding& finding) {
  Overrides overrides;
  for (const SettingChange& change : finding.changes) overrides.push_back(change.setting + "=" + change.value);
  return overrides;
}

struct SettingFault {
  std::string rule;
  Overrides base, fault;
  Overrides changes;
  HardwareConfig hardware = {};
};

void PrintTo(const SettingFault& fault, std::ostream* out) {
  *out << fault.rule;
}

// Two nodes of two ranks. Full sharding sends 2 x 2 bytes for each of 4 microbatches and 4 bytes of gradient, 3/4 of
// 20 bytes a parameter; 3.9 MB leave a node in 2 ms at this rate, and there are 0.8 ms of computation. Hybrid sharding
// sends 4 bytes of gradient alone.
const HardwareConfig two_nodes{.ranks_per_node = 2, .node_bytes_per_second = 1.5e9};

const std::vector<SettingFault> setting_faults = {
    {"root_only_units", {}, {"shard.wrap=\"root\""}, {"shard.wrap=\"block\""}},
    {"reductions_not_deferred",
     pipelined_dense,
     {"shard.reduction=\"each_microbatch\""},
     {"shard.reduction=\"last_microbatch\""}},
    {"gathers_repeated", pipelined_dense, {"shard.residency=\"each_use\""}, {"shard.residency=\"stage\""}},
    // 4 ranks x 2 us x 8 GB/s.
    {"units_too_small", {}, {"shard.wrap=\"half_block\""}, {"shard.wrap=\"minimum_bytes 64000\""}},
    {"gathers_in_fp32", {}, {"precision.compute=\"float32\""}, {"precision.compute=\"bfloat16\""}},
    {"lookahead_off", {}, {"shard.lookahead=0"}, {"shard.lookahead=1"}},
    {"strategy_wrong_for_topology",
     {},
     {"parallelism.data_shard=4"},
     {"parallelism.data_replicate=2", "parallelism.data_shard=2"},
     two_nodes},
    {"batch_below_break_even",
     {},
     {"training.microbatch_size=1", "training.sequence_length=8", "training.global_batch_size=4"},
     {"training.global_batch_size=16", "training.microbatch_size=4"}},
    {"stage_imbalance", pipelined_dense, {"pipeline.layout=\"Ed|dddL\""}, {"pipeline.layout=\"Edd|ddL\""}},
};

class SettingFaults : public ::testing::TestWithParam<SettingFault> {};

TEST_P(SettingFaults, AreNamedAloneAndTheirChangeMendsThem) {
  const SettingFault& fault = GetParam();
  const Diagnosed found = diagnosed(fault.base + fault.fault, fault.hardware);
  ASSERT_EQ(found.names, Names{fault.rule}) << found.text;
  const Finding& finding = found.diagnosis.findings.front();
  EXPECT_GT(finding.seconds.value_or(0.0), 0.0);
  EXPECT_FALSE(finding.evidence.empty());
  EXPECT_EQ(changes_of(finding), fault.changes);
  const Diagnosed mended = diagnosed(fault.base + fault.fault + changes_of(finding), fault.hardware);
  EXPECT_EQ(mended.names, Names{}) << mended.text;
}

INSTANTIATE_TEST_SUITE_P(Diagnosis, SettingFaults, ::testing::ValuesIn(setting_faults),
                         [](const auto& instance) { return instance.param.rule; });

TEST(Diagnosis, FindsNothingInHealthyRuns) {
  const Overrides pipelined_mixture =
      pipelined_dense + mixture + Overrides{"parallelism.expert=2", "pipeline.schedule=\"1f1b\""};
  const std::vector<Overrides> healthy = {
      {}, pipelined_dense, pipelined_mixture, {"shard.strategy=\"shard_grad_op\"", "training.global_batch_size=16"}};
  for (const Overrides& overrides : healthy) {
    const Diagnosed found = diagnosed(overrides);
    EXPECT_EQ(found.names, Names{}) << found.text;
  }
}

// A rank that takes twice as long for everything, in the clocks of its trace alone.
TEST(Diagnosis, NamesASlowRank) {
  RunFaults faults;
  faults.slowness = [](int rank) { return rank == 2 ? 2.0 : 1.0; };
  const Diagnosed found = diagnosed(Overrides{}, {}, faults);
  ASSERT_EQ(found.names, Names{"slow_rank"}) << found.text;
  EXPECT_NE(found.diagnosis.findings.front().sentence.find("rank 2 "), std::string::npos);
  EXPECT_EQ(found.diagnosis.findings.front().evidence.size(), 1u);
  EXPECT_EQ(found.diagnosis.findings.front().evidence.front().source, "trace_rank2.json");
}

// In a pipeline the slow one is told from an uneven layout by the other rank of its stage.
TEST(Diagnosis, NamesASlowRankOfAPipeline) {
  RunFaults faults;
  faults.slowness = [](int rank) { return rank == 3 ? 2.0 : 1.0; };
  const Diagnosed found = diagnosed(pipelined_dense, {}, faults);
  ASSERT_EQ(found.names, Names{"slow_rank"}) << found.text;
  EXPECT_NE(found.diagnosis.findings.front().sentence.find("rank 3 "), std::string::npos);
}

// Where every token is the same letter, every token goes to the same two of eight experts: four times the mean.
TEST(Diagnosis, NamesCrowdedExperts) {
  RunFaults faults;
  faults.text = "a";
  const Overrides eight = mixture + Overrides{"model.moe.num_experts=8", "model.moe.router_aux_loss_coef=0.0"};
  const Diagnosed found = diagnosed(eight, {}, faults);
  ASSERT_EQ(found.names, Names{"expert_imbalance"}) << found.text;
  EXPECT_NE(found.text.find("4.00"), std::string::npos) << found.text;
  EXPECT_EQ(changes_of(found.diagnosis.findings.front()), Overrides{"model.moe.router_aux_loss_coef=0.01"});
}

}  // namespace
}  // namespace weft
