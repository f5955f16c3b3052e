// `weft program` against goldens derived by hand from configs/quickstart.toml: 2 stages x 2 data ranks
// x 2 tensor ranks, blocks "d e" and "e e", 8 microbatches of 128 tokens, 128 wide.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class ProgramCommand : public ProgramTest {
 protected:
  ProgramResult quickstart(const std::string& command) const {
    // Kept for a stage's visit and reduced once: lists short enough to derive by hand.
    const auto result = weft(command + " '" WEFT_SOURCE_DIR
                                       "/configs/quickstart.toml' --shard.residency=while_on_stage"
                                       " --shard.reduction=last_microbatch");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(result.messages, "");
    return result;
  }
};

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

// 1F1B of two stages and eight microbatches. Rank 0 runs one forward ahead; a stage is visited without a break, so that
// its units are gathered once and dropped at the end.
constexpr const char* first_stage_list =
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0F3,0SEND_F3,0RECV_B2,0B2,"
    "0F4,0SEND_F4,0RECV_B3,0B3,0F5,0SEND_F5,0RECV_B4,0B4,0F6,0SEND_F6,0RECV_B5,0B5,0F7,0SEND_F7,0RECV_B6,0B6,"
    "0RECV_B7,0B7,0RESHARD,0REDUCE_GRAD,GRAD_NORM,STEP\n";

TEST_F(ProgramCommand, CsvAtThreeDetails) {
  EXPECT_EQ(quickstart("program --rank 0 --format csv --stages-only").output, first_stage_list);
  EXPECT_EQ(quickstart("program --rank 3 --format csv --compute-only").output,
            "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0F4,0B3,0F5,0B4,0F6,0B5,0F7,0B6,0B7\n");
  EXPECT_EQ(quickstart("program --rank 7 --format csv --compute-only").output,
            "1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,1F4,1B4,1F5,1B5,1F6,1B6,1F7,1B7\n");
  const auto ranks = split(quickstart("program --format csv").output, '\n');
  ASSERT_EQ(ranks.size(), 8u);
  // A gather is issued where the unit gathered before it begins to be used.
  EXPECT_TRUE(
      ranks[0].starts_with("0UNSHARD(embedding),0UNSHARD(blocks.0.dense),0F0(embedding),0UNSHARD(blocks.1.dense),"
                           "0F0(blocks.0.attention),0F0(blocks.0.mlp),0UNSHARD(blocks.1.experts),"
                           "0F0(blocks.1.attention),0F0(blocks.1.experts),0SEND_F0,"))
      << ranks[0];
  EXPECT_TRUE(ranks[7].ends_with(",GRAD_NORM,STEP")) << ranks[7];
  // All ranks of a stage run one list.
  for (std::size_t rank : {1, 2, 3}) EXPECT_EQ(ranks[rank], ranks[0]);
  for (std::size_t rank : {5, 6, 7}) EXPECT_EQ(ranks[rank], ranks[4]);
  EXPECT_NE(ranks[4], ranks[0]);
}

TEST_F(ProgramCommand, JsonOfEveryAction) {
  const Json program = Json::parse(quickstart("program --json").output);
  EXPECT_EQ(program, Json::parse(quickstart("program --format json").output));
  EXPECT_EQ(keys_of(program), std::vector<std::string>{"ranks"});
  ASSERT_EQ(program["ranks"].size(), 8u);
  const std::vector<std::string> keys = {"op",    "stage", "microbatch", "segment",    "unit", "peer",
                                         "group", "bytes", "lane",       "overlapped", "part"};
  std::size_t actions = 0;
  for (const Json& rank : program["ranks"]) {
    for (const Json& action : rank) EXPECT_EQ(keys_of(action), keys);
    actions += rank.size();
  }
  EXPECT_EQ(split(quickstart("program --format csv").output, ',').size() + 7, actions);  // no comma between lines

  const Json& first = program["ranks"][0];
  // The embedding: 256 / 2 rows of 128 float32.
  EXPECT_EQ(first[0], Json::parse(R"({"op": "UNSHARD", "stage": 0, "microbatch": null, "segment": null,
    "unit": "embedding", "peer": null, "group": "dp_shard", "bytes": 65536, "lane": "gather", "overlapped": false, "part": null})"));
  EXPECT_EQ(first[4], Json::parse(R"({"op": "F", "stage": 0, "microbatch": 0, "segment": "blocks.0.attention",
    "unit": null, "peer": null, "group": null, "bytes": 0, "lane": "compute", "overlapped": false, "part": null})"));
  // A boundary: 128 / 2 tokens of 128 float32. Rank 2's pipeline is {2, 6}.
  const Json send = Json::parse(R"({"op": "SEND_F", "stage": 0, "microbatch": 0, "segment": null, "unit": null,
    "peer": 6, "group": "pp", "bytes": 32768, "lane": "send_activations_up", "overlapped": false, "part": null})");
  EXPECT_EQ(program["ranks"][2][9], send);
  const auto op_of_last = [&](std::size_t back) { return first[first.size() - back]["op"]; };
  EXPECT_EQ(op_of_last(2), "GRAD_NORM");
  EXPECT_EQ(op_of_last(1), "STEP");
  EXPECT_EQ(first[first.size() - 2]["group"], "world");

  const Json one = Json::parse(quickstart("program --json --rank 5").output);
  ASSERT_EQ(one["ranks"].size(), 1u);
  EXPECT_EQ(one["ranks"][0], program["ranks"][5]);
}

TEST_F(ProgramCommand, TextNamesRanksAndAFileTakesTheOutput) {
  const auto text = quickstart("program --stages-only");
  EXPECT_TRUE(text.output.starts_with("rank 0 (pp 0), 37 actions\n  0UNSHARD 0F0 0SEND_F0 ")) << text.output;
  EXPECT_NE(text.output.find("\nrank 7 (pp 1), "), std::string::npos);
  EXPECT_EQ(quickstart("program --rank 0 --format csv --stages-only --output program.csv").output, "");
  std::ifstream file(folder_ / "program.csv");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), first_stage_list);
}

TEST_F(ProgramCommand, ABareScheduleNeedsNoModel) {
  EXPECT_EQ(weft("program --world-only pipeline=2 microbatches=3 --format csv").output,
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0F2,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2,GRAD_NORM,STEP\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2,GRAD_NORM,STEP\n");
  EXPECT_EQ(weft("program --world-only pipeline=3 microbatches=2 schedule=gpipe --format csv --compute-only").output,
            "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n");
  EXPECT_EQ(weft("program --world-only pipeline=2 chunks=2 microbatches=1 schedule=zbv --format csv").output,
            "0F0,0SEND_F0,3RECV_F0,3F0,3I0,3SEND_B0,3W0,0RECV_B0,0I0,0W0,GRAD_NORM,STEP\n"
            "1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2I0,2W0,1I0,1SEND_B0,1W0,GRAD_NORM,STEP\n");
  EXPECT_EQ(weft("program --world-only pipeline=1 chunks=2 microbatches=3 microbatch_group=2 schedule=interleaved "
                 "--format csv --compute-only --rank 0")
                .output,
            "0F0,0F1,1F0,1B0,1F1,1B1,0F2,0B0,1F2,0B1,1B2,0B2\n");
  const Json program = Json::parse(weft("program --world-only pipeline=2 microbatches=1 --json --rank 1").output);
  ASSERT_EQ(program["ranks"].size(), 1u);
  EXPECT_EQ(program["ranks"][0][0]["op"], "RECV_F");
  EXPECT_EQ(program["ranks"][0][0]["peer"], 0);
}

// A user's own order: all counts come from the file, and others beside it must be the same.
TEST_F(ProgramCommand, AScheduleOfOnesOwn) {
  put("mine.csv", "# two ranks\n0F0,0F1,(0F2;0B0)OVERLAP_F_B,,0B1,0B2\r\n1F0,1B0,1F1,1B1,1F2,1B2\r\n");
  const auto result = weft("program --world-only schedule=mine.csv --format csv");
  EXPECT_EQ(result.messages, "");
  EXPECT_EQ(
      result.output,
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,(0F2;0B0)OVERLAP_F_B,0SEND_F2,0RECV_B1,0B1,0RECV_B2,0B2,GRAD_NORM,STEP\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1,1RECV_F2,1F2,1B2,1SEND_B2,GRAD_NORM,STEP\n");
  EXPECT_EQ(
      weft("program --world-only schedule=mine.csv pipeline=2 chunks=1 microbatches=3 --compute-only --format csv "
           "--rank 0")
          .output,
      "0F0,0F1,(0F2;0B0)OVERLAP_F_B,0B1,0B2\n");
  const Json pair = Json::parse(weft("program --world-only schedule=mine.csv --json --rank 0").output)["ranks"][0];
  EXPECT_EQ(pair[5]["overlapped"], true);
  EXPECT_EQ(pair[7]["overlapped"], false);

  const auto other = weft("program --world-only schedule=mine.csv pipeline=4 microbatches=8");
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_NE(
      other.messages.find("mine.csv:\nthe schedule's file sets the counts itself: 4 ranks asked for, but the file "
                          "has 2 lines; 8 microbatches asked for, but the file runs 3"),
      std::string::npos)
      << other.messages;
  put("bad.csv", "0F0,0BW0\n1F0,1B0,1B0\n");
  const auto bad = weft("program --world-only schedule=bad.csv");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_NE(bad.messages.find("\nline 1, column 5: cell \"0BW0\""), std::string::npos) << bad.messages;
  EXPECT_NE(bad.messages.find("\nline 2, column 9: cell \"1B0\""), std::string::npos) << bad.messages;
  for (const char* arguments : {"schedule=gone.csv", "schedule=mine.csv microbatch_group=2"}) {
    EXPECT_EQ(weft(std::string("program --world-only ") + arguments).exit_code, 2) << arguments;
  }
}

// The keys that fit a schedule's file are named, and with them it is taken.
TEST_F(ProgramCommand, AScheduleOfOtherCountsNamesTheKeysThatFit) {
  put("text.txt", std::string(20'000, 'w'));
  put("run.toml",
      std::string(small_run) + "[training]\nsequence_length = 16\nglobal_batch_size = 8\n[run]\nsteps = 2\n");
  ASSERT_EQ(weft("program run.toml --format csv --compute-only --output two.csv").exit_code, 0);
  const auto refused = weft("check run.toml --pipeline.schedule=two.csv --training.global_batch_size=16");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("It runs with parallelism.pipeline = 2 and training.global_batch_size = 8"),
            std::string::npos)
      << refused.messages;
  EXPECT_EQ(weft("check run.toml --pipeline.schedule=two.csv").exit_code, 0);
  const auto chunks = weft("check run.toml --pipeline.schedule=two.csv --pipeline.chunks=3");
  EXPECT_NE(chunks.messages.find("global_batch_size = 8, without pipeline.chunks"), std::string::npos)
      << chunks.messages;
}

// The order of a run as CSV has a line for each rank of one pipeline, and is a schedule's file. Read back it gives the
// same step, and edited it trains.
TEST_F(ProgramCommand, AnExportedOrderIsASchedule) {
  put("text.txt", std::string(20'000, 'w') + "eft");
  put("run.toml",
      std::string(small_run) + "[training]\nsequence_length = 16\nglobal_batch_size = 8\n[run]\nsteps = 2\n");
  for (const char* keys :
       {"--pipeline.schedule=1f1b", "--pipeline.schedule=zb_h1", "--pipeline.schedule=interleaved --pipeline.chunks=2",
        "--pipeline.schedule=dualpipev --pipeline.chunks=2"}) {
    SCOPED_TRACE(keys);
    const std::string named = std::string("program run.toml --format csv ") + keys;
    const std::string own = "program run.toml --format csv --pipeline.schedule=own.csv";
    const auto written = weft(named + " --compute-only --output own.csv");
    ASSERT_EQ(written.exit_code, 0) << written.messages;
    // Ranks 3 and 7 are of another pipeline than 0 and 4, and run the same order.
    const std::string order =
        weft(named + " --compute-only --rank 3").output + weft(named + " --compute-only --rank 7").output;
    EXPECT_EQ(std::ranges::count(order, '\n'), 2);
    EXPECT_EQ(weft(own + " --compute-only").output, order);
    EXPECT_EQ(weft(own).output, weft(named).output);
  }
  // A forward before the first backward more. The order of a stage's backwards stays, and with it every bit.
  std::string order = weft("program run.toml --format csv --compute-only").output;
  const std::string turn = "0B0,0F2";
  ASSERT_NE(order.find(turn), std::string::npos) << order;
  put("own.csv", order.replace(order.find(turn), turn.size(), "0F2,0B0"));
  const auto losses = [&](const std::string& words) {
    const auto trained = weft("train run.toml --run.directory=out " + words);
    EXPECT_EQ(trained.exit_code, 0) << trained.messages;
    std::vector<Json> found;
    std::ifstream lines(folder_ / "out/metrics.jsonl");
    for (std::string line; std::getline(lines, line);) found.push_back(Json::parse(line)["loss"]);
    std::filesystem::remove_all(folder_ / "out");
    return found;
  };
  const auto own = losses("--pipeline.schedule=own.csv");
  EXPECT_EQ(own.size(), 2u);
  EXPECT_EQ(own, losses(""));
}

// With both halves of a backward as long as a forward, 1F1B takes (m + p - 1) * 3. With a stage's time shared by two
// chunks, ZB-V has no bubble but the first and last forwards of half a unit.
TEST_F(ProgramCommand, PicturesOfABareSchedule) {
  const std::string bare = "program --world-only pipeline=4 microbatches=8";
  const auto svg = weft(bare + " --format svg");
  EXPECT_EQ(svg.exit_code, 0) << svg.messages;
  EXPECT_TRUE(svg.output.starts_with("<svg ")) << svg.output.substr(0, 80);
  EXPECT_NE(svg.output.find("<title>1f1b, 4 ranks, 8 microbatches</title>"), std::string::npos);
  EXPECT_NE(svg.output.find(">step 33 units, bubble 27.3 %<"), std::string::npos);

  const auto page = weft(bare + " --format html --variant 'schedule=zbv chunks=2' --variant schedule=gpipe");
  ASSERT_EQ(page.exit_code, 0) << page.messages;
  const std::string open = "id=\"data\">";
  const std::size_t begin = page.output.find(open) + open.size();
  const Json data = Json::parse(page.output.substr(begin, page.output.find("</script>", begin) - begin));
  ASSERT_EQ(data["variants"].size(), 3u);
  EXPECT_EQ(data["variants"][1]["title"], "zbv, 4 ranks x 2 chunks, 8 microbatches");
  EXPECT_EQ(data["variants"][0]["seconds"], 33);
  EXPECT_EQ(data["variants"][1]["seconds"], 25.5);
  EXPECT_EQ(data["variants"][2]["seconds"], 33);

  const auto trace = weft(bare + " --format trace --rank 2 --output step.json");
  EXPECT_EQ(trace.output, "");
  std::ifstream file(folder_ / "step.json");
  const Json steps = Json::parse(file);
  std::size_t events = 0;
  for (const Json& event : steps["traceEvents"]) {
    EXPECT_EQ(event["pid"], 2);
    events += event["ph"] == "X";
  }
  EXPECT_EQ(events, 16u);
}

// A rank gathers and reduces all its units once in the time that is given for that, each by its bytes. An action that
// takes no time has no box.
TEST_F(ProgramCommand, PicturesOfARunHaveTheCostsThatAreGiven) {
  const auto seconds_of = [&](const std::string& costs) {
    std::map<std::string, double> seconds;  // by category, of rank 0
    const Json trace = Json::parse(quickstart("program --format trace " + costs).output);
    for (const Json& event : trace["traceEvents"]) {
      if (event["ph"] != "X" || event["pid"] != 0) continue;
      seconds[event["cat"]] += event["dur"].get<double>() * 1e-6;
    }
    return seconds;
  };
  // Eight microbatches; a send of activations and a receive of gradients each, at a tenth.
  const auto given = seconds_of("--costs 'forward=2 gather=0.5 reduce=0.75 transfer=0.1 norm=0.25 step=0.5'");
  EXPECT_NEAR(given.at("forward"), 16.0, 1e-9);
  EXPECT_NEAR(given.at("backward"), 16.0, 1e-9);
  EXPECT_NEAR(given.at("gather"), 0.5, 1e-9);
  EXPECT_NEAR(given.at("reduction"), 0.75, 1e-9);
  EXPECT_NEAR(given.at("activations"), 0.8, 1e-9);
  EXPECT_NEAR(given.at("gradients"), 0.8, 1e-9);
  EXPECT_NEAR(given.at("update"), 0.75, 1e-9);
  // What a microbatch leaves moves to host memory and back, and each exchange of rows takes as long as is given.
  EXPECT_NEAR(seconds_of("--training.offload=1.0 --costs host_copy=0.5").at("host copy"), 2 * 8 * 0.5, 1e-9);
  const double rows =
      seconds_of("--pipeline.schedule=combined_1f1b --pipeline.chunks=2 --costs rows=0.25").at("rows of experts");
  EXPECT_NEAR(std::remainder(rows, 0.25), 0.0, 1e-9);
  EXPECT_GT(rows, 8 * 0.25);
  const auto even = seconds_of("");
  EXPECT_NEAR(even.at("forward"), 8.0, 1e-9);
  EXPECT_FALSE(even.contains("gather"));
  EXPECT_EQ(quickstart("program --format trace --rank 6").output, quickstart("program --format trace --rank 7").output);
}

// 8 stages x 32 data ranks x 4 tensor ranks = 1,024; 16,384 sequences / 32 = 512 microbatches.
TEST_F(ProgramCommand, OneRankOfAThousand) {
  put("large.toml", R"([model]
layers = "d*8"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_attention_heads = 4
num_key_value_heads = 4
head_dim = 8
[parallelism]
pipeline = 8
tensor = 4
data_shard = 32
[training]
global_batch_size = 16384
[data]
train = ["text.txt"]
)");
  const auto result = weft("program large.toml --rank 777 --format csv --compute-only");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const auto cells = split(result.output, ',');
  ASSERT_EQ(cells.size(), 2u * 512);
  // Rank 777 = 6 x 128 + 9 stands on stage 6: one rank behind it, so one forward ahead.
  EXPECT_TRUE(result.output.starts_with("6F0,6F1,6B0,6F2,6B1,")) << result.output.substr(0, 40);
  EXPECT_TRUE(result.output.ends_with(",6F511,6B510,6B511\n")) << result.output.substr(result.output.size() - 40);
  EXPECT_TRUE(weft("program large.toml --rank 1023").output.starts_with("rank 1023 (pp 7), "));
}

TEST_F(ProgramCommand, WrongRequestsEndWithTwo) {
  put("run.toml", small_run);
  for (const char* arguments : {"program",
                                "program gone.toml",
                                "program run.toml --rank 8",
                                "program run.toml --rank=-1",
                                "program run.toml --format dot",
                                "program run.toml --output /",
                                "program run.toml --costs gather=1",
                                "program run.toml --format svg --costs gather=much",
                                "program run.toml --format svg --costs time=1",
                                "program run.toml --format svg --costs gather=-1",
                                "program run.toml --format svg --rank 8",
                                "program run.toml --format svg --variant=--pipeline.schedule=gpipe",
                                "program run.toml --variant=--run.seed=1",
                                "program run.toml --format html --variant=--pipeline.schedule=none",
                                "program --world-only pipeline=2 microbatches=2 --format html --variant chunks=two",
                                "program --world-only pipeline=2 microbatches=2 --format trace --rank 2",
                                "program --world-only pipeline=2 microbatches=2 --rank 2",
                                "program --world-only pipeline=8 microbatches=2000 --format svg",
                                "program --world-only pipeline=2",
                                "program --world-only pipeline=0 microbatches=2",
                                "program --world-only pipeline=2 microbatches=two",
                                "program --world-only pipeline=2 microbatches=2 schedule=none",
                                "program --world-only pipeline=2 microbatches=2 schedule=zbv",
                                "program --world-only pipeline=4 chunks=2 microbatches=11 schedule=interleaved",
                                "program --world-only pipeline=2 microbatches=2 microbatch_group=0",
                                "program --world-only run.toml"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_NE(result.messages, "") << arguments;
  }
}

}  // namespace
}  // namespace weft
