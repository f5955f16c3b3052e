// `weft plan`: the document that scripts rely on says what the library says, presets have the published numbers, and
// what cannot be planned is refused with what would do.
#include <nlohmann/json.hpp>

#include "tests/tools/program.h"
#include "trainer/config/config_reader.h"
#include "trainer/planning/run_plan.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using PlanCommand = ProgramTest;

const std::string llama = WEFT_SOURCE_DIR "/configs/plan_llama3_8b.toml";

TEST_F(PlanCommand, PrintsTheJsonOfThePlan) {
  const auto result = weft("plan '" + llama + "' --hardware h100 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json json = Json::parse(result.output);
  const RunPlan plan = plan_run(read_config(llama).config, find_hardware("h100"));
  EXPECT_EQ(json["parameters_total"], 8'030'261'248);
  EXPECT_EQ(json["parameters_active"], 8'030'261'248);
  EXPECT_EQ(json["flops_per_token"].get<double>(), plan.flops_per_token);
  EXPECT_EQ(json["step_seconds"].get<double>(), plan.time.seconds);
  EXPECT_EQ(json["bubble"].get<double>(), plan.time.bubble);
  EXPECT_EQ(json["verdict"], name_of(plan.verdict.fit));
  ASSERT_EQ(json["ranks"].size(), plan.ranks.size());
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const Json& rank = json["ranks"][r];
    const RankPlan& planned = plan.ranks[r];
    EXPECT_EQ(rank["rank"], planned.ranks.first);
    EXPECT_EQ(rank["peak_bytes"], planned.peak.total());
    EXPECT_EQ(rank["peak_action"], planned.peak_action);
    std::int64_t buckets = 0, live = 0;
    for (const auto& [name, bytes] : rank["buckets"].items()) buckets += bytes.get<std::int64_t>();
    for (const Json& item : rank["live"]) live += item["bytes"].get<std::int64_t>();
    EXPECT_EQ(buckets, planned.peak.total());
    EXPECT_EQ(live, planned.peak.total());
  }
  ASSERT_EQ(json["communication"].size(), plan.communication.size());
  for (std::size_t i = 0; i < plan.communication.size(); ++i) {
    const Json& traffic = json["communication"][i];
    EXPECT_EQ(traffic["group"], plan.communication[i].group);
    EXPECT_EQ(traffic["operation"], name_of(plan.communication[i].op));
    EXPECT_EQ(traffic["count"], plan.communication[i].all.count);
    EXPECT_EQ(traffic["bytes"], plan.communication[i].all.bytes);
  }
}

TEST_F(PlanCommand, PrintsWhatIsLiveAndAVerdict) {
  const auto result = weft("plan '" + llama + "' --hardware a100-40gb");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  for (const char* part : {"8,030,261,248 parameters", "verdict    does not fit", "activations decides",
                           "memory at the peak", "live on rank 0 at", "communication of a step", "GiB out of a node"}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << part << " in\n" << result.output;
  }
}

// Stages without blocks have no block to cost.
TEST_F(PlanCommand, PlansStagesWithoutBlocks) {
  put("empty.toml", std::string(small_run) + "");
  for (const std::string layers : {"d", "d e d e d e"}) {
    const std::string layout = layers == "d" ? "Ed||L" : "Edede||deL";
    const std::string words = " empty.toml --model.layers='" + layers +
                              "' --parallelism.pipeline=3 --pipeline.layout='" + layout +
                              "' --parallelism.data_shard=1 --parallelism.tensor=1 --parallelism.expert=1";
    for (const char* command : {"plan", "layout simulate"}) {
      const auto result = weft(command + words + " --hardware h100");
      EXPECT_EQ(result.exit_code, 0) << command << words << "\n" << result.messages;
    }
  }
}

TEST_F(PlanCommand, RefusesWhatCannotBePlanned) {
  const auto card = weft("plan '" + llama + "' --hardware h10");
  EXPECT_EQ(card.exit_code, 2);
  EXPECT_NE(card.messages.find("h100"), std::string::npos) << card.messages;
  const auto topology = weft("plan '" + llama + "' --parallelism.pipeline=3 --parallelism.data_shard=4");
  EXPECT_EQ(topology.exit_code, 2);
  EXPECT_NE(topology.messages.find("12 ranks do not fill nodes of 8"), std::string::npos) << topology.messages;
  const auto heads = weft("plan '" + llama + "' --parallelism.tensor=3 --parallelism.data_shard=8");
  EXPECT_EQ(heads.exit_code, 2);
  EXPECT_NE(heads.messages.find("parallelism"), std::string::npos) << heads.messages;
  for (const auto& result : {card, topology, heads}) EXPECT_EQ(result.output, "");
}

}  // namespace
}  // namespace weft
