// Faults put into runs that really ran, one at a time: each is named and nothing else is, and the change that is
// proposed, made, leaves nothing to find. Runs without a fault are said to have none.
#include "trainer/diagnosis/diagnose.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

#include "parallel/runtime/error.h"
#include "tests/trainer/diagnosed_run.h"

namespace weft {
namespace {

std::vector<std::string> names_of(const Diagnosis& diagnosis) {
  std::vector<std::string> names;
  for (const DiagnosedFault& finding : diagnosis.findings) names.push_back(finding.rule);
  return names;
}

std::string text_of(const Diagnosis& diagnosis) {
  std::string text;
  for (const RuleResult& result : diagnosis.rules) text += fmt::format("{}: {}\n", result.rule, result.verdict.note);
  for (const DiagnosedFault& finding : diagnosis.findings) {
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

Overrides changes_of(const DiagnosedFault& finding) {
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
    {"gathers_repeated",
     pipelined_dense + Overrides{"shard.reduction=\"last_microbatch\""},
     {"shard.residency=\"each_use\""},
     {"shard.residency=\"step\""},
     {.memory = std::int64_t{1} << 30}},
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
  const DiagnosedFault& finding = found.diagnosis.findings.front();
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
  // Reductions over tensor ranks are counted with what segments exchange among them.
  const Overrides tensor_mixture =
      pipelined_mixture + Overrides{"model.layers=\"d e\"", "model.hidden_size=128", "parallelism.tensor=2",
                                    "training.global_batch_size=128"};
  const std::vector<Overrides> healthy = {{},
                                          pipelined_dense,
                                          pipelined_mixture,
                                          tensor_mixture,
                                          {"shard.strategy=\"shard_grad_op\"", "training.global_batch_size=16"}};
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

// What a library would take for itself, in the ledger of one rank: the bucket and its assumption are named.
TEST(Diagnosis, NamesMemoryThatWasNotPredicted) {
  std::array<Tensor, 4> taken;
  RunFaults faults;
  faults.before_first_step = [&](RankRun& run) {
    if (run.rank() != 1) return;
    taken[1] = run.ledger().allocate(Bucket::workspace, DType::float32, 1 << 20, 1);
  };
  faults.after_last_step = [&](RankRun& run) { taken[static_cast<std::size_t>(run.rank())].reset(); };
  const Diagnosed found = diagnosed(Overrides{}, {}, faults);
  ASSERT_EQ(found.names, Names{"memory"}) << found.text;
  const DiagnosedFault& finding = found.diagnosis.findings.front();
  ASSERT_EQ(finding.evidence.size(), 1u);
  EXPECT_EQ(finding.evidence.front().what, "workspace of rank 1");
  EXPECT_NE(finding.evidence.front().expected.find("libraries need no workspace"), std::string::npos);
  EXPECT_GE(*finding.bytes, 4 << 20);
}

// Static buckets agree to the byte, or units are not those of the plan.
TEST(Diagnosis, NamesAStaticBucketThatDiffersByAByte) {
  const TemporaryFolder folder;
  leave_run(folder, {});
  RunOutputs run = read_run(folder.path());
  run.memory[3].measured[Bucket::optimizer_state] += 1;
  const Diagnosed found = diagnosed(run);
  ASSERT_EQ(found.names, Names{"memory"}) << found.text;
  EXPECT_EQ(found.diagnosis.findings.front().evidence.front().what, "optimizer_state of rank 3");
}

// What a change takes has to be there: under a budget that the run fills, nothing is proposed that would not fit.
TEST(Diagnosis, ProposesOnlyWhatFits) {
  const TemporaryFolder folder;
  leave_run(folder, pipelined_dense + Overrides{"shard.residency=\"each_use\"", "shard.reduction=\"each_microbatch\""});
  const RunOutputs run = read_run(folder.path());
  std::int64_t peak = 0;
  for (const StepMetrics& step : run.steps) peak = std::max(peak, step.peak_bytes);
  const Diagnosed full = diagnosed(run, {.memory = peak});
  EXPECT_EQ(full.names, Names{}) << full.text;
  const Diagnosed free = diagnosed(run, {.memory = 2 * peak});
  EXPECT_EQ(std::set(free.names.begin(), free.names.end()),
            (std::set<std::string>{"gathers_repeated", "reductions_not_deferred"}))
      << free.text;
}

// Without a pipeline parameters are dropped to save memory; that is a fault only where memory is known to be idle.
// Nothing of the run is left to be chosen by the memory that it is later judged with.
const Overrides written_out = {"shard.residency=\"each_use\"", "shard.reduction=\"last_microbatch\""};

TEST(Diagnosis, KeepsParametersOnlyWhereMemoryIsKnown) {
  const TemporaryFolder folder;
  leave_run(folder, written_out);
  const RunOutputs run = read_run(folder.path());
  EXPECT_EQ(diagnosed(run).names, Names{});
  EXPECT_EQ(diagnosed(run, {.memory = std::int64_t{1} << 30}).names, Names{"gathers_repeated"});
}

// Both sides of the break-even, by the same run on faster and slower networks. One rank a node: no hybrid helps.
TEST(Diagnosis, BreakEvenIsWhereTheExchangeTakesAsLongAsComputation) {
  const TemporaryFolder folder;
  leave_run(folder, written_out);
  const RunOutputs run = read_run(folder.path());
  const HardwareConfig fast{.ranks_per_node = 1, .node_bytes_per_second = 1e12};
  const RunEvidence evidence = gather_evidence(run);
  const RunHardware hardware = evidence.hardware;
  RunOutputs same = run;
  same.config.hardware = fast;
  const RunEvidence on_fast = gather_evidence(same);
  // Every rank is a node, and the ring of 4 leaves each of them with 3/4 of what a rank counts.
  double counted = 0.0;
  for (const auto& [key, count] : run.steps.back().communication) {
    if (key.group == "dp_shard") counted += static_cast<double>(count.bytes) / 4.0;
  }
  const double egress = 0.75 * counted;
  EXPECT_DOUBLE_EQ(node_egress_bytes(on_fast.measured.exchange, on_fast.mesh, on_fast.hardware), egress);
  const double even = egress / evidence.compute_seconds(hardware.flops_per_second);  // bytes a second
  EXPECT_EQ(diagnosed(run, {.ranks_per_node = 1, .node_bytes_per_second = 1.01 * even}).names, Names{});
  EXPECT_EQ(diagnosed(run, {.ranks_per_node = 1, .node_bytes_per_second = 0.99 * even}).names,
            Names{"batch_below_break_even"});
}

// What costs most comes first: the same two faults on links with little and with much latency.
TEST(Diagnosis, TellsTheMostExpensiveFirst) {
  const TemporaryFolder folder;
  leave_run(folder, pipelined_dense + written_out + Overrides{"precision.compute=\"float32\""});
  const Diagnosed found = diagnosed(read_run(folder.path()), {.memory = std::int64_t{1} << 30});
  ASSERT_EQ(found.names.size(), 2u) << found.text;
  const auto& findings = found.diagnosis.findings;
  EXPECT_GE(*findings[0].seconds, *findings[1].seconds);
  EXPECT_EQ(std::set(found.names.begin(), found.names.end()),
            (std::set<std::string>{"gathers_in_fp32", "gathers_repeated"}));
}

}  // namespace
}  // namespace weft
