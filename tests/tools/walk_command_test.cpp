// `weft walk` of its toy against bytes worked out by hand, and what it refuses.
#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/tools/program.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class WalkCommand : public ProgramTest {
 protected:
  SortedJson json(const std::string& arguments) const {
    const auto result = weft("walk --json " + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return SortedJson::parse(result.output, nullptr, false);
  }
  // What is said of a request that is wrong.
  std::string refusal(const std::string& arguments) const {
    const auto result = weft("walk " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    return result.messages;
  }
};

// Rows of 16 float32 numbers, padded so that all shards have equally many. The embedding has one for each of 256
// tokens. A block has 4 x 16 of attention, 3 x 48 of the MLP and its two norms, and the head 256 and the last norm.
constexpr std::int64_t row_bytes = 16 * 4, embedding_rows = 256, block_rows = 4 * 16 + 3 * 48 + 2, head_rows = 257;
constexpr std::int64_t bytes(std::int64_t rows, std::int64_t shards) {
  return (rows + shards - 1) / shards * shards * row_bytes;
}
constexpr std::int64_t once(std::int64_t shards) {
  return bytes(embedding_rows, shards) + 4 * bytes(block_rows, shards) + bytes(head_rows, shards);
}
// Of 2 microbatches: blocks forward and backward; the embedding forward; the head once for both, which follow each
// other.
constexpr std::int64_t reshard_after_use(std::int64_t shards) {
  return 2 * bytes(embedding_rows, shards) + 16 * bytes(block_rows, shards) + 2 * bytes(head_rows, shards);
}

TEST_F(WalkCommand, SaysWhereBytesAreOfTheWorstRouting) {
  const std::string experts = " --moe --parallelism.expert=2 --strategy full_shard";
  const std::string routed = weft("walk" + experts).output, dense = weft("walk --strategy full_shard").output;
  EXPECT_NE(routed.find("microbatches; bytes, with worst routing\n"), std::string::npos) << routed;
  EXPECT_NE(routed.find("A step of one rank, bytes, with worst routing:\n"), std::string::npos) << routed;
  EXPECT_EQ(dense.find("routing"), std::string::npos) << dense;
}

TEST_F(WalkCommand, TheToyUnderEveryStrategy) {
  const SortedJson strategies = json("")["strategies"];
  ASSERT_EQ(strategies.size(), 6u);
  constexpr std::int64_t E = bytes(embedding_rows, 4), B = bytes(block_rows, 4), H = bytes(head_rows, 4);
  // Behind a forward an island of 2 keeps each unit but the head, which its backward reads at once. So the blocks'
  // backwards gather there, and the embedding of the second microbatch.
  constexpr std::int64_t inside = 8 * B + E;
  struct Expected {
    const char* name;
    int gathers, island_gathers, reductions;
    std::int64_t by_gathers, by_reductions, state;
  };
  // State is four numbers of 4 bytes for each parameter: itself, its gradient and two moments.
  const std::vector<Expected> expected = {
      {"full_shard", 20, 0, 12, reshard_after_use(4) * 3 / 4, 2 * once(4) * 3 / 4, once(4)},
      {"shard_grad_op", 6, 0, 12, once(4) * 3 / 4, 2 * once(4) * 3 / 4, once(4)},
      {"optimizer", 6, 0, 6, once(4) * 3 / 4, once(4) * 3 / 4, once(4)},
      {"no_shard", 0, 0, 6, 0, 2 * once(1) * 3 / 4, 4 * once(1)},
      // To shards after each microbatch, over the replicas once.
      {"hybrid", 20, 0, 12, reshard_after_use(2) / 2, 2 * once(2) / 2 + once(2) / 2, 4 * once(2) / 2},
      {"island 2", 20, 9, 12, (reshard_after_use(4) - inside) * 3 / 4 + inside / 2, 2 * once(4) * 3 / 4, once(4)},
  };
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const SortedJson& walked = strategies[i];
    const SortedJson& summary = walked["summary"];
    SCOPED_TRACE(summary.dump());
    EXPECT_EQ(walked["strategy"], expected[i].name);
    EXPECT_EQ(summary["gathers"], expected[i].gathers);
    EXPECT_EQ(summary["island_gathers"], expected[i].island_gathers);
    EXPECT_EQ(summary["reductions"], expected[i].reductions);
    EXPECT_EQ(summary["sent_by_gathers_bytes"], expected[i].by_gathers);
    EXPECT_EQ(summary["sent_by_reductions_bytes"], expected[i].by_reductions);
    // Norm and loss: two numbers of 8 bytes, all-reduced over 4 ranks.
    EXPECT_EQ(summary["sent_bytes"], expected[i].by_gathers + expected[i].by_reductions + 24);
    EXPECT_EQ(summary["state_bytes"], expected[i].state);
    std::int64_t sent = 0;
    for (const SortedJson& line : walked["lines"]) sent += line["sent_bytes"].get<std::int64_t>();
    EXPECT_EQ(sent, summary["sent_bytes"]);
    EXPECT_EQ(walked["lines"].back()["peak_bytes"], summary["peak_bytes"]);
  }
  // Two neighbours, of which head and last block are the largest; and everything.
  EXPECT_EQ(strategies[0]["summary"]["parameters_peak_bytes"], B + H);
  EXPECT_EQ(strategies[1]["summary"]["parameters_peak_bytes"], E + 4 * B + H);
  EXPECT_EQ(strategies[3]["summary"]["parameters_peak_bytes"], 0);
  // Gradients are whole until the last microbatch, or one fills while the one before is reduced. The largest such pair
  // is the embedding's of one microbatch and the head's of the next.
  EXPECT_EQ(strategies[2]["summary"]["gradients_peak_bytes"], E + 4 * B + H);
  EXPECT_EQ(strategies[1]["summary"]["gradients_peak_bytes"], E + H);
  // A microbatch computes 20 times: the embedding, four blocks of two parts, the head, and back. Parameters that stay
  // live from the first of the unit before (lookahead 1) to the last that reads them. That is E 1-21, blocks 1-39,
  // 2-37, 4-35 and 6-33, H 8-31. Gradients live from the first microbatch's backward until the next unit's reduction
  // behind the second: H 11-33, blocks 12-35, 14-37, 16-39 and 18-40, E 20-40.
  const SortedJson& kept = strategies[2]["summary"]["byte_steps"];
  EXPECT_EQ(kept["unsharded_parameters"], 21 * E + (39 + 36 + 32 + 28) * B + 24 * H);
  EXPECT_EQ(kept["unsharded_gradients"], 23 * H + (24 + 24 + 24 + 23) * B + 21 * E);
  EXPECT_EQ(kept["communication"], 0);
  EXPECT_EQ(strategies[3]["summary"]["byte_steps"]["unsharded_parameters"], 0);
}

// Byte-steps are the sums of the lines that compute, each an action, of all strategies and of blocks with experts.
TEST_F(WalkCommand, SumsByteStepsOverComputations) {
  for (const char* toy : {"", " --moe --precision.compute=bfloat16 --precision.reduction=bfloat16"}) {
    const SortedJson walks = json("--strategy all --segments" + std::string(toy));
    std::int64_t all = 0;
    for (const SortedJson& walked : walks["strategies"]) {
      std::map<std::string, std::int64_t> sums;
      for (const SortedJson& line : walked["lines"]) {
        if (line["kind"] != "compute") continue;
        EXPECT_EQ(line["actions"], 1);
        for (const char* kind : {"unsharded_parameters", "unsharded_gradients", "communication"}) {
          sums[kind] += line["live"][kind].get<std::int64_t>();
        }
      }
      EXPECT_EQ(walked["summary"]["byte_steps"], SortedJson(sums)) << walked["strategy"] << toy;
      all += sums["communication"];
    }
    EXPECT_EQ(all > 0, *toy != '\0');  // gradients have copies where they are reduced in another dtype
  }
}

TEST_F(WalkCommand, TextSaysWhatHappensAndWhatToSee) {
  const auto result = weft("walk --microbatches 1 --strategy full_shard --strategy 'island 2'");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(result.messages, "");
  for (const char* text :
       {"full_shard: rank 0 of 4 ranks (data_shard 4), 1 microbatch; bytes\n", "\ngather blocks.0.dense ",
        "\nforward blocks.3 ", "\nfree blocks.0.dense, keep a part ", "\ngather blocks.3.dense in island ",
        "\nreduce-scatter embedding ", "\nstep ", "A step of one rank, bytes:\n"}) {
    EXPECT_NE(result.output.find(text), std::string::npos) << text << "\n" << result.output;
  }
}

// The walk of any configuration is the list that `weft program` prints, of the first rank of each pipeline coordinate.
TEST_F(WalkCommand, OfAConfigurationIsTheListOfItsProgram) {
  put("run.toml", small_run);
  for (const int pipeline_rank : {0, 1}) {
    const SortedJson walked = json("run.toml --segments --rank " + std::to_string(pipeline_rank))["strategies"];
    ASSERT_EQ(walked.size(), 1u);
    EXPECT_EQ(walked[0]["strategy"], "as configured");
    const int rank = walked[0]["rank"];
    EXPECT_EQ(rank, pipeline_rank * 4);
    const auto program = weft("program --json --rank " + std::to_string(rank) + " run.toml");
    ASSERT_EQ(program.exit_code, 0) << program.messages;
    const SortedJson actions = SortedJson::parse(program.output)["ranks"][0], lines = walked[0]["lines"];
    ASSERT_EQ(lines.size(), actions.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (const char* key : {"op", "stage", "microbatch"}) EXPECT_EQ(lines[i][key], actions[i][key]) << i;
    }
    EXPECT_TRUE(walked[0]["summary"]["is_bound"]);  // tokens go to experts on other ranks
  }
}

// A step with full recompute has forwards, recomputes and backwards, each under its own name.
TEST_F(WalkCommand, TellsARecomputeFromAWeightGradient) {
  put("run.toml", small_run);
  std::map<std::string, int> lines;  // by the word in front of the subject
  const SortedJson walked = json("run.toml --segments --training.recompute=full");
  for (const SortedJson& line : walked["strategies"][0]["lines"]) {
    if (line["kind"] != "compute") continue;
    const std::string what = line["what"];
    ++lines[what.substr(0, what.rfind(' '))];
    EXPECT_EQ(line["op"] == "R", what.starts_with("recompute ")) << what;
  }
  EXPECT_GT(lines["recompute"], 0);
  EXPECT_EQ(lines.size(), 3u);  // forward, recompute, backward
}

TEST_F(WalkCommand, AStrategyReplacesWhatSectionsOfFamiliesSay) {
  put("run.toml", std::string(small_run) + "[shard.dense]\nstrategy = \"no_shard\"\n");
  const auto gathers_of_dense = [&](const std::string& more) {
    int gathers = 0;
    const SortedJson walked = json("run.toml " + more);
    for (const SortedJson& line : walked["strategies"][0]["lines"]) {
      const std::string what = line["what"];
      if (line["kind"] == "gather" && what.find("dense") != std::string::npos) ++gathers;
    }
    return gathers;
  };
  EXPECT_EQ(gathers_of_dense(""), 0);
  EXPECT_EQ(gathers_of_dense("--strategy optimizer"), 2);  // the two blocks of the first stage
}

// However the same is written: a family's section that repeats [shard], or words of the command line.
TEST_F(WalkCommand, AStrategyIsTheSameWhateverElseIsSaid) {
  put("run.toml", small_run);
  put("repeated.toml",
      std::string(small_run) + "[shard]\nstrategy = \"no_shard\"\n[shard.experts]\nstrategy = \"no_shard\"\n");
  for (const std::string name : {"full_shard", "optimizer", "hybrid"}) {
    const std::string walked = weft("walk run.toml --summary --strategy " + name).output;
    EXPECT_NE(walked.find(name), std::string::npos) << walked;
    for (const char* other : {"repeated.toml", "run.toml --shard.strategy=no_shard", "run.toml --shard.residency=step",
                              "run.toml --parallelism.data_shard=2 --shard.reduction=each_microbatch"}) {
      EXPECT_EQ(weft(fmt::format("walk {} --summary --strategy {}", other, name)).output, walked) << other;
    }
  }
}

TEST_F(WalkCommand, RefusesWhatItCannotWalk) {
  put("run.toml", small_run);
  const std::string unknown = refusal("--strategy zero9");
  for (const char* name : {"full_shard", "shard_grad_op", "optimizer", "no_shard", "hybrid", "island N", "zero9"}) {
    EXPECT_NE(unknown.find(name), std::string::npos) << unknown;
  }
  const auto expect_said = [&](const std::string& arguments, const std::string& said) {
    const std::string messages = refusal(arguments);
    EXPECT_NE(messages.find(said), std::string::npos) << messages;
  };
  expect_said("run.toml --ranks 4",
              "its world is 8 = pipeline 2 x data_replicate 1 x data_shard 2 x context 1 x tensor 2");
  expect_said("--ranks 4 --parallelism.data_shard=2 --strategy full_shard", "its world is 2");
  expect_said("--ranks 0", "--ranks takes 1 to 64, not 0");
  expect_said("--hidden 12", "multiple of 8");
  expect_said("run.toml --blocks 2", "excludes");
  expect_said("run.toml --rank 2", "--rank 2 is not one of the 2 ranks of the pipeline");
  expect_said("--strategy 'island 3'", "a divisor of the 4 ranks");
  expect_said("--strategy 'island two'", "a divisor of the 4 ranks");
  expect_said("--ranks 3 --strategy hybrid", "even number");
  expect_said("missing.toml", "missing.toml");
  expect_said("--shard.nonsense=1", "nonsense");
}

// "all" walks what the ranks allow, and says why not the rest.
TEST_F(WalkCommand, SaysWhichStrategiesItsRanksDoNotAllow) {
  const SortedJson walked = json("--ranks 3 --strategy all");
  EXPECT_EQ(walked["strategies"].size(), 4u);
  ASSERT_EQ(walked["left_out"].size(), 2u);
  EXPECT_EQ(walked["left_out"][0]["strategy"], "hybrid");
  EXPECT_EQ(walked["left_out"][1]["strategy"], "island");
  EXPECT_NE(weft("walk --ranks 3 --summary").output.find("hybrid is left out"), std::string::npos);
}

TEST_F(WalkCommand, TheDocumentShowsWhatTheCommandPrints) {
  std::ifstream file(WEFT_SOURCE_DIR "/docs/walk.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  int shown = 0;
  const std::string marker = "<!-- $ build/weft ";
  for (std::size_t at = document.find(marker); at != std::string::npos; at = document.find(marker, at + 1)) {
    const std::size_t first = at + marker.size(), last = document.find(" -->\n", first);
    const std::string arguments = document.substr(first, last - first);
    const auto result = run("(cd '" WEFT_SOURCE_DIR "' && '" WEFT_PROGRAM "' " + arguments + ")");
    ASSERT_EQ(result.exit_code, 0) << result.messages;
    const std::string expected = " -->\n\n```text\n$ build/weft " + arguments + "\n" + result.output + "```\n";
    EXPECT_EQ(document.substr(last, expected.size()), expected) << "tools/docs-tables.sh writes the tables anew";
    ++shown;
  }
  EXPECT_GE(shown, 3);
}

}  // namespace
}  // namespace weft
