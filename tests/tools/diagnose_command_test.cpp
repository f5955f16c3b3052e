// `weft diagnose` on runs of the program itself: what it prints, its JSON and its exit codes.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using Json = nlohmann::json;

using DiagnoseCommand = TinyTraining;

constexpr const char* one_rank =
    "--parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.expert=1";

bool has_finding(const Json& diagnosis, const std::string& rule) {
  const auto& findings = diagnosis.at("findings");
  return std::any_of(findings.begin(), findings.end(), [&](const Json& finding) { return finding.at("rule") == rule; });
}

TEST_F(DiagnoseCommand, NamesAFaultWithEvidenceAndChange) {
  ASSERT_EQ(weft("train run.toml --precision.compute=float32").exit_code, 0);
  const auto text = weft("diagnose out/tiny");
  EXPECT_EQ(text.exit_code, 0) << text.messages;
  EXPECT_NE(text.output.find("gathers_in_fp32: parameters travel in float32"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("measured  bytes of a gathered parameter: 4.00 (metrics.jsonl)"), std::string::npos);
  EXPECT_NE(text.output.find("change    precision.compute = \"bfloat16\""), std::string::npos);
  const std::size_t unchecked = text.output.find("\nnot checked\n");
  ASSERT_NE(unchecked, std::string::npos) << text.output;
  EXPECT_NE(text.output.find("\n  slow_rank ", unchecked), std::string::npos) << text.output;

  const auto json = weft("diagnose out/tiny --json --strict");
  EXPECT_EQ(json.exit_code, 3);
  const Json diagnosis = Json::parse(json.output);
  EXPECT_FALSE(diagnosis.at("healthy"));
  EXPECT_TRUE(has_finding(diagnosis, "gathers_in_fp32"));
  EXPECT_EQ(diagnosis.at("rules").size(), 12u);
  EXPECT_EQ(diagnosis.at("memory").size(), 8u);
  EXPECT_EQ(diagnosis.at("memory")[7].at("buckets").size(), 10u);
}

TEST_F(DiagnoseCommand, SaysInOneLineThatARunIsHealthy) {
  ASSERT_EQ(weft(std::string("train run.toml ") + one_rank).exit_code, 0);
  const auto text = weft("diagnose out/tiny --strict");
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_NE(text.output.find("\nno fault found\n"), std::string::npos) << text.output;
  EXPECT_NE(text.output.find("checked, and right\n  root_only_units"), std::string::npos);
  const Json diagnosis = Json::parse(weft("diagnose out/tiny --json").output);
  EXPECT_TRUE(diagnosis.at("healthy"));
  EXPECT_TRUE(diagnosis.at("findings").empty());
}

// Other wraps of a run whose gathers are solved for are solved anew. A plan of other units broke the rules, and a list of
// broken rules was destroyed as one of another type.
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
