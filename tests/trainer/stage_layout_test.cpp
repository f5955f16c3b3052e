// A configured layout becomes stages, or is refused with the arithmetic and the place in the text.
#include "trainer/layout/stage_layout.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "parallel/pipeline/orders/orders.h"
#include "parallel/pipeline/simulation/simulate.h"
#include "tests/trainer/config_sample.h"
#include "tests/trainer/planned_stage.h"
#include "trainer/plan/stage_plan.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::count;
using config_sample::message;
using config_sample::with;

// One rank a stage, so that any pipeline degree fits.
const Overrides plain = {"parallelism.tensor=1", "parallelism.data_shard=1", "parallelism.expert=1",
                         "training.sequence_length=64"};

Overrides over(const std::vector<std::string>& more) {
  Overrides overrides = plain;
  for (const std::string& one : more) overrides.push_back(one);
  return overrides;
}

ResolvedConfig read_staged(const std::vector<std::string>& more) {
  return read_config_text(complete(), "run.toml", over(more));
}

// The one fault of the sample with these overrides, up to the place that is shown.
std::string fault(const std::vector<std::string>& more) {
  const std::string text = message(complete(), over(more));
  EXPECT_EQ(count(text, "error: "), 1) << text;
  const std::size_t at = text.find("error: ");
  return at == std::string::npos ? text : text.substr(at + 7);
}

using Layout = std::vector<StageBlocks>;

// The sample has the blocks d e e e.
TEST(StageLayout, IsReadFromATextAListOfTextsOrCounts) {
  const Layout expected = {{0, 2, true, false}, {2, 0, false, false}, {2, 1, false, false}, {3, 1, false, true}};
  for (const char* layout : {"pipeline.layout=Ede||e|eL", "pipeline.layout=Et*2||(t|)*1tL",
                             "pipeline.layout=[\"E d e\", \"\", \"e\", \"eL\"]", "pipeline.layout=[2, 0, 1, 1]"}) {
    EXPECT_EQ(stage_layout(read_staged({"parallelism.pipeline=4", layout}).config), expected) << layout;
  }
  const Layout ends_alone = {{0, 0, true, false}, {0, 4, false, false}, {4, 0, false, true}};
  EXPECT_EQ(stage_layout(read_staged({"parallelism.pipeline=3", "pipeline.layout=E|de*3|L"}).config), ends_alone);
  EXPECT_EQ(stage_layout(
                read_staged({"parallelism.pipeline=3", "pipeline.first_stage_blocks=0", "pipeline.last_stage_blocks=0"})
                    .config),
            ends_alone);
  EXPECT_EQ(stage_layout(read_staged({"parallelism.pipeline=1", "pipeline.layout=[4]"}).config),
            (Layout{{0, 4, true, true}}));
}

TEST(StageLayout, DealsTheRestEvenlyBetweenTheEnds) {
  struct Case {
    std::vector<std::string> overrides;
    std::string layout;
  };
  const std::string thirteen = "model.layers=d*13";
  const std::vector<Case> cases = {
      {{thirteen, "parallelism.pipeline=4", "pipeline.first_stage_blocks=4"}, "Ed*4|(d*3|)*2d*3L"},
      {{thirteen, "parallelism.pipeline=4", "pipeline.last_stage_blocks=1"}, "Ed*4|(d*4|)*2dL"},
      {{thirteen, "parallelism.pipeline=4", "pipeline.first_stage_blocks=3", "pipeline.last_stage_blocks=2"},
       "Ed*3|(d*4|)*2ddL"},
      {{thirteen, "parallelism.pipeline=2", "pipeline.first_stage_blocks=5", "pipeline.last_stage_blocks=8"},
       "Ed*5|d*8L"},
      {{thirteen, "parallelism.pipeline=1", "pipeline.last_stage_blocks=13"}, "Ed*13L"},
  };
  for (const Case& test : cases) {
    const Config config = read_staged(test.overrides).config;
    EXPECT_EQ(to_string(stage_layout(config), config.model), test.layout);
  }
}

TEST(StageLayout, RefusesEndsThatDoNotWorkWithTheArithmetic) {
  const std::string blocks = "model.layers=d*13";
  EXPECT_EQ(fault({blocks, "parallelism.pipeline=4", "pipeline.first_stage_blocks=5"}),
            "13 blocks - first_stage_blocks 5 = 8, which do not divide among the other 3 stages (pipeline 4 x chunks 1 "
            "= 4): remainder 2; nearest that work: first_stage_blocks 4 or 7");
  EXPECT_EQ(fault({blocks, "parallelism.pipeline=4", "pipeline.first_stage_blocks=1", "pipeline.last_stage_blocks=1"}),
            "13 blocks - first_stage_blocks 1 - last_stage_blocks 1 = 11, which do not divide among the other 2 stages "
            "(pipeline 4 x chunks 1 = 4): remainder 1; nearest that work: first_stage_blocks 0 or 2, or "
            "last_stage_blocks 0 or 2");
  EXPECT_EQ(fault({blocks, "parallelism.pipeline=4", "pipeline.first_stage_blocks=20"}),
            "13 blocks - first_stage_blocks 20 = -7: the model has no more; nearest that work: first_stage_blocks 13");
  EXPECT_EQ(fault({blocks, "parallelism.pipeline=2", "pipeline.first_stage_blocks=5", "pipeline.last_stage_blocks=5"}),
            "13 blocks - first_stage_blocks 5 - last_stage_blocks 5 = 3, and no stage is left for them (pipeline 2 x "
            "chunks 1 = 2); nearest that work: first_stage_blocks 8, or last_stage_blocks 8");
  EXPECT_EQ(fault({blocks, "parallelism.pipeline=1", "pipeline.first_stage_blocks=5", "pipeline.last_stage_blocks=8"}),
            "first_stage_blocks 5 and last_stage_blocks 8 speak of one stage, pipeline 1 x chunks 1 = 1: write one of "
            "them");
  EXPECT_EQ(fault({"pipeline.first_stage_blocks=2", "pipeline.layout=[2, 2]"}),
            "first_stage_blocks and last_stage_blocks say what layout \"auto\" deals, but a layout is written: leave "
            "one of the two out");
  // What is said to work does.
  for (const char* works :
       {"pipeline.first_stage_blocks=4", "pipeline.first_stage_blocks=7", "pipeline.first_stage_blocks=13"}) {
    EXPECT_EQ(message(complete(), over({blocks, "parallelism.pipeline=4", works})), "accepted") << works;
  }
}

TEST(StageLayout, RefusesWhatIsNotTheModel) {
  EXPECT_EQ(fault({"pipeline.layout=Ede|e|eL"}),
            "column 6: the layout has 3 stages, but pipeline 2 x chunks 1 = 2: write 2 stages, or pipeline 3 x chunks "
            "1\n    Ede|e|eL\n         ^");
  EXPECT_EQ(fault({"parallelism.pipeline=4", "pipeline.layout=Ede|eeL"}),
            "column 8: the layout has 2 stages, but pipeline 4 x chunks 1 = 4: write 4 stages, or pipeline 2 x chunks "
            "1\n    Ede|eeL\n           ^");
  EXPECT_EQ(fault({"pipeline.layout=Ede|(e)*4L"}),
            "column 6: the layout has 6 blocks, but model.layers \"d e*3\" has 4: from block 4 on, which is written "
            "here, there is none\n    Ede|(e)*4L\n         ^");
  EXPECT_EQ(fault({"pipeline.layout=Ed|eL"}),
            "column 5: the layout has 2 blocks, but model.layers \"d e*3\" has 4: 2 more must stand before this\n"
            "    Ed|eL\n        ^");
  EXPECT_EQ(fault({"pipeline.layout=Ed(t|d)eL"}),
            "column 6: block 2 of the layout is d, but in model.layers \"d e*3\" it is e: write e or t\n"
            "    Ed(t|d)eL\n         ^");
  EXPECT_EQ(fault({"pipeline.layout=[\"Edde\", \"eL\"]"}),
            "stage 0, column 3: block 1 of the layout is d, but in model.layers \"d e*3\" it is e: write e or t\n"
            "    Edde\n      ^");
  EXPECT_EQ(fault({"pipeline.layout=[3, 2]"}), "the layout deals 3 + 2 = 5 blocks, but model.layers \"d e*3\" has 4");
  EXPECT_EQ(fault({"pipeline.layout=[2, 1, 1]"}),
            "the layout has the counts of 3 stages, but pipeline 2 x chunks 1 = 2: write 2 counts, or pipeline 3 x "
            "chunks 1");
  EXPECT_EQ(fault({"pipeline.layout=[]"}), "pipeline.layout: the list is empty; write one entry a stage");
  EXPECT_EQ(fault({"pipeline.layout=7"}), "pipeline.layout: expected a string or an array, got the integer 7");
  EXPECT_EQ(fault({"pipeline.layout=[2, -1]"}), "pipeline.layout: -1 is out of range: at least 0");
  EXPECT_EQ(fault({"pipeline.layout=[\"Ed\", 3]"}),
            "pipeline.layout: expected a string, as the first entry is, got the integer 3");
  EXPECT_EQ(fault({"pipeline.layout=[true]"}),
            "pipeline.layout: expected a string or an integer, got the boolean true");
  EXPECT_EQ(fault({"pipeline.last_stage_blocks=few"}),
            "pipeline.last_stage_blocks: expected an integer or \"auto\", got the string \"few\"");
}

// All at once, each at its place in the file.
TEST(StageLayout, FaultsOfAFileStandAtTheirEntries) {
  EXPECT_EQ(
      message(with("\"auto\"", "[\"Ex\", \"e(L\"]")),
      "run.toml:40:11: error: pipeline.layout: stage 0, column 2: 'x' is no symbol of a layout; accepted: E "
      "(embedding), d (dense block), e (MoE block), t (any block), m (predictor), L (head), | or (\n    Ex\n     ^\n"
      "  40 | layout = [\"Ex\", \"e(L\"]\n"
      "     |           ^~~~\n"
      "run.toml:40:17: error: pipeline.layout: stage 1, column 2: this ( is not closed\n    e(L\n     ^\n"
      "  40 | layout = [\"Ex\", \"e(L\"]\n"
      "     |                 ^~~~~");
  const std::string both = message(with("\"auto\"", "\"Ed|e|eeeL\""));
  EXPECT_EQ(count(both, "error: column "), 2) << both;
}

TEST(StageLayout, SchedulesSayHowManyChunksARankRuns) {
  EXPECT_EQ(fault({"pipeline.chunks=2"}),
            "schedule \"gpipe\" runs 1 chunk a rank, not 2; schedules that run 2 are \"interleaved\", \"looped_bfs\", "
            "\"zb1p\", \"zbv\", \"v_half\", \"v_min\", \"dualpipev\", \"combined_1f1b\"");
  EXPECT_EQ(fault({"pipeline.chunks=0"}), "pipeline.chunks: 0 is out of range: at least 1");
  Config config = read_staged({}).config;
  config.parallelism.pipeline = 2;
  config.pipeline.chunks = 2;
  EXPECT_THROW(stage_layout(config), Error);  // gpipe has no order to deal by
  config.pipeline.schedule = "looped_bfs";
  EXPECT_EQ(to_string(stage_layout(config), config.model), "Ed|e|e|eL");
  config.pipeline.schedule = "gpipe";
  config.pipeline.layout = std::vector<std::int64_t>{1, 1, 1, 0, 1, 0};
  EXPECT_EQ(layout_faults(config),
            (std::vector<std::string>{"the layout has the counts of 6 stages, but pipeline 2 x chunks 2 = 4: write 4 "
                                      "counts, or pipeline 6 x chunks 1"}));
  config.pipeline.schedule = "looped_bfs";
  EXPECT_TRUE(layout_faults(config).at(0).ends_with(
      "or pipeline 6 x chunks 1, or pipeline 3 x chunks 2, or pipeline 2 x chunks 3, or pipeline 1 x chunks 6"))
      << layout_faults(config).at(0);
  EXPECT_THROW(stage_layout(config), Error);
}

TEST(StageLayout, IsWrittenSoThatItReadsBack) {
  const std::vector<std::vector<std::string>> cases = {
      {"pipeline.layout=Ede|t*2L"},
      {"pipeline.layout=[\"E d e\", \"t*2,L\"]"},
      {"pipeline.layout=[3, 1]"},
      {"pipeline.first_stage_blocks=1"},
      {"pipeline.first_stage_blocks=0", "pipeline.last_stage_blocks=4"},
  };
  for (const auto& overrides : cases) {
    const ResolvedConfig first = read_staged(overrides);
    EXPECT_EQ(read_config_text(first.toml, "again.toml").config, first.config) << first.toml;
    EXPECT_NE(first.config.pipeline, PipelineConfig{"gpipe"}) << overrides[0];
  }
  // As printed, too.
  for (const char* layers : {"d e*3", "(d e)*7", "d*12 e*20"}) {
    for (int pipeline = 1; pipeline <= 6; ++pipeline) {
      const std::string model = fmt::format("model.layers={}", layers),
                        ranks = fmt::format("parallelism.pipeline={}", pipeline);
      const Config config = read_staged({model, ranks}).config;
      const Layout layout = stage_layout(config);
      const std::string text = to_string(layout, config.model);
      EXPECT_EQ(stage_layout(read_staged({model, ranks, "pipeline.layout=" + text}).config), layout) << text;
    }
  }
}

TEST(StageLayout, MoreStagesThanPiecesAreWarnedOf) {
  const std::string batch = "training.global_batch_size=16";  // as many microbatches as ranks
  EXPECT_EQ(read_staged({"parallelism.pipeline=6", batch}).warnings, std::vector<std::string>{});
  EXPECT_EQ(read_staged({"parallelism.pipeline=8", batch}).warnings,
            std::vector<std::string>{"of 8 stages (pipeline 8 x chunks 1 = 8) 2 hold nothing and only pass activations "
                                     "on: 1, 2"});
  EXPECT_EQ(read_staged({"parallelism.pipeline=3", "pipeline.layout=Ede||e*2L", batch}).warnings,
            std::vector<std::string>{"of 3 stages (pipeline 3 x chunks 1 = 3) 1 hold nothing and only pass activations "
                                     "on: 1"});
}

// Under 1F1B p - 1 of m + p - 1 turns are idle; 2 microbatches on 4 ranks: 3 of 5.
TEST(StageLayout, FewerMicrobatchesThanRanksAreWarnedOf) {
  const std::vector<std::string> pipeline = {"parallelism.pipeline=4", "training.microbatch_size=1"};
  const auto warned = [&](const std::string& batch) {
    return read_staged({pipeline[0], pipeline[1], "training.global_batch_size=" + batch}).warnings;
  };
  EXPECT_EQ(warned("4"), std::vector<std::string>{});
  EXPECT_EQ(warned("2"), std::vector<std::string>{
                             "2 microbatches a step on 4 pipeline ranks leave a bubble of 60 % where all stages take "
                             "as long; training.global_batch_size = 4 would make 4 microbatches"});
}

// With chunks a step of fewer microbatches than ranks takes one through all P v stages and back, and m - 1 turns more.
// A rank computes m v of these turns. Gaps are smaller than under 1F1B, and warned of all the same.
TEST(StageLayout, FewMicrobatchesAreWarnedOfWithVirtualStages) {
  for (const std::string schedule : {"interleaved", "looped_bfs"}) {
    for (const int chunks : {2, 3}) {
      for (const int microbatches : {1, 2, 3}) {
        const auto warnings = read_staged({"parallelism.pipeline=4", "model.layers=d*12", "training.microbatch_size=1",
                                           "pipeline.schedule=" + schedule, fmt::format("pipeline.chunks={}", chunks),
                                           fmt::format("training.global_batch_size={}", microbatches)})
                                  .warnings;
        const double bubble = 1.0 - static_cast<double>(microbatches * chunks) / (4 * chunks + microbatches - 1);
        ASSERT_EQ(warnings.size(), 1u) << schedule << " x" << chunks;
        EXPECT_NE(warnings[0].find(fmt::format("{} microbatches a step on 4 pipeline ranks leave a bubble of {:.0f} % ",
                                               microbatches, 100.0 * bubble)),
                  std::string::npos)
            << schedule << " x" << chunks << ": " << warnings[0];
      }
    }
  }
}

// Where microbatches are as many as ranks, virtual stages make no bubble larger than 1F1B has: (p - 1) of m + p - 1
// turns. There is no more to warn of.
TEST(StageLayout, VirtualStagesMakeNoLargerBubble) {
  int compared = 0;
  for (const Schedule& schedule : schedules()) {
    for (const OrderInput& input : {OrderInput{2, 2, 2}, OrderInput{2, 4, 6}, OrderInput{4, 2, 4}, OrderInput{4, 2, 5},
                                    OrderInput{4, 3, 8}, OrderInput{8, 2, 16}, OrderInput{4, 2, 9, 5}}) {
      if (!schedule.takes_chunks(input.chunks) || (input.microbatch_group > 0 && !schedule.takes_groups)) continue;
      if (schedule.name == "dualpipev" && input.microbatches < 2 * input.ranks) continue;  // refused
      Program program;
      program.microbatches = input.microbatches;
      program.ranks = schedule.order(input);
      for (int stage = 0; stage < input.ranks * input.chunks; ++stage) {
        program.stages.push_back({.rank = rank_of(schedule.placement, input.ranks, stage)});
      }
      const Simulation simulation = simulate(program, even_costs(program));
      double idle = 0.0;
      for (int rank = 0; rank < input.ranks; ++rank) idle += rank_times(program, simulation, rank).bubble;
      const double without = (input.ranks - 1.0) / (input.microbatches + input.ranks - 1.0);
      EXPECT_LE(idle / (input.ranks * simulation.seconds), without + 1e-9) << schedule.name << " " << input.ranks;
      ++compared;
    }
  }
  EXPECT_GT(compared, 20);
}

// The head alone is worth a stage where it is dearer than a block; with few blocks the ends are left alone.
TEST(StageLayout, AutomaticLayoutsByCost) {
  const auto layout = [](const std::vector<std::string>& overrides) {
    const Config config = read_staged(overrides).config;
    return to_string(stage_layout(config), config.model);
  };
  EXPECT_EQ(layout({"model.layers=d*8", "parallelism.pipeline=4"}), "Edd|dd|dd|ddL");
  EXPECT_EQ(layout({"model.layers=d*6", "parallelism.pipeline=4", "model.vocab_size=8000"}), "Edd|dd|dd|L");
  EXPECT_EQ(layout({"parallelism.pipeline=5"}), "E|d|e|e|eL");
  EXPECT_EQ(layout({"parallelism.pipeline=5", "model.vocab_size=8000"}), "Ed|(e|)*3L");
  EXPECT_EQ(layout({"parallelism.pipeline=6"}), "E|d|(e|)*3L");
  EXPECT_EQ(layout({"parallelism.pipeline=7"}), "E||d|(e|)*3L");
}

// A table of costs outweighs the model: blocks of equal sizes, of which the first is said to take as long as the other
// seven.
TEST(StageLayout, AutomaticLayoutsByATableOfCosts) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("weft-costs-{}.toml", getpid());
  std::ofstream(file) << R"([segments]
"*" = { forward = 1e-3, backward_input = 1e-3, backward_weight = 1e-3 }
"blocks.0.*" = { forward = 7e-3, backward_input = 7e-3, backward_weight = 7e-3 }
embedding = { forward = 0.0 }
head = { forward = 0.0 }
[units]
"*" = { gather = 0.0 }
)";
  const std::vector<std::string> blocks = {"model.layers=\"d*8\"", "parallelism.pipeline=2"};
  const auto counts = [](const Config& config) {
    std::vector<int> result;
    for (const StageBlocks& stage : stage_layout(config)) result.push_back(stage.count);
    return result;
  };
  std::vector<std::string> by_table = blocks;
  by_table.push_back(fmt::format("pipeline.costs={}", file.string()));
  EXPECT_EQ(counts(read_staged(by_table).config), (std::vector{1, 7}));
  EXPECT_EQ(counts(read_staged(blocks).config), (std::vector{4, 4}));
  std::filesystem::remove(file);
  EXPECT_THROW(stage_layout(read_staged(by_table).config), Error);
}

// Every block, the embedding and the head stand on exactly one stage, whatever was read.
TEST(StageLayout, SegmentsOfAllStagesAreThoseOfTheModel) {
  for (const char* layout : {"auto", "E|de|e*2|L", "Ed||ee|eL", "E|||deeeL"}) {
    const std::vector<std::string> overrides = {"parallelism.pipeline=4", fmt::format("pipeline.layout={}", layout)};
    const Config config = read_staged(overrides).config;
    const Mesh mesh(config.parallelism);
    std::vector<std::string> names, expected;
    for (int stage = 0; stage < 4; ++stage) {
      if (stage_layout(config)[static_cast<std::size_t>(stage)].empty()) continue;
      for (const auto& segment : plan_stage(config, mesh, {.pp = stage}, stage).segments)
        names.push_back(segment->name());
    }
    Config lone = config;
    lone.parallelism = {};
    lone.pipeline = {};
    for (const auto& segment : plan_stage(lone, Mesh({}), {}, 0).segments) expected.push_back(segment->name());
    EXPECT_EQ(names, expected) << layout;
  }
}

}  // namespace
}  // namespace weft
