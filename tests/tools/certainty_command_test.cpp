// Every command that gives advice by modelled times says in one line how sure they are, as `weft bench published`
// measures it. Steps that are closer than that have one rank. Both hold in text and in JSON.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/eight_gpus.h"
#include "tests/tools/program.h"
#include "trainer/planning/published.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class CertaintyCommand : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    put("text", std::string(65536, 'a'));
    put("run.toml", eight_gpus);
  }

  // Standard output of a command that succeeds.
  std::string output(const std::string& arguments) const {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.messages;
    return result.output;
  }
};

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Ranks by hand, of entries with `seconds`.
void expect_ranks(const Json& entries, const std::string& seconds) {
  for (const Json& entry : entries) {
    if (!entry.contains(seconds)) continue;
    int rank = 1;
    for (const Json& other : entries) {
      rank += other.contains(seconds) &&
              other.at(seconds).get<double>() * model_error.apart <= entry.at(seconds).get<double>();
    }
    EXPECT_EQ(entry.at("rank"), rank) << entry;
  }
}

TEST_F(CertaintyCommand, ModelledTimesAreSaidToBe) {
  const std::string line = modelled_certainty(find_hardware("h100")).text;
  const std::string search = "plan run.toml --hardware h100 --search schedule=1f1b,zb_h1 pipeline=1,2 tensor=1,2";
  const std::string simulate = "layout simulate run.toml --hardware h100 --variant '--training.recompute=full'";
  EXPECT_EQ(count(output("plan run.toml --hardware h100"), "certainty  " + line + "\n"), 1);
  EXPECT_EQ(count(output("plan run.toml --hardware h100 --compare"), line + "\n"), 1);
  EXPECT_EQ(count(output(search), line + "\n"), 1);
  EXPECT_EQ(count(output(simulate), "certainty   " + line + "\n"), 2);
  EXPECT_EQ(count(output("layout sweep run.toml --hardware h100"), line + "\n"), 1);

  const Json plan = Json::parse(output("plan run.toml --hardware h100 --json"));
  EXPECT_EQ(plan.at("certainty"), line);
  EXPECT_EQ(plan.at("tie_factor"), model_error.apart);
  const Json compared = Json::parse(output("plan run.toml --hardware h100 --compare --json"));
  EXPECT_EQ(compared.at("certainty"), line);
  expect_ranks(compared.at("strategies"), "step_seconds");
  const Json found = Json::parse(output(search + " --json"));
  EXPECT_EQ(found.at("certainty"), line);
  EXPECT_GT(found.at("plans").size(), 1u);
  expect_ranks(found.at("plans"), "step_seconds");
  const Json simulated = Json::parse(output(simulate + " --json"));
  for (const Json& variant : simulated.at("variants")) EXPECT_EQ(variant.at("certainty"), line);
  expect_ranks(simulated.at("variants"), "seconds");
}

// One rank where the model cannot tell; another beyond its error.
TEST_F(CertaintyCommand, TiesShareARankInText) {
  const std::string small = output("layout simulate run.toml --hardware h100 --variant '--training.recompute=full'");
  EXPECT_EQ(count(small, "  1=  "), 2) << small;
  const std::string large =
      output("layout simulate run.toml --hardware h100 --variant '--training.sequence_length=65536'");
  EXPECT_EQ(count(large, "  1=  "), 0) << large;
}

TEST_F(CertaintyCommand, GivenCostsAreSaidToBe) {
  put("costs.toml", R"([segments]
"*" = { forward = 1e-3, backward_input = 1e-3, backward_weight = 1e-3 }
[units]
"*" = { gather = 1e-4, reduce = 1e-4 }
)");
  const std::string line = given_certainty("costs.toml").text;
  for (const std::string arguments :
       {"plan run.toml --hardware h100 --pipeline.costs=costs.toml",
        "layout simulate run.toml --pipeline.costs=costs.toml", "layout simulate run.toml --costs costs.toml",
        "layout sweep run.toml --costs costs.toml"}) {
    const std::string text = output(arguments);
    EXPECT_EQ(count(text, line + "\n"), 1) << text;
    EXPECT_EQ(count(text, "modelled: products"), 0) << text;
  }
  const Json json = Json::parse(output("plan run.toml --hardware h100 --pipeline.costs=costs.toml --json"));
  EXPECT_EQ(json.at("certainty"), line);
  EXPECT_EQ(json.at("tie_factor"), 1.0);
}

// Of the table that the repository has, the command prints what the line says.
TEST_F(CertaintyCommand, TheCommandMeasuresWhatTheLineSays) {
  const std::string file = WEFT_SOURCE_DIR "/configs/published/runs.toml";
  const Json json = Json::parse(output("bench published " + file + " --json"));
  EXPECT_EQ(static_cast<int>(json.at("runs").size()), model_error.runs);
  EXPECT_EQ(std::floor(1000.0 * json.at("least").get<double>()) / 1000.0, model_error.least);
  EXPECT_EQ(std::ceil(100.0 * json.at("most").get<double>()) / 100.0, model_error.most);
  EXPECT_EQ(std::ceil(10.0 * json.at("apart").get<double>()) / 10.0, model_error.apart);
  EXPECT_EQ(json.at("misordered"), model_error.misordered);
  EXPECT_EQ(json.at("pairs"), model_error.pairs);
}

// Timing that breaks the promise of full_shard is told where it is chosen, by all who read it.
TEST_F(CertaintyCommand, WhatFullShardKeepsWholeIsTold) {
  const std::string chosen = " --shard.residency=step --shard.reduction=last_microbatch --training.microbatch_size=1";
  for (const std::string command : {"plan run.toml --hardware h100", "units run.toml", "check run.toml"}) {
    const std::string said = weft(command + chosen).messages;
    EXPECT_EQ(count(said, "weft: warning: full_shard keeps full parameters from the first forward"), 1) << said;
    EXPECT_EQ(count(said, "weft: warning: full_shard keeps whole float32 gradients until the last"), 1) << said;
    EXPECT_EQ(count(weft(command).messages, "full_shard keeps"), 0) << command;
  }
  // Whatever is recommended is told with it: with one strategy and timing to find, these are recommended.
  const std::string found = output(
      "plan run.toml --hardware h100 --training.microbatch_size=1 --search schedule=1f1b pipeline=1 tensor=1 "
      "data_replicate=1 strategy=full_shard residency=step reduction=last_microbatch recompute=none microbatch_size=1");
  EXPECT_EQ(count(found, "\n  full_shard keeps full parameters"), 1) << found;
  EXPECT_EQ(count(found, "\n  full_shard keeps whole float32 gradients"), 1) << found;
}

}  // namespace
}  // namespace weft
