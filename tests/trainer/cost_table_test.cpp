#include "trainer/costs/cost_table.h"

#include <gtest/gtest.h>

#include "parallel/pipeline/simulation/simulate.h"
#include "parallel/runtime/error.h"
#include "parallel/runtime/input_file.h"
#include "parallel/runtime/random.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_cost_table(text, "costs.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(CostTable, ReadsTheTableOfItsPage) {
  const std::string page = read_whole_file(WEFT_SOURCE_DIR "/docs/profiling.md"), fence = "```toml\n";
  const std::size_t begin = page.find(fence) + fence.size();
  ASSERT_GE(begin, fence.size());
  const CostTable table = parse_cost_table(page.substr(begin, page.find("```", begin) - begin), "docs/profiling.md");
  EXPECT_EQ(table.segments.size(), 2u);
  EXPECT_EQ(table.units.at("*embedding"), (UnitCost{1e-3, 0.0, 0.0, 2e-3, 1e-3}));
  EXPECT_EQ(table.messages.at("*"), 1e-4);
  EXPECT_EQ(table.optimizer_step, 1e-3);
}

TEST(CostTable, ReadsEveryWayToWriteATable) {
  const CostTable table = parse_cost_table(R"(
[segments]
attention = { forward = 1e-3, backward_input = 2e-3, backward_weight = 1e-3 }
"blocks.0.*" = { forward = 3 }
[units]
"blocks.*" = { gather = 1e-3, reduce = 2e-3 }
[units."head"]
island_gather = 0.5
scatter = 0.25
[messages]
"*" = 1e-4
[links]
dp_shard = { latency = 1e-5, bytes_per_second = 1e11 }
[update]
gradient_norm = 1e-4
optimizer_step = 1e-3
)",
                                           "costs.toml");
  CostTable expected;
  expected.segments = {{"attention", {1e-3, 2e-3, 1e-3}}, {"blocks.0.*", {3.0, 0.0, 0.0}}};
  expected.units = {{"blocks.*", {1e-3, 0.0, 0.0, 2e-3}}, {"head", {0.0, 0.5, 0.25, 0.0}}};
  expected.messages = {{"*", 1e-4}};
  expected.links = {{Group::dp_shard, {1e-5, 1e11}}};
  expected.gradient_norm = 1e-4;
  expected.optimizer_step = 1e-3;
  EXPECT_EQ(table, expected);
}

TEST(CostTable, ReadsBackWhatItWrote) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const RandomStream random(seed, "cost tables");
    std::uint64_t next = 0;
    const auto seconds = [&] { return random.uniform(next++) * 1e-3; };
    CostTable table;
    for (const char* name : {"embedding", "attention", "blocks.3.mlp", "blocks.*.experts", "*", "a \"b\" \\ c"}) {
      table.segments[name] = {seconds(), seconds(), seconds()};
      table.units[name] = {seconds(), seconds(), seconds(), seconds(), table.units.size() % 2 == 0 ? 0.0 : seconds()};
    }
    for (int stage = 0; stage < 3; ++stage) table.messages[std::to_string(stage)] = seconds();
    for (Group group : {Group::dp_shard, Group::pp, Group::dp_island})
      table.links[group] = {seconds(), 1e14 * seconds()};
    table.gradient_norm = seconds();
    table.optimizer_step = seconds();
    EXPECT_EQ(parse_cost_table(to_toml(table), "written"), table) << to_toml(table);
  }
  EXPECT_EQ(parse_cost_table(to_toml({}), "written"), CostTable{});
}

TEST(CostTable, FaultsHaveTheirPlaceAndAreReportedAtOnce) {
  EXPECT_EQ(
      refusal("[segments]\nattention = { forward = \"slow\" }\n[unit]\nhead = 1\n"),
      "costs.toml:2:25: error: segments.attention.forward: expected a number not below 0, got the string "
      "\"slow\"\n"
      "  2 | attention = { forward = \"slow\" }\n"
      "    |                         ^~~~~~\n"
      "costs.toml:3:2: error: unknown section unit; a cost table has segments, units, messages, links and update\n"
      "  3 | [unit]\n"
      "    |  ^~~~");
  EXPECT_TRUE(refusal("[segments]\nmlp = { foward = 1 }")
                  .find("costs.toml:2:9: error: unknown key segments.mlp.foward; "
                        "one of forward, backward_input, backward_weight") == 0);
  EXPECT_TRUE(refusal("[units]\nhead = 3").find("costs.toml:2:8: error: units.head: expected a table with gather") ==
              0);
  EXPECT_TRUE(
      refusal("[messages]\n0 = -1.0").find("costs.toml:2:5: error: messages.0: expected a number not below 0") == 0);
  EXPECT_TRUE(refusal("[messages]\n0 = nan").find("costs.toml:2:5: error: messages.0: expected a number not below 0") ==
              0);
  EXPECT_TRUE(refusal("[links]\nmoon = { latency = 1 }").find("costs.toml:2:1: error: moon is no group of ranks") == 0);
  EXPECT_TRUE(refusal("[links]\npp = { latency = 1 }")
                  .find("costs.toml:2:1: error: links.pp has no bytes_per_second above 0") == 0);
  EXPECT_TRUE(refusal("[update]\nnorm = 1").find("costs.toml:2:1: error: unknown key update.norm") == 0);
  EXPECT_TRUE(refusal("segments = 3").find("costs.toml:1:12: error: segments is a section") == 0);
  EXPECT_TRUE(refusal("[segments\n").find("costs.toml:1:") == 0);
}

ProgramTables named_tables() {
  ProgramTables tables;
  tables.stages = {{.rank = 0, .segments = {0, 1, 2, 3}, .output_bytes = 100}, {.rank = 1}};
  const std::pair<const char*, PartKind> segments[] = {{"embedding", PartKind::embedding},
                                                       {"blocks.0.attention", PartKind::attention},
                                                       {"blocks.10.attention", PartKind::attention},
                                                       {"blocks.0.mlp", PartKind::mlp}};
  for (const auto& [name, kind] : segments) tables.segments.push_back({.name = name, .part = {.kind = kind}});
  return tables;
}

// A stage without blocks takes no time, unless a name, pattern or kind says so.
TEST(CostTable, SaysNothingOfPassages) {
  ProgramTables tables = named_tables();
  tables.segments.push_back({.name = "stage.1.passage", .part = {.kind = PartKind::passage}});
  CostTable table;
  table.messages["*"] = 1.0;
  table.segments = {{"embedding", {1.0}}, {"attention", {2.0}}, {"mlp", {3.0}}};
  EXPECT_EQ(table_costs(table, tables, {}).segments.back(), ComputeCost{});
  table.segments["passage"] = {4.0};
  EXPECT_EQ(table_costs(table, tables, {}).segments.back().forward, 4.0);
}

// What fits best is taken, in whichever order it was written.
TEST(CostTable, TheNameComesBeforePatternsAndTheyBeforeKinds) {
  CostTable table;
  table.messages["*"] = 1.0;
  const auto forward_of = [&](std::size_t segment) {
    return table_costs(table, named_tables(), {}).segments[segment].forward;
  };
  table.segments = {{"*", {1.0}}, {"embedding", {2.0}}};
  EXPECT_EQ(forward_of(0), 2.0);
  EXPECT_EQ(forward_of(1), 1.0);
  table.segments = {{"attention", {3.0}}, {"mlp", {4.0}}, {"embedding", {5.0}}};
  EXPECT_EQ(forward_of(0), 5.0);
  EXPECT_EQ(forward_of(1), 3.0);
  EXPECT_EQ(forward_of(2), 3.0);
  EXPECT_EQ(forward_of(3), 4.0);
  table.segments["blocks.*"] = {6.0};
  table.segments["blocks.1*.attention"] = {7.0};
  table.segments["blocks.0.mlp"] = {8.0};
  EXPECT_EQ(forward_of(1), 6.0);
  EXPECT_EQ(forward_of(2), 7.0);
  EXPECT_EQ(forward_of(3), 8.0);
}

std::string table_refusal(const CostTable& table) {
  try {
    table_costs(table, named_tables(), {});
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  return "accepted";
}

TEST(CostTable, SaysWhatIsMissingOrSaidTwice) {
  CostTable table;
  table.segments = {{"embedding", {1.0}}, {"attention", {1.0}}};
  EXPECT_EQ(table_refusal(table), "costs: nothing is said of segment blocks.0.mlp");
  table.segments["blocks.*.mlp"] = {1.0};
  EXPECT_EQ(table_refusal(table), "costs: nothing is said of messages from stage 0");
  table.links[Group::pp] = {1.0, 50.0};
  EXPECT_EQ(table_refusal(table), "accepted");
  EXPECT_EQ(table_costs(table, named_tables(), {}).transfers, (std::vector{3.0, 0.0}));
  table.segments["*s.0.mlp"] = table.segments["blocks.0*"] = {1.0};
  EXPECT_EQ(table_refusal(table), "accepted");  // twice the same
  table.segments["*locks.0.mlp"] = {2.0};
  EXPECT_EQ(table_refusal(table),
            "costs: \"*locks.0.mlp\" and \"blocks.*.mlp\" fit segment blocks.0.mlp alike and say different things");
}

// A table that names the kinds and links serves any layout of the model.
TEST(CostTable, ServesARunsProgram) {
  const Config config = config_of({.layers = "de", .degrees = {.pipeline = 2, .data_shard = 2, .expert = 2}});
  const Mesh mesh(config.parallelism);
  CostTable table;
  for (const char* kind : {"embedding", "attention", "mlp", "experts", "head"}) table.segments[kind] = {1.0, 1.0, 1.0};
  for (Group group : all_groups) table.links[group] = {0.0, 1e6};
  const Program program = step_program(ResolvedRun(config), {});
  const ProgramCosts costs = table_costs(table, program, group_sizes(mesh));
  for (const ComputeCost& cost : costs.segments) EXPECT_EQ(cost, (ComputeCost{1.0, 1.0, 1.0}));
  double gathers = 0.0;
  for (const UnitCost& cost : costs.units) gathers += cost.gather;
  EXPECT_GT(gathers, 0.0);
  EXPECT_GT(simulate(program, costs).seconds, 0.0);
}

}  // namespace
}  // namespace weft
