// `weft layout simulate`: its figures against those of the library for the same configuration, against formulas where
// costs are even, and its pictures and refusals.
#include <nlohmann/json.hpp>

#include <algorithm>

#include "parallel/pipeline/simulation/simulate.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_training.h"
#include "trainer/costs/cost_table.h"
#include "trainer/costs/hardware.h"
#include "trainer/layout/stage_layout.h"
#include "trainer/measure/measured_costs.h"
#include "trainer/plan/stage_plan.h"
#include "trainer/planning/walk.h"
#include "trainer/rank/dry_run.h"
#include "trainer/resolve/config_reader.h"
#include "trainer/resolve/resolved_run.h"
#include "trainer/resolve/step_costs.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class LayoutSimulate : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    put("run.toml", small_run);
  }

  Config config(const Overrides& words = {}) const { return read_config_text(small_run, "run.toml", words).config; }

  Json variants(const std::string& arguments) const {
    const auto result = weft("layout simulate run.toml --json " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return result.exit_code == 0 ? Json::parse(result.output)["variants"] : Json();
  }
};

// Everything again, each figure from where the library keeps it.
void expect_figures(const Json& found, const Config& given, const ProgramCosts& costs, const LaneChannels& channels) {
  const Config config = on_hardware(given);
  const Mesh mesh(config.parallelism);
  const Program program = step_program(ResolvedRun(config), mesh.coordinates(0));
  const Simulation simulation = simulate(program, costs, channels);
  EXPECT_EQ(found["layout"], to_string(stage_layout(config), config.model));
  EXPECT_DOUBLE_EQ(found["seconds"].get<double>(), simulation.seconds);
  double idle = 0.0, gathers_wait = 0.0, reductions_wait = 0.0;
  std::int64_t fullest = 0;
  int gathers = 0, reductions = 0;
  for (int rank = 0; rank < config.parallelism.pipeline; ++rank) {
    const RankTimes times = rank_times(program, simulation, rank, channels);
    idle += times.bubble;
    gathers_wait = std::max(gathers_wait, times.gathers);
    reductions_wait = std::max(reductions_wait, times.reductions);
    const BucketBytes bytes = dry_peak(config, mesh, program, mesh.rank_at(rank, 0, 0, 0, 0));
    fullest = std::max(fullest, bytes.total());
    if (rank == found["fullest_rank"].get<int>()) {
      for (std::size_t b = 0; b < bucket_count; ++b) {
        EXPECT_EQ(found["peak"][std::string(name_of(static_cast<Bucket>(b)))], bytes.bytes[b]);
      }
    }
    const WalkSummary walked = walk_step(config, rank).summary;
    gathers += walked.gathers;
    reductions += walked.reductions;
  }
  EXPECT_EQ(found["peak_bytes"], fullest);
  EXPECT_EQ(found["gathers"], gathers);
  EXPECT_EQ(found["reductions"], reductions);
  EXPECT_DOUBLE_EQ(found["bubble"].get<double>(), idle / (config.parallelism.pipeline * simulation.seconds));
  EXPECT_DOUBLE_EQ(found["exposed_gathers"].get<double>(), gathers_wait);
  EXPECT_DOUBLE_EQ(found["exposed_reductions"].get<double>(), reductions_wait);
  double path = 0.0;
  for (const Json& share : found["critical_path"]) path += share["seconds"].get<double>();
  EXPECT_NEAR(path, simulation.seconds, 1e-9 * simulation.seconds);
}

ProgramCosts modelled(const Config& config, const char* hardware) {
  const Mesh mesh(config.parallelism);
  return modelled_costs(config, mesh, program_tables(config, mesh, mesh.coordinates(0)), find_hardware(hardware));
}

TEST_F(LayoutSimulate, SaysWhatTheLibraryComputes) {
  const Json found =
      variants("--layout 'Ed|e*3L' --variant '--pipeline.schedule=gpipe --shard.residency=\"window 1\"'");
  ASSERT_EQ(found.size(), 3u);
  const std::vector<Overrides> words = {
      {}, {"--pipeline.layout=Ed|e*3L"}, {"--pipeline.schedule=gpipe", "--shard.residency=window 1"}};
  for (std::size_t v = 0; v < words.size(); ++v) {
    const Config variant = config(words[v]);
    expect_figures(found[v], variant, modelled(variant, "cpu"), LaneChannels::serial());
    EXPECT_EQ(found[v]["costs"], "modelled for cpu");
    EXPECT_EQ(found[v]["unit_time"], false);
  }
  const Config whole = config();
  // The card also has room for what the configuration leaves open.
  const Config on_card = config({"--hardware.name=h200"});
  expect_figures(variants("--hardware h200")[0], on_card, modelled(on_card, "h200"), LaneChannels::own());
}

// Of the four ranks of a stage all share the experts (expert = 4), so their gathers and reductions are over one rank.
TEST_F(LayoutSimulate, CountsOnlyWhatCommunicates) {
  const Config whole = config();
  const Program program = step_program(ResolvedRun(whole), Mesh(whole.parallelism).coordinates(0));
  int gathers = 0, listed = 0;
  std::int64_t bytes = 0;
  for (const auto& actions : program.ranks) {
    for (const Action& action : actions) {
      if (!is_gather(action.op)) continue;
      ++listed;
      if (program.units[static_cast<std::size_t>(*action.unit)].family == Family::experts) continue;
      ++gathers;
      bytes += action.bytes;
    }
  }
  EXPECT_LT(gathers, listed);
  const Json shared = variants("")[0];
  EXPECT_EQ(shared["gathers"], gathers);
  EXPECT_EQ(shared["gathered_bytes"], bytes);
  const Json alone =
      variants("--parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.expert=1")[0];
  for (const char* figure : {"gathers", "gathered_bytes", "reductions"}) EXPECT_EQ(alone[figure], 0) << figure;
}

TEST_F(LayoutSimulate, TakesATableOfCosts) {
  const std::string table =
      "[segments]\nembedding = { forward = 1e-3 }\n"
      "attention = { forward = 2e-3, backward_input = 3e-3, backward_weight = 1e-3 }\n"
      "mlp = { forward = 4e-3, backward_input = 4e-3, backward_weight = 4e-3 }\n"
      "experts = { forward = 5e-3, backward_input = 5e-3, backward_weight = 5e-3 }\n"
      "head = { forward = 1e-3, backward_input = 1e-3, backward_weight = 1e-3 }\n"
      "[units]\n\"*\" = { gather = 1e-3, reduce = 2e-3 }\n[messages]\n\"*\" = 5e-4\n"
      "[update]\ngradient_norm = 1e-4\noptimizer_step = 1e-3\n";
  put("costs.toml", table);
  const Config whole = config();
  const Mesh mesh(whole.parallelism);
  const Program program = step_program(ResolvedRun(whole), mesh.coordinates(0));
  const ProgramCosts costs = table_costs(parse_cost_table(table, "costs.toml"), program, group_sizes(mesh));
  const Json found = variants("--costs costs.toml");
  expect_figures(found[0], whole, costs, LaneChannels::serial());
  EXPECT_EQ(found[0]["costs"], "of costs.toml");
}

// Nodes of eight: the eight data ranks of a stage are in one, the stages are not. The eight ranks of a node each send
// to the next stage, over the adapters of all. The ring of the whole world leaves a node once and has them to itself.
TEST_F(LayoutSimulate, GroupsHaveTheLinkThatTheyCross) {
  const Config large = config({"--parallelism.pipeline=4", "--parallelism.tensor=1", "--parallelism.data_shard=8",
                               "--parallelism.expert=8", "--precision.compute=bfloat16", "--model.moe.num_experts=8",
                               "--training.global_batch_size=32"});
  const Mesh mesh(large.parallelism);
  const Hardware& hardware = find_hardware("h200");
  const HardwareCosts costs = hardware_costs(hardware, large, mesh);
  EXPECT_EQ(costs.links.at(Group::dp_shard), hardware.inside());
  EXPECT_EQ(costs.links.at(Group::ep), hardware.inside());
  const LinkCost adapters = hardware.between_nodes();
  EXPECT_EQ(costs.links.at(Group::pp).bytes_per_second, adapters.bytes_per_second / 8);
  EXPECT_EQ(costs.links.at(Group::pp).latency, adapters.latency);
  EXPECT_EQ(costs.links.at(Group::world).bytes_per_second, adapters.bytes_per_second);
  EXPECT_FALSE(hardware.inside() == hardware.between_nodes());
  EXPECT_DOUBLE_EQ(costs.seconds_per_flop_forward * hardware.reached.value * hardware.flops_per_second_16bit.value,
                   1.0);
  const HardwareCosts whole = hardware_costs(hardware, config(), Mesh(config().parallelism));
  EXPECT_DOUBLE_EQ(whole.seconds_per_flop_forward * hardware.reached.value * hardware.flops_per_second_float32.value,
                   1.0);
  // Eight ranks in all: one node.
  EXPECT_EQ(whole.links.at(Group::pp), hardware.inside());
}

// An option, a section and an override name the same card, under any of its names; what the section sets holds under
// another name too.
TEST_F(LayoutSimulate, TakesTheCardOfTheConfiguration) {
  const auto figures = [&](const std::string& arguments) {
    Json found = variants(arguments)[0];
    found.erase("title");
    found.erase("costs");
    return found;
  };
  const Json named = figures("--hardware a100-80gb");
  EXPECT_EQ(figures("--hardware a100"), named);
  EXPECT_EQ(figures("--hardware.name=a100"), named);
  EXPECT_NE(figures("--hardware h200"), named);
  EXPECT_EQ(variants("--hardware a100")[0]["costs"], "modelled for a100-80gb");
  EXPECT_EQ(variants("--hardware.name=b200")[0]["costs"], "modelled for b200");
  EXPECT_NE(figures("--hardware a100 --hardware.reached=0.25"), named);
}

using LayoutSimulateRun = TinyTraining;

TEST_F(LayoutSimulateRun, TakesWhatARunMeasured) {
  ASSERT_EQ(weft("train run.toml --pipeline.layout='Ed|eL' --profiling.first_step=2 --profiling.last_step=3").exit_code,
            0);
  const auto result =
      weft("layout simulate run.toml --json --costs out/tiny --pipeline.layout='Ed|eL' --layout 'E|deL'");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json found = Json::parse(result.output)["variants"];
  const Config traced = read_config(folder_ / "out/tiny/config.toml").config;
  const Mesh mesh(traced.parallelism);
  CostTable table = measured_costs(traced, mesh, read_traces(folder_ / "out/tiny", mesh.world()));
  ASSERT_TRUE(table.units.contains("stage.1.routing"));
  for (std::size_t v = 0; v < 2; ++v) {
    Config config = traced;
    if (v == 1) config.pipeline.layout = "E|deL";
    const Program program = step_program(ResolvedRun(config), mesh.coordinates(0));
    expect_figures(found[v], config, table_costs(table, program, group_sizes(mesh)), LaneChannels::serial());
    EXPECT_EQ(found[v]["costs"], "measured in out/tiny");
  }
  // Longer pipelines have messages and routing helpers that no run had; theirs are like those that were.
  const auto longer =
      weft("layout simulate run.toml --json --costs out/tiny --parallelism.pipeline=4 --pipeline.layout='E|d|e|L'");
  ASSERT_EQ(longer.exit_code, 0) << longer.messages;
  table.messages["*"] = table.messages.at("0");
  table.units["*.routing"] = table.units.at("stage.1.routing");
  Config config = traced;
  config.parallelism.pipeline = 4;
  config.pipeline.layout = "E|d|e|L";
  const Mesh long_mesh(config.parallelism);
  const Program program = step_program(ResolvedRun(config), long_mesh.coordinates(0));
  expect_figures(Json::parse(longer.output)["variants"][0], config, table_costs(table, program, group_sizes(long_mesh)),
                 LaneChannels::serial());
  const auto other = weft("layout simulate run.toml --costs out/tiny --training.microbatch_size=2");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(other.messages.find("measured in out/tiny hold for the same work only; it had another "
                                "training.microbatch_size"),
            std::string::npos)
      << other.messages;
  const auto selective = weft("layout simulate run.toml --costs out/tiny --training.recompute=selective");
  EXPECT_EQ(selective.exit_code, 2);
  EXPECT_NE(selective.messages.find("training.recompute"), std::string::npos) << selective.messages;
  EXPECT_EQ(weft("layout simulate run.toml --costs out/tiny --training.recompute=full").exit_code, 0);
}

// With even costs 1F1B leaves (p - 1) / (m + p - 1) of a step empty and takes (m + p - 1)(F + B).
// A card that is planned for decides, whatever device the run has: all commands speak of the same step.
TEST_F(LayoutSimulate, SaysOfACardWhatThePlanSays) {
  for (const std::string words : {"--hardware.name=h100", "--hardware.name=h100 --precision.compute=bfloat16", ""}) {
    SCOPED_TRACE(words);
    const auto json = [&](const std::string& command) {
      const auto result = weft(command + " run.toml --json " + words);
      EXPECT_EQ(result.exit_code, 0) << result.messages;
      const bool warned = result.messages.find("weft train would compute on the CPU") != std::string::npos;
      EXPECT_EQ(warned, words.starts_with("--hardware")) << command << result.messages;
      return result.exit_code == 0 ? Json::parse(result.output) : Json();
    };
    const Json plan = json("plan"), simulated = json("layout simulate")["variants"][0];
    const Json shown = json("layout show")["layouts"][0];
    std::int64_t most = 0;
    for (const Json& rank : plan["ranks"]) most = std::max(most, rank["peak_bytes"].get<std::int64_t>());
    EXPECT_EQ(simulated["peak_bytes"], most);
    EXPECT_EQ(simulated["seconds"], plan["step_seconds"]);
    std::int64_t most_shown = 0;
    for (const Json& rank : shown["ranks"]) most_shown = std::max(most_shown, rank["peak_bytes"].get<std::int64_t>());
    EXPECT_EQ(most_shown, most);
    json("units");
  }
}

TEST_F(LayoutSimulate, EvenCostsGiveTheBubbleOf1f1b) {
  for (const int microbatches : {2, 4, 8}) {
    const Json found = variants("--costs forward=1 --training.global_batch_size=" + std::to_string(2 * microbatches));
    // Stages share their time among a few segments, and fewer than 200 of these are added up.
    EXPECT_NEAR(found[0]["seconds"].get<double>(), 3.0 * (microbatches + 1), 200 * 27 * 1.2e-16);
    ASSERT_FALSE(found[0]["waits"].empty());
    EXPECT_EQ(found[0]["waits"][0]["what"], "rank 0 for messages from rank 1");
    EXPECT_NEAR(found[0]["bubble"].get<double>(), 1.0 / (microbatches + 1), 1e-12);
    EXPECT_EQ(found[0]["unit_time"], true);
    EXPECT_EQ(found[0]["microbatches"], microbatches);
  }
}

// By hand: the second stage takes three times what the first does. So the step goes through it, and the first waits
// for it.
TEST_F(LayoutSimulate, NamesWhatTheStepGoesThrough) {
  put("costs.toml",
      "[segments]\n\"*\" = { forward = 0.0 }\n\"blocks.0.*\" = { forward = 1.0, backward_input = 1.0, backward_weight "
      "= "
      "1.0 }\n\"blocks.3.*\" = { forward = 3.0, backward_input = 3.0, backward_weight = 3.0 }\n"
      "[units]\n\"*\" = { gather = 0.0 }\n[messages]\n\"*\" = 0.0\n");
  const Json found = variants("--costs costs.toml --pipeline.layout='Ed|e*3L' --training.global_batch_size=16");
  // Two segments a block, eight microbatches: 6 (1 + 2) 8 behind one forward of 2 and before one backward of 4.
  EXPECT_DOUBLE_EQ(found[0]["seconds"].get<double>(), 2.0 + 18.0 * 8 + 4.0);
  ASSERT_EQ(found[0]["critical_path"].size(), 2u);
  EXPECT_EQ(found[0]["critical_path"][0]["what"], "compute of stage 1 on rank 1");
  EXPECT_DOUBLE_EQ(found[0]["critical_path"][0]["seconds"].get<double>(), 144.0);
  EXPECT_EQ(found[0]["critical_path"][1]["what"], "compute of stage 0 on rank 0");
  EXPECT_DOUBLE_EQ(found[0]["critical_path"][1]["seconds"].get<double>(), 6.0);
  ASSERT_FALSE(found[0]["waits"].empty());
  EXPECT_EQ(found[0]["waits"][0]["what"], "rank 0 for messages from rank 1");
  // All of the step but its own eight microbatches of 6, and what stands before the first and behind the last.
  EXPECT_DOUBLE_EQ(found[0]["waits"][0]["seconds"].get<double>(), 150.0 - 8 * 6);
}

TEST_F(LayoutSimulate, PrintsAGridAndATable) {
  const auto result =
      weft("layout simulate run.toml --costs forward=1 --layout 'Ed|e*3L' --training.global_batch_size=4");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  // (2 + 1) x 3 units on 120 columns: a forward takes 13 or 14 of them, a backward twice that.
  EXPECT_NE(result.output.find("rank 0  |(     0     )(     1      ) "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("\nvariant "), std::string::npos);
  EXPECT_NE(result.output.find("  critical    compute of stage "), std::string::npos);
  EXPECT_EQ(result.messages, "");
}

TEST_F(LayoutSimulate, DrawsVariantsOnOnePage) {
  const auto page = weft("layout simulate run.toml --layout 'Ed|e*3L' --format html --output page.html");
  ASSERT_EQ(page.exit_code, 0) << page.messages;
  EXPECT_EQ(page.output, "");
  const auto read = run("cat page.html");
  EXPECT_NE(read.output.find("--pipeline.layout=Ed|e*3L"), std::string::npos);
  EXPECT_NE(read.output.find("\"unit_time\":false"), std::string::npos);
  const auto svg = weft("layout simulate run.toml --format svg");
  EXPECT_TRUE(svg.output.starts_with("<svg ")) << svg.messages;
  // An axis in seconds.
  EXPECT_NE(svg.output.find(" us</text>"), std::string::npos);
  const auto program = weft("program run.toml --hardware h200 --format svg");
  EXPECT_NE(program.output.find(" us</text>"), std::string::npos) << program.messages;
}

TEST_F(LayoutSimulate, WrongRequestsEndWithTwo) {
  const std::pair<const char*, const char*> requests[] = {
      {"--format pdf", "--format takes text, json, svg, html and trace, not pdf"},
      {"--hardware abacus", "hardware abacus is not known; known are h100, h200, a100-80gb"},
      {"--hardware cpu --costs forward=1", "--costs and --hardware both say what actions cost"},
      {"--costs gone", "--costs gone is neither words such as forward=1"},
      {"--costs gone.toml", "gone.toml"},
      {"--costs gathers=1", "--costs takes forward=X"},
      {"--layout Ed", "pipeline.layout"},
      {"--variant \"--shard.residency='window\"", "is not closed"},
      {"--layout 'Ed|e*3L' --format svg", "holds one picture"},
      {"--fast", "unknown option --fast; see weft layout simulate --help"},
  };
  for (const auto& [arguments, message] : requests) {
    const auto result = weft(std::string("layout simulate run.toml ") + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_NE(result.messages.find(message), std::string::npos) << arguments << "\n" << result.messages;
  }
}

}  // namespace
}  // namespace weft
