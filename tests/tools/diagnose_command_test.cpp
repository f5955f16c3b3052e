// `weft diagnose` on runs of the program itself: what it prints, its JSON and its exit codes.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

using DiagnoseCommand = TinyTraining;

constexpr const char* one_rank =
    "--parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.expert=1";

bool has_finding(const SortedJson& diagnosis, const std::string& rule) {
  const auto& findings = diagnosis.at("findings");
  return std::any_of(findings.begin(), findings.end(),
                     [&](const SortedJson& finding) { return finding.at("rule") == rule; });
}

TEST_F(DiagnoseCommand, NamesAFaultWithEvidenceAndChange) {
  ASSERT_EQ(weft("train run.toml --precision.compute=float32").exit_code, 0);
  const auto text = weft("diagnose out/tiny");
  EXPECT_EQ(text.exit_code, 0) << text.messages;
  EXPECT_NE(text.output.find("gathers_in_fp32: parameters travel in float32"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("measured  bytes of a gathered parameter: 4.00 (metrics.jsonl)"), std::string::npos);
  EXPECT_NE(text.output.find("change    precision.compute = \"bfloat16\""), std::string::npos);
  EXPECT_NE(text.output.find("; all ranks are in one node\n"), std::string::npos) << text.output;
  const std::size_t unchecked = text.output.find("\nnot checked\n");
  ASSERT_NE(unchecked, std::string::npos) << text.output;
  EXPECT_NE(text.output.find("\n  slow_rank ", unchecked), std::string::npos) << text.output;

  const auto json = weft("diagnose out/tiny --json --strict");
  EXPECT_EQ(json.exit_code, 3);
  const SortedJson diagnosis = SortedJson::parse(json.output);
  EXPECT_FALSE(diagnosis.at("healthy"));
  EXPECT_TRUE(has_finding(diagnosis, "gathers_in_fp32"));
  EXPECT_EQ(diagnosis.at("rules").size(), 14u);
  EXPECT_EQ(diagnosis.at("memory").size(), 8u);
  EXPECT_EQ(diagnosis.at("memory")[7].at("buckets").size(), 10u);
}

TEST_F(DiagnoseCommand, SaysInOneLineThatARunIsHealthy) {
  ASSERT_EQ(weft(std::string("train run.toml ") + one_rank).exit_code, 0);
  const auto text = weft("diagnose out/tiny --strict");
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_NE(text.output.find("\nno fault found\n"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("checked, and right\n  root_only_units"), std::string::npos);
  const SortedJson diagnosis = SortedJson::parse(weft("diagnose out/tiny --json").output);
  EXPECT_TRUE(diagnosis.at("healthy"));
  EXPECT_TRUE(diagnosis.at("findings").empty());
}

// Other wraps of a run whose gathers are solved for are solved anew. A plan of other units broke the rules, and a list
// of broken rules was destroyed as one of another type.
TEST_F(DiagnoseCommand, ResolvesEachAlternativeOfASolvedRun) {
  const std::string solved =
      " --model.layers=d*4 --shard.residency=auto --shard.memory_budget=6MiB --shard.wrap=root"
      " --hardware.ranks_per_node=2 --hardware.node_bytes_per_second=1e9 --parallelism.expert=1 --parallelism.tensor=1"
      " --parallelism.data_shard=4";
  const auto trained = weft("train run.toml" + solved);
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  const auto text = weft("diagnose out/tiny");
  EXPECT_EQ(text.exit_code, 0) << text.messages;
  EXPECT_EQ(text.messages, "");
  EXPECT_NE(text.output.find("root_only_units: "), std::string::npos) << text.output;
}

// Units that outweigh the latency of their links, a dense block and one with experts over two ranks.
constexpr const char* hybrid =
    " --model.hidden_size=64 --model.intermediate_size=128 --model.head_dim=16 --model.num_key_value_heads=4"
    " --model.moe.moe_intermediate_size=64 --parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=4"
    " --training.global_batch_size=16";
constexpr const char* traced = " --profiling.first_step=2 --profiling.last_step=3";

TEST_F(DiagnoseCommand, FindsRootOnlyUnitsOfAHybridUnderAnyResidency) {
  for (const char* residency : {"", " --shard.residency=auto --shard.memory_budget=8MiB",
                                " --shard.residency=auto --shard.memory_budget=2MiB", " --hardware.memory=1GiB"}) {
    std::filesystem::remove_all(folder_ / "out");
    const auto trained = weft(std::string("train run.toml --shard.wrap=root") + hybrid + traced + residency);
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
    const auto text = weft("diagnose out/tiny");
    EXPECT_EQ(text.exit_code, 0) << text.messages;
    EXPECT_NE(text.output.find("root_only_units: all blocks of a stage are gathered in one unit, stage.0.root:"),
              std::string::npos)
        << residency << text.output;
    EXPECT_NE(text.output.find("change    shard.wrap = \"block\""), std::string::npos) << text.output;
    const SortedJson diagnosis = SortedJson::parse(weft("diagnose out/tiny --json").output);
    for (const SortedJson& finding : diagnosis.at("findings")) {
      if (finding.at("rule") != "root_only_units") continue;
      EXPECT_TRUE(finding.at("step").is_null()) << "nothing is gathered beside computation on the CPU: " << finding;
    }
  }
}

// On the CPU lanes take turns: a gather that starts earlier hides behind nothing, so nothing is claimed.
TEST_F(DiagnoseCommand, ClaimsNothingForLateGathersOnTheCpu) {
  for (const char* stack : {hybrid, " --model.layers=d*2 --parallelism.expert=1 --parallelism.pipeline=1"}) {
    std::filesystem::remove_all(folder_ / "out");
    const auto trained = weft(std::string("train run.toml --shard.lookahead=0") + stack + traced);
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
    EXPECT_FALSE(has_finding(SortedJson::parse(weft("diagnose out/tiny --json").output), "lookahead_off"));
    const auto text = weft("diagnose out/tiny");
    EXPECT_NE(text.output.find("the lanes of this device take turns"), std::string::npos) << text.output;
  }
}

// A time is one of the traces, or says that it was modelled, and of which hardware.
TEST_F(DiagnoseCommand, SaysOfEachCostWhereItComesFrom) {
  for (const bool has_traces : {true, false}) {
    std::filesystem::remove_all(folder_ / "out");
    const auto trained =
        weft(std::string("train run.toml --precision.compute=float32") + hybrid + (has_traces ? traced : ""));
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
    ASSERT_EQ(std::filesystem::exists(folder_ / "out/tiny/trace_rank0.json"), has_traces);
    const auto text = weft("diagnose out/tiny");
    const std::string words = has_traces
                                  ? "; measured: computation of rank "
                                  : "; modelled: latencies and bytes on the links of cpu, one call after the other";
    const std::size_t found = text.output.find("gathers_in_fp32: ");
    ASSERT_NE(found, std::string::npos) << text.output;
    EXPECT_NE(text.output.find(words, found), std::string::npos) << text.output;
  }
}

TEST_F(DiagnoseCommand, RefusesWhatIsNoRun) {
  const auto missing = weft("diagnose nowhere");
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_EQ(missing.messages, "nowhere is no directory; name the run.directory of a run\n");
  EXPECT_EQ(missing.output, "");
  EXPECT_EQ(weft("diagnose .").messages, ". is not the directory of a run: it has no config.toml\n");
  EXPECT_EQ(weft("diagnose").exit_code, 2);
  EXPECT_EQ(weft("diagnose . --nonsense").exit_code, 2);
  ASSERT_EQ(weft(std::string("train run.toml ") + one_rank).exit_code, 0);
  const auto hardware = weft("diagnose out/tiny --hardware abacus");
  EXPECT_EQ(hardware.exit_code, 2);
  EXPECT_NE(hardware.messages.find("hardware abacus is not known"), std::string::npos);
}

}  // namespace
}  // namespace weft
