// `weft units` against sizes derived by hand, mostly from configs/quickstart.toml. That has 2 stages x 2 data ranks x
// 2 tensor ranks, blocks "d e" and "e e", 8 microbatches of 128 tokens, 128 wide.
#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class UnitsCommand : public ProgramTest {
 protected:
  ProgramResult quickstart(const std::string& command) const {
    const auto result = weft(command + " '" WEFT_SOURCE_DIR "/configs/quickstart.toml'");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(result.messages, "");
    return result;
  }
};

struct Unit {
  const char* name;
  const char* family;
  int stage;
  std::int64_t parameters;  // of one tensor and expert rank
  std::int64_t padding;     // so that shards cut between rows
  const char* group;
  const char* placement;
};

// Per tensor rank, attention has 64 x 128 for queries, twice 32 x 128 for keys and values, and 128 x 64 for the
// output. Its norms are whole: 128 for the block, twice 16 for heads, 128 before the MLP or the experts. That makes
// 24,576 + 288. The dense MLP adds 3 x 192 x 128. An expert rank has 4 experts of 3 x 128 x 128. Norms come first in
// the buffer and are padded up to the next row of 128: 288 to 384. Then the buffer is padded to two shards of whole
// rows. 24,960 = 195 rows become 196, 98,688 = 771 rows become 772, and the head's 129 rows become 130.
const std::vector<Unit> quickstart_units = {
    {"embedding", "embedding", 0, 128 * 128, 0, "dp_shard", "sharded"},
    {"blocks.0.dense", "dense", 0, 24576 + 288 + 3 * 192 * 128, 224, "dp_shard", "sharded"},
    {"blocks.1.dense", "dense", 0, 24576 + 288, 224, "dp_shard", "sharded"},
    {"blocks.1.experts", "experts", 0, 4 * 3 * 128 * 128, 0, "edp_shard", "sharded"},
    {"stage.0.routing", "routing", 0, 8 * 128, 0, "tokens", "replicated"},
    {"blocks.2.dense", "dense", 1, 24576 + 288, 224, "dp_shard", "sharded"},
    {"blocks.2.experts", "experts", 1, 4 * 3 * 128 * 128, 0, "edp_shard", "sharded"},
    {"blocks.3.dense", "dense", 1, 24576 + 288, 224, "dp_shard", "sharded"},
    {"blocks.3.experts", "experts", 1, 4 * 3 * 128 * 128, 0, "edp_shard", "sharded"},
    {"head", "head", 1, 128 * 128 + 128, 128, "dp_shard", "sharded"},
    {"stage.1.routing", "routing", 1, 2 * 8 * 128, 0, "tokens", "replicated"},
};

TEST_F(UnitsCommand, JsonOfQuickstart) {
  const Json units = Json::parse(quickstart("units --json").output);
  ASSERT_EQ(units["units"].size(), quickstart_units.size());
  for (std::size_t u = 0; u < quickstart_units.size(); ++u) {
    const Unit& expected = quickstart_units[u];
    const Json& unit = units["units"][u];
    SCOPED_TRACE(expected.name);
    EXPECT_EQ(unit["name"], expected.name);
    EXPECT_EQ(unit["family"], expected.family);
    EXPECT_EQ(unit["stage"], expected.stage);
    EXPECT_EQ(unit["parameters"], expected.parameters);
    EXPECT_EQ(unit["padding"], expected.padding);
    EXPECT_EQ(unit["bytes"], 4 * (expected.parameters + expected.padding));
    EXPECT_EQ(unit["group"], expected.group);
    EXPECT_EQ(unit["placement"], expected.placement);
    EXPECT_FALSE(unit["policy"].get<std::string>().empty());
    EXPECT_FALSE(unit["why"].get<std::string>().empty());
  }
}

TEST_F(UnitsCommand, TextHasALineForEachUnit) {
  const auto text = quickstart("units").output;
  for (const Unit& unit : quickstart_units)
    EXPECT_NE(text.find(std::string("\n") + unit.name + " "), std::string::npos);
  std::int64_t units = 0, parameters = 0, padding = 0;
  for (const Unit& unit : quickstart_units) {
    if (std::string(unit.placement) == "replicated") continue;
    ++units;
    parameters += unit.parameters;
    padding += unit.padding;
  }
  const std::string total = std::to_string(units) + " sharded units of " + std::to_string(parameters) +
                            " parameters and " + std::to_string(padding) + " elements of padding (0.129 %)\n";
  EXPECT_TRUE(text.ends_with(total)) << text.substr(text.size() - total.size());
}

TEST_F(UnitsCommand, WholeUnitsAreReplicated) {
  const Json document = Json::parse(quickstart("units --json --shard.strategy=no_shard").output);
  ASSERT_EQ(document["units"].size(), quickstart_units.size());
  for (const Json& unit : document["units"]) {
    EXPECT_EQ(unit["placement"], "replicated") << unit["name"];
  }
}

// 4 shard ranks x 2 replicas, hidden 16: everything a policy can say differs from the default somewhere.
constexpr const char* telling_run = R"([model]
layers = "d e"
vocab_size = 256
hidden_size = 16
intermediate_size = 32
num_attention_heads = 2
num_key_value_heads = 2
head_dim = 8
[model.moe]
num_experts = 4
num_experts_per_tok = 2
moe_intermediate_size = 8
router_aux_loss_coef = 0.01
[parallelism]
data_replicate = 2
data_shard = 4
[shard]
residency = "keep_after_forward"
[shard.dense]
residency = 2
lookahead = 3
reduction = "every 2"
wrap = "half_block"
[shard.experts]
accumulation = "sharded"
[precision]
compute = "bfloat16"
[precision.dense]
reduction = "bfloat16"
[precision.head]
parameters = "bfloat16"
[training]
global_batch_size = 32
frozen = ["embedding"]
[optimizer]
name = "muon"
[data]
train = ["text.txt"]
)";

std::map<std::string, Json> units_by_name(const std::string& text) {
  std::map<std::string, Json> units;
  const Json document = Json::parse(text);
  for (const Json& unit : document["units"]) units[unit["name"]] = unit;
  return units;
}

TEST_F(UnitsCommand, JsonTellsTheWholePolicy) {
  put("run.toml", telling_run);
  const auto result = weft("units run.toml --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  auto units = units_by_name(result.output);
  const auto field = [&](const char* unit, const char* key) { return units.at(unit)[key]; };

  const char* dense = "blocks.0.attention";
  EXPECT_EQ(field(dense, "policy"), "sharded over 4, residency island 2, lookahead 3, reduction every 2");
  EXPECT_EQ(field(dense, "residency"), "island 2");
  EXPECT_EQ(field(dense, "lookahead"), 3);
  EXPECT_EQ(field(dense, "reduction"), "every 2");
  EXPECT_EQ(field(dense, "accumulation"), "unsharded");
  EXPECT_EQ(field(dense, "wrap"), "half_block");
  EXPECT_EQ(field(dense, "frozen"), false);
  EXPECT_EQ(field(dense, "precision"),
            Json::parse(R"({"parameters": "float32", "compute": "bfloat16", "reduction": "bfloat16"})"));
  // Matrices by muon; vectors, which are none, by adamw.
  EXPECT_EQ(field(dense, "optimizer"), Json::parse(R"({"dense": "muon", "vectors": "adamw"})"));
  // Four matrices of 16 x 16 and a norm of 16, and norms of 8 for query and key heads: 32 numbers in front. The 66
  // rows of 16 become 68 for four shards: 1,088 elements of 2 bytes. A replica holds a quarter.
  EXPECT_EQ(field(dense, "parameters"), 4 * 256 + 32);
  EXPECT_EQ(field(dense, "moves"), Json::parse(R"([
      {"during": "UNSHARD", "operation": "all_gather", "group": "dp_shard", "bytes": 2176},
      {"during": "UNSHARD_SECONDARY", "operation": "all_gather", "group": "dp_island", "bytes": 2176},
      {"during": "REDUCE_GRAD", "operation": "reduce_scatter", "group": "dp_shard", "bytes": 2176},
      {"during": "REDUCE_GRAD", "operation": "all_reduce", "group": "dp_replicate", "bytes": 544}])"));

  const char* experts = "blocks.1.experts";
  EXPECT_EQ(field(experts, "accumulation"), "sharded");
  EXPECT_EQ(field(experts, "residency"), "keep_after_forward");
  EXPECT_EQ(field(experts, "optimizer"), Json::parse(R"({"experts": "muon"})"));
  // 4 x 3 x 8 x 16 elements: gathered in 2 bytes, reduced in 4, each microbatch over the shards alone.
  EXPECT_EQ(field(experts, "moves"), Json::parse(R"([
      {"during": "UNSHARD", "operation": "all_gather", "group": "edp_shard", "bytes": 3072},
      {"during": "SCATTER_GRAD", "operation": "reduce_scatter", "group": "edp_shard", "bytes": 6144},
      {"during": "REDUCE_GRAD", "operation": "reduce_scatter", "group": "edp_shard", "bytes": 6144},
      {"during": "REDUCE_GRAD", "operation": "all_reduce", "group": "edp_replicate", "bytes": 1536}])"));

  EXPECT_EQ(field("embedding", "frozen"), true);
  EXPECT_EQ(field("embedding", "reduction"), nullptr);
  EXPECT_EQ(field("embedding", "optimizer"), Json::object());
  EXPECT_EQ(field("embedding", "moves").size(), 1u);
  // 256 x 16 and the norm in two bytes an element: 257 rows up to 260.
  EXPECT_EQ(field("head", "bytes"), 2 * 260 * 16);

  EXPECT_EQ(field("stage.0.routing", "residency"), nullptr);
  EXPECT_EQ(field("stage.0.routing", "wrap"), nullptr);
  EXPECT_EQ(field("stage.0.routing", "moves"), Json::parse(R"([
      {"during": "REDUCE_GRAD", "operation": "all_reduce", "group": "tokens", "bytes": 256}])"));

  // The two reasons: why they travel together and why they stay.
  EXPECT_NE(field(dense, "why").get<std::string>().find("segment blocks.0.attention alone"), std::string::npos);
  EXPECT_NE(field(dense, "why_kept").get<std::string>().find("2 neighbours keep it"), std::string::npos);
  const std::string text = weft("units run.toml").output;
  for (const auto& [name, unit] : units) {
    for (const char* key : {"why", "why_kept", "policy"}) {
      EXPECT_NE(text.find("  " + unit[key].get<std::string>() + "\n"), std::string::npos) << name << " " << key;
    }
  }
}

// Quickstart leaves accumulation to full_shard, which adds up in shards. Written, "unsharded" scatters nothing.
TEST_F(UnitsCommand, AccumulationThatIsWrittenWins) {
  for (auto& [name, unit] : units_by_name(quickstart("units --json").output)) {
    EXPECT_EQ(unit["accumulation"], unit["family"] == "routing" ? "unsharded" : "sharded") << name;
  }
  const auto written =
      weft("units --json --shard.accumulation=unsharded '" WEFT_SOURCE_DIR "/configs/quickstart.toml'");
  ASSERT_EQ(written.exit_code, 0) << written.messages;
  EXPECT_NE(written.messages.find("full_shard keeps whole float32 gradients"), std::string::npos) << written.messages;
  for (auto& [name, unit] : units_by_name(written.output)) {
    EXPECT_EQ(unit["accumulation"], "unsharded") << name;
    for (const Json& move : unit["moves"]) EXPECT_NE(move["during"], "SCATTER_GRAD") << name;
  }
}

// Biases have a number for each expert of a stage's routers, on every rank, and no message.
TEST_F(UnitsCommand, NamesTheHelpersOfRouters) {
  put("run.toml", telling_run);
  const auto result = weft("units run.toml --json --model.moe.selection_bias=true");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json units = Json::parse(result.output).at("units");
  const auto helpers = std::ranges::find_if(units, [](const Json& unit) { return unit["name"] == "stage.0.helpers"; });
  ASSERT_NE(helpers, units.end());
  EXPECT_EQ((*helpers)["family"], "helpers");
  EXPECT_EQ((*helpers)["moves"], Json::array());
  EXPECT_EQ((*helpers)["optimizer"], Json::object());
  EXPECT_EQ((*helpers)["policy"], "without gradient");
  EXPECT_NE((*helpers)["why_kept"].get<std::string>().find("by the counts of a step"), std::string::npos);
}

TEST_F(UnitsCommand, WhatIsOnlyForDiagnosisIsSaidOnStandardError) {
  put("run.toml", telling_run);
  put("text.txt", std::string(4096, 'w'));
  const std::string wrapped =
      " run.toml --shard.dense.wrap=root --shard.root.residency=2 --shard.root.lookahead=3 "
      "'--shard.root.reduction=\"every 2\"' --precision.root.reduction=bfloat16";
  for (const char* command : {"check", "units", "units --json", "program --rank 0"}) {
    const auto result = weft(command + wrapped);
    ASSERT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_TRUE(result.messages.starts_with("weft: warning: wrap \"root\" for dense: ")) << result.messages;
    EXPECT_EQ(result.output.find("warning:"), std::string::npos);
    EXPECT_EQ(weft(command + std::string(" run.toml")).messages, "");
  }
  // A model without experts hears nothing of them.
  put("experts.toml", "include = [\"run.toml\"]\n[shard.experts]\nwrap = \"root\"\n");
  const auto result = weft("check experts.toml --model.layers=d --parallelism.expert=1");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(result.messages, "");
  EXPECT_NE(weft("check run.toml --shard.experts.wrap=root").messages.find("expert banks of all blocks"),
            std::string::npos);
}

// Of the embedding each of two tensor ranks has 128 rows, cut in two shards: rank 0 and, next in dp_shard, rank 2. The
// others hold the same rows of the second half. Norms are whole on both tensor ranks.
TEST_F(UnitsCommand, OwnersOfQuickstart) {
  const Json document = Json::parse(quickstart("units --owners --json").output);
  EXPECT_EQ(document["faults"], Json::array());
  std::map<int, std::int64_t> embedding_begins;
  std::map<std::string, std::int64_t> elements;  // in the first copy
  for (const Json& owner : document["owners"]) {
    const std::string name = owner["parameter"];
    const std::int64_t rows = owner["rows"], columns = owner["columns"];
    if (owner["replica"] == 0) elements[name] += rows * columns;
    EXPECT_EQ(owner["optimizer"], "adamw");
    if (name != "embedding.weight") continue;
    EXPECT_EQ(rows, 64);
    EXPECT_EQ(owner["group"], "dp_shard");
    embedding_begins[owner["rank"]] = owner["row_begin"];
  }
  EXPECT_EQ(embedding_begins, (std::map<int, std::int64_t>{{0, 0}, {2, 64}, {1, 128}, {3, 192}}));
  std::int64_t all = 0;
  for (const auto& [name, count] : elements) all += count;
  EXPECT_EQ(all, 1593600);  // what the banner of a run says the model has

  const std::string text = quickstart("units --owners").output;
  EXPECT_TRUE(text.starts_with("parameter ")) << text.substr(0, 80);
  EXPECT_TRUE(text.ends_with("\nevery element of " + std::to_string(elements.size()) +
                             " parameters, 1593600 elements, is owned exactly once in each of their replicas\n"))
      << text.substr(text.size() - 200);
}

// Units, walk and plan say the same of each pipeline rank.
TEST_F(UnitsCommand, ByteStepsAddUpToThoseOfTheRank) {
  put("run.toml", small_run);
  const std::string words = " run.toml --json --shard.residency=reshard_after_use --shard.reduction=last_microbatch";
  const Json units = Json::parse(weft("units" + words).output)["units"];
  const Json planned = Json::parse(weft("plan --hardware cpu" + words).output)["ranks"];
  std::map<int, std::map<std::string, std::int64_t>> sums;  // by stage
  for (const Json& unit : units) {
    for (const auto& [kind, byte_steps] : unit["byte_steps"].items()) {
      sums[unit["stage"]][kind] += byte_steps.get<std::int64_t>();
    }
  }
  ASSERT_EQ(sums.size(), 2u);
  for (const auto& [stage, sum] : sums) {
    const Json walked = Json::parse(weft("walk --rank " + std::to_string(stage) + words).output)["strategies"][0];
    const auto rank = std::ranges::find_if(planned, [&](const Json& each) { return each["rank"] == walked["rank"]; });
    ASSERT_NE(rank, planned.end());
    for (const auto& [kind, byte_steps] : sum) {
      EXPECT_EQ(walked["summary"]["byte_steps"][kind], byte_steps) << stage << " " << kind;
      EXPECT_EQ((*rank)["byte_steps"][kind], byte_steps) << stage << " " << kind;
    }
    EXPECT_GT(sum.at("unsharded_parameters"), 0);
    EXPECT_GT(sum.at("unsharded_gradients"), 0);
  }
  const std::string text = weft("units run.toml").output;
  EXPECT_NE(text.find(" MiB x computing actions of full parameters, "), std::string::npos) << text;
}

TEST_F(UnitsCommand, WrongRequestsEndWithTwo) {
  put("run.toml", small_run);
  for (const char* arguments : {"units", "units gone.toml", "units run.toml --fast", "units --owners"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_NE(result.messages, "") << arguments;
  }
}

}  // namespace
}  // namespace weft
