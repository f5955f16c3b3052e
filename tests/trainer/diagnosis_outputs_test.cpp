// The files behind a diagnosis. Missing, cut off files or those of another run are refused by name. Figures that a run
// did not write are said to be unchecked.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "parallel/runtime/error.h"
#include "tests/trainer/diagnosed_run.h"

namespace weft {
namespace {

const Overrides short_run = {"parallelism.data_shard=2", "training.global_batch_size=8", "model.layers=\"d\""};

std::string diagnosis_outputs_refusal(const std::filesystem::path& directory) {
  try {
    const RunOutputs run = read_run(directory);
    diagnose(gather_evidence(run));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

#define EXPECT_REFUSED(directory, words)                              \
  do {                                                                \
    const std::string message = diagnosis_outputs_refusal(directory); \
    EXPECT_NE(message.find(words), std::string::npos) << message;     \
  } while (false)

std::vector<std::string> unchecked_rules(const std::filesystem::path& directory) {
  const RunOutputs run = read_run(directory);
  std::vector<std::string> names;
  for (const RuleResult& result : diagnose(gather_evidence(run)).rules) {
    if (result.verdict.outcome == RuleVerdict::Outcome::unchecked) names.push_back(result.rule);
  }
  return names;
}

TEST(RunOutputs, AreReadBackAsTheyWereWritten) {
  const TemporaryFolder folder;
  leave_run(folder, short_run + mixture + Overrides{"precision.compute=\"float16\""});
  const RunOutputs run = read_run(folder.path());
  EXPECT_EQ(run.steps.size(), 5u);
  EXPECT_EQ(run.memory.size(), 2u);
  EXPECT_EQ(run.traces.size(), 2u);
  // Without the operations of the model, which follow from the configuration.
  const auto shown = [](const std::string& line) {
    auto json = nlohmann::ordered_json::parse(line);
    EXPECT_EQ(json.erase("tflops"), 1u);
    return json.dump() + "\n";
  };
  std::string read, written;
  for (const StepMetrics& step : run.steps) read += shown(to_json(step));
  std::istringstream lines(read_file(folder / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) written += shown(line);
  EXPECT_EQ(read, written);
}

TEST(RunOutputs, OfNoRunAreRefused) {
  const TemporaryFolder folder;
  EXPECT_REFUSED(folder / "nowhere", "nowhere is no directory; name the run.directory of a run");
  EXPECT_REFUSED(folder.path(), "is not the directory of a run: it has no config.toml");
  leave_run(folder, short_run);
  EXPECT_EQ(diagnosis_outputs_refusal(folder.path()), "accepted");
  std::filesystem::remove(folder / "metrics.jsonl");
  EXPECT_REFUSED(folder.path(), "it has no metrics.jsonl");
  write_file(folder / "metrics.jsonl", "");
  EXPECT_REFUSED(folder.path(), "metrics.jsonl holds no step");
}

TEST(RunOutputs, ThatAreDamagedAreRefusedWithTheirPlace) {
  const TemporaryFolder folder;
  leave_run(folder, short_run);
  const std::string metrics = read_file(folder / "metrics.jsonl"), summary = read_file(folder / "summary.json"),
                    trace = read_file(folder / "trace_rank1.json");
  const std::string first = metrics.substr(0, metrics.find('\n') + 1);

  write_file(folder / "metrics.jsonl", metrics.substr(0, metrics.size() - 20));
  EXPECT_REFUSED(folder.path(), "metrics.jsonl:5: the line is cut off");
  write_file(folder / "metrics.jsonl", first.substr(0, 40) + "\n" + metrics.substr(first.size()));
  EXPECT_REFUSED(folder.path(), "metrics.jsonl:1: not the metrics of a step");
  write_file(folder / "metrics.jsonl", first + "{\"step\": 2}\n");
  EXPECT_REFUSED(folder.path(), "metrics.jsonl:2: not the metrics of a step");
  write_file(folder / "metrics.jsonl", first + first);
  EXPECT_REFUSED(folder.path(), "metrics.jsonl:2: step 1 comes after step 1");
  std::string shouted = metrics;
  shouted.replace(shouted.find("all_gather"), 10, "ALL_GATHER");
  write_file(folder / "metrics.jsonl", shouted);
  EXPECT_REFUSED(folder.path(), "metrics.jsonl:1: \"ALL_GATHER\" is no operation that a run counts");
  write_file(folder / "metrics.jsonl", metrics);

  write_file(folder / "summary.json", summary.substr(0, 100));
  EXPECT_REFUSED(folder.path(), "summary.json is no summary of a run");
  auto one_rank = nlohmann::json::parse(summary);
  one_rank["ranks"].erase(1);
  write_file(folder / "summary.json", one_rank.dump());
  EXPECT_REFUSED(folder.path(), "summary.json has 1 ranks; those of config.toml are 2");
  write_file(folder / "summary.json", summary);

  write_file(folder / "trace_rank1.json", trace.substr(0, trace.size() / 2));
  EXPECT_REFUSED(folder.path(), "trace_rank1.json is no trace of a run");
  write_file(folder / "trace_rank1.json", trace);
  EXPECT_EQ(diagnosis_outputs_refusal(folder.path()), "accepted");
}

// A configuration that was changed after the run says other counts than the run has.
TEST(RunOutputs, OfAnotherConfigurationAreRefused) {
  const TemporaryFolder folder, other;
  leave_run(folder, short_run);
  leave_run(other, short_run + Overrides{"shard.wrap=\"half_block\""});
  const std::string own = read_file(folder / "config.toml");
  write_file(folder / "config.toml", read_file(other / "config.toml"));
  EXPECT_REFUSED(folder.path(), "it is not the configuration that this step ran with");
  write_file(folder / "config.toml", own);
  write_file(folder / "trace_rank0.json", read_file(other / "trace_rank0.json"));
  EXPECT_REFUSED(folder.path(), "the trace is of another configuration");
}

// A summary is of the configuration that wrote it: new steps are not held against that of an earlier part of the run.
TEST(RunOutputs, ASummaryOfAnEarlierPartIsNotChecked) {
  const TemporaryFolder folder, earlier;
  leave_run(folder, short_run);
  leave_run(earlier, short_run + Overrides{"shard.strategy=\"no_shard\""});
  write_file(folder / "summary.json", read_file(earlier / "summary.json"));
  const RunOutputs run = read_run(folder.path());
  EXPECT_TRUE(run.memory.empty());
  const Diagnosis diagnosis = diagnose(gather_evidence(run));
  const auto memory = std::ranges::find(diagnosis.rules, std::string("memory"), &RuleResult::rule);
  ASSERT_NE(memory, diagnosis.rules.end());
  EXPECT_EQ(memory->verdict.outcome, RuleVerdict::Outcome::unchecked);
  EXPECT_EQ(memory->verdict.note, "summary.json is of an earlier part of this run");
}

// A run that goes on with twice the sequences in a microbatch may gather and reduce as before.
TEST(RunOutputs, StepsOfAnotherConfigurationAreNotAveraged) {
  const TemporaryFolder folder;
  leave_run(folder, short_run);
  RunOutputs run = read_run(folder.path());
  ASSERT_EQ(run.steps.size(), 5u);
  run.steps[0].hashes = run.steps[3].hashes = RunHashes{"one", "list", "layout"};
  EXPECT_EQ(gather_evidence(run).steady.size(), 3u);
  run.steps[3].hashes->configuration = "other";
  EXPECT_EQ(gather_evidence(run).steady.size(), 1u);
}

// What decides by counters does so without traces and summary. What it costs is then modelled, or not known, and says
// so.
TEST(RunOutputs, ThatAreNotThereLeaveRulesUnchecked) {
  const TemporaryFolder folder;
  leave_run(folder, short_run + Overrides{"precision.compute=\"float32\"", "shard.lookahead=0",
                                          "profiling.first_step=0", "profiling.last_step=0"});
  std::filesystem::remove(folder / "summary.json");
  EXPECT_EQ(unchecked_rules(folder.path()), (std::vector<std::string>{"slow_rank", "memory"}));
  RunOutputs run = read_run(folder.path());
  retimed_on_own_lanes(run, {.name = "cpu"});
  const Diagnosis diagnosis = diagnose(gather_evidence(run));
  const auto found = [&](std::string_view rule) {
    return std::ranges::find(diagnosis.findings, rule, &DiagnosedFault::rule);
  };
  const auto late = found("lookahead_off"), whole = found("gathers_in_fp32");
  ASSERT_NE(late, diagnosis.findings.end());
  EXPECT_EQ(late->evidence.front().source, "config.toml");
  EXPECT_EQ(late->evidence.front().basis, Basis::predicted);
  EXPECT_FALSE(late->step);
  ASSERT_NE(whole, diagnosis.findings.end());
  ASSERT_TRUE(whole->step);
  EXPECT_EQ(whole->step->basis, Basis::modelled);
  EXPECT_NE(whole->step->source.find("links of cpu"), std::string::npos) << whole->step->source;
}

}  // namespace
}  // namespace weft
