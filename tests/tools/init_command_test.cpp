// `weft init` as a newcomer uses it: what it writes is checked, planned and trained without a change.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class InitCommand : public TinyTraining {
 protected:
  std::string ok(const std::string& arguments) const {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.output << result.messages;
    return result.output;
  }
  std::string refused(const std::string& arguments) const {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments << "\n" << result.output << result.messages;
    return result.messages;
  }
  std::string text_of(const std::string& name) const {
    std::ifstream file(folder_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

TEST_F(InitCommand, WhatItWritesTrains) {
  for (const char* experts : {"", " --experts 4"}) {
    const std::string name = fmt::format("a{}", *experts == '\0' ? 0 : 1);
    ok(fmt::format("init text.txt --parameters {} --ranks 2 --tokens 2K --sequence-length 16 --name {}{}",
                   *experts == '\0' ? "200K" : "500K", name, experts));
    const std::string text = text_of(name + ".toml");
    EXPECT_NE(text.find("weft train " + name + ".toml"), std::string::npos) << text;
    EXPECT_NE(text.find("# Memory of the fullest rank: fits: "), std::string::npos) << text;
    EXPECT_FALSE(std::filesystem::exists(folder_ / (name + ".toml.draft")));
    ok("check " + name + ".toml");
    const std::string lines = ok("train " + name + ".toml");
    EXPECT_NE(lines.find("2 ranks"), std::string::npos) << lines;
    const Json summary = Json::parse(text_of("runs/" + name + "/summary.json"));
    EXPECT_GT(summary["steps"].get<int>(), 10) << summary;
  }
}

// The comment at the top says of a step what the plan of the written file says.
TEST_F(InitCommand, AClustersFileFits) {
  const std::string head = ok("init text.txt --parameters 1B --hardware h100 --ranks 16 --sequence-length 1024");
  const Json plan = Json::parse(ok("plan first.toml --json"));
  EXPECT_EQ(plan["verdict"], "fits") << plan["verdict_text"];
  EXPECT_NE(head.find("#   srun weft train first.toml"), std::string::npos) << head;
  const double seconds = plan["step_seconds"].get<double>();
  EXPECT_NE(head.find(fmt::format("a step takes {:.4g} ms", 1e3 * seconds)), std::string::npos) << head << seconds;
}

TEST_F(InitCommand, ItKeepsFilesAndAsksForWhatItCannotKnow) {
  put("kept.toml", "mine");
  EXPECT_NE(refused("init text.txt --parameters 1M --output kept.toml").find("exists"), std::string::npos);
  EXPECT_EQ(text_of("kept.toml"), "mine");
  EXPECT_NE(refused("init absent.txt --parameters 1M").find("absent.txt"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --hardware tpu").find("tpu"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1K").find("the nearest has"), std::string::npos);
  EXPECT_NE(refused("init text.txt").find("--parameters"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters -5").find("above 0"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --tokens -3").find("above 0"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --experts 1").find("--experts-per-token 2"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --experts-per-token 4").find("--experts"), std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --tokens 10").find("10 tokens to train on are fewer than"),
            std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 200K --sequence-length 100000").find("fewer than one window"),
            std::string::npos);
  EXPECT_NE(
      refused("init text.txt --parameters 70B --hardware rtx4090 --ranks 1 --sequence-length 16").find("nothing fits"),
      std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --device cpu --hardware h100").find("contradict each other"),
            std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 1M --device cuda --hardware cpu").find("contradict each other"),
            std::string::npos);
  EXPECT_NE(refused("init text.txt --parameters 300B --device cpu --ranks 2 --sequence-length 16")
                .find("nothing fits on 2 ranks of cpu"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "first.toml"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "first.toml.draft"));
}

// Names with blanks: the commands at the top run as they stand.
TEST_F(InitCommand, ItsCommandsAreCopied) {
  const std::string head =
      ok("init text.txt --parameters 200K --ranks 1 --tokens 2K --sequence-length 16 --name 'a b'");
  const std::string line = "#   weft check 'a b.toml'\n#   weft plan 'a b.toml'\n#   weft train 'a b.toml'\n";
  EXPECT_NE(head.find(line), std::string::npos) << head;
  ok("check 'a b.toml'");
  run("cp text.txt 'a text.txt'");
  ok("data train-tokenizer text.txt --vocab-size 262 --output 'a tok.json'");
  const std::string why = refused(
      "check 'a b.toml' --data.tokenizer='a tok.json' --data.train='[\"a text.txt\"]' "
      "--model.vocab_size=320 --data.padded_vocab=true");
  const std::string command = "weft data tokenize 'a text.txt' --tokenizer 'a tok.json' --output PREFIX";
  EXPECT_NE(why.find(command), std::string::npos) << why;
}

// The draft that the search reads is gone, so nothing points into it.
TEST_F(InitCommand, ItsRefusalsNameNoDraft) {
  const std::string why =
      refused("init text.txt --parameters 200K --sequence-length 16 --device cuda --hardware nosuch");
  EXPECT_EQ(why.find("weft init: error: \"first.toml\" is not written, for weft check would refuse it:\nfirst.toml:"),
            0u)
      << why;
  EXPECT_EQ(why.find("draft"), std::string::npos) << why;
}

// Many short pairs would share sequences, and see each other.
TEST_F(InitCommand, ADraftOfTheUserStays) {
  put("text.txt", std::string(20'000, 'w'));
  put("first.toml.draft", "mine");
  const ProgramResult refused = weft("init text.txt --parameters 70k --output first.toml");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("\"first.toml.draft\" exists"), std::string::npos) << refused.messages;
  EXPECT_EQ(run("cat first.toml.draft").output, "mine");
}

// The rest of a file behind its last window is not read, and packed sequences have room left.
TEST_F(InitCommand, ItCountsThePassesThatARunTakes) {
  std::string files, lines;
  for (int i = 0; i < 40; ++i) {
    put(fmt::format("{}.txt", i), std::string(400, 'w'));
    files += fmt::format("{}.txt ", i);
  }
  for (int i = 0; i < 400; ++i) lines += fmt::format("{{\"q\": \"the loom of {}? \", \"a\": \"the weft.\"}}\n", i);
  put("pairs.jsonl", lines);
  put("window.txt", std::string(300, 'w'));
  ok("data tokenize pairs.jsonl --prompt q --key a --tokenizer byte --output pairs");
  const auto passes = [](const std::string& text, const std::string& before, const std::string& behind) {
    const std::size_t end = text.find(behind), begin = text.rfind(before, end) + before.size();
    return end == std::string::npos ? "no passes in " + text : text.substr(begin, end - begin);
  };
  int number = 0;
  for (const auto& [arguments, most] : std::vector<std::pair<std::string, double>>{
           {files + "--sequence-length 256 --ranks 1", 4.0},
           {"pairs --sequence-length 50 --ranks 1", 4.0},
           {"window.txt --sequence-length 256 --ranks 8", 8.0}}) {  // a sequence for each rank
    const std::string name = fmt::format("p{}", ++number);
    ok(fmt::format("init {} --parameters 200K --name {}", arguments, name));
    const std::string told = passes(text_of(name + ".toml"), ", ", " passes over the data");
    EXPECT_EQ(told, passes(ok("check " + name + ".toml"), ": ", " passes")) << arguments;
    EXPECT_LE(std::stod(told), most) << arguments;
    EXPECT_GT(std::stod(told), 0.9 * most) << arguments;
  }
}

TEST_F(InitCommand, PromptsWithAnswersArePacked) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += fmt::format("{{\"q\": \"the loom of {}? \", \"a\": \"the weft.\"}}\n", i);
  put("pairs.jsonl", lines);
  ok("data tokenize pairs.jsonl --prompt q --key a --tokenizer byte --output pairs");
  ok("init pairs --parameters 200K --ranks 1 --tokens 2K --sequence-length 64");
  EXPECT_NE(text_of("first.toml").find("documents = \"pack\""), std::string::npos) << text_of("first.toml");
  ok("check first.toml");
}

// Data of a tokenizer bring it along, and a vocabulary that ranks share evenly.
TEST_F(InitCommand, TokensBringTheirTokenizer) {
  ok("data train-tokenizer text.txt --vocab-size 262 --output tok.json");
  ok("data tokenize text.txt --tokenizer tok.json --output train");
  ok("init train.bin --parameters 1M --ranks 1 --tokens 1K --sequence-length 16 --validation train.bin");
  const std::string text = text_of("first.toml");
  EXPECT_NE(text.find("tokenizer = \"tok.json\""), std::string::npos) << text;
  EXPECT_NE(text.find("vocab_size = 320"), std::string::npos) << text;
  ok("check first.toml");
}

}  // namespace
}  // namespace weft
