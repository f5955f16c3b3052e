// `weft eval` and `weft generate` on a model that `weft train` has saved, under its layout and another.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

constexpr const char* on_one_rank =
    " --parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.expert=1";

class TrainedModelCommand : public TinyTraining {
 protected:
  // Four steps, each over the whole text, which is one global batch of 8 windows of 8 bytes; saved after the third.
  void SetUp() override {
    TinyTraining::SetUp();
    put("text.txt", "warp and weft and loom and thread and shuttle and cloth and warp!");
    const ProgramResult trained =
        weft("train run.toml --run.steps=4 --checkpoint.interval=3 --checkpoint.at_end=false");
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  }
  double loss_of_step(int step) const {
    std::ifstream metrics(folder_ / "out/tiny/metrics.jsonl");
    std::string line;
    for (int i = 0; i < step; ++i) std::getline(metrics, line);
    return nlohmann::json::parse(line).at("loss");
  }
  nlohmann::json json(const std::string& arguments) const {
    const ProgramResult result = weft(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return nlohmann::json::parse(result.output);
  }
};

// The fourth step begins with the weights that were saved after the third, and reads all windows in another order. It
// has the same 64 float32 losses, added in double.
TEST_F(TrainedModelCommand, EvalHasTheLossWithWhichTrainingGoesOn) {
  const nlohmann::json document = json("eval out/tiny --data text.txt");
  const double loss = document.at("loss");
  EXPECT_NEAR(loss, loss_of_step(4), 1e-12);
  EXPECT_GT(std::abs(loss - loss_of_step(3)), 1e-6);
  EXPECT_DOUBLE_EQ(document.at("perplexity"), std::exp(loss));
  EXPECT_DOUBLE_EQ(document.at("bits_per_byte"), loss / std::log(2.0));
  EXPECT_EQ(document.at("tokens"), 64);
  EXPECT_EQ(document.at("windows"), 8);
  const std::string text = weft("eval out/tiny/checkpoints/step-00000003 --data text.txt").output;
  EXPECT_NE(text.find(fmt::format("loss {:.6f} nats a token", loss)), std::string::npos) << text;
  EXPECT_NE(text.find("64 tokens in 8 windows of 8"), std::string::npos) << text;
  // Sums in another order (evaluation_test.cpp).
  const double alone = json(std::string("eval out/tiny --data text.txt") + on_one_rank).at("loss");
  EXPECT_NEAR(alone, loss, 2e-6 * loss);
}

// Each reads what the run was from its configuration, so one that was changed by hand is damage as any other.
TEST_F(TrainedModelCommand, AChangedConfigurationIsDamage) {
  const std::filesystem::path file = folder_ / "out/tiny/checkpoints/step-00000003/config.toml";
  std::ifstream in(file);
  std::string text(std::istreambuf_iterator<char>(in), {});
  const std::string from = "documents = \"join\"";
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos) << text;
  const auto change = [&](const char* to) { std::ofstream(file) << std::string(text).replace(at, from.size(), to); };
  // Held against its checksum before it is parsed.
  change("documentz = \"join\"");
  const std::string unparsed = weft("generate out/tiny --prompt warp --max-tokens 2").messages;
  EXPECT_NE(unparsed.find("config.toml: its first"), std::string::npos) << unparsed;
  change("documents = \"mask\"");
  for (const char* command : {"eval out/tiny --data text.txt", "generate out/tiny --prompt warp --max-tokens 2"}) {
    const ProgramResult refused = weft(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_NE(refused.messages.find("config.toml"), std::string::npos) << refused.messages;
  }
  const ProgramResult resumed = weft("train run.toml --run.steps=5");
  EXPECT_NE(resumed.exit_code, 0);
  EXPECT_NE(resumed.output.find("step-00000003 IS DAMAGED"), std::string::npos) << resumed.output;
}

// A loss in windows of another length is another figure, and comes only to whoever asks for it.
TEST_F(TrainedModelCommand, EvalTakesNoOtherWindowInSilence) {
  const std::string command = "eval out/tiny --data text.txt";
  const ProgramResult refused = weft(command + " --training.sequence_length=16");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("training.sequence_length is 8 in the checkpoint and 16 here"), std::string::npos)
      << refused.messages;
  EXPECT_EQ(json(command + " --window 16").at("windows"), 4);
  EXPECT_EQ(json(command + " --window 8").at("loss"), json(command + " --training.sequence_length=8").at("loss"));
}

TEST_F(TrainedModelCommand, GenerateWritesTheBytesOfEachSample) {
  const std::string command = "generate out/tiny --prompt warp --max-tokens 6 --seed 4";
  const ProgramResult as_json = weft(command + " --samples 2 --json");
  ASSERT_EQ(as_json.exit_code, 0) << as_json.messages;
  EXPECT_NE(as_json.messages.find("tokens/s"), std::string::npos) << as_json.messages;
  EXPECT_NE(as_json.messages.find("position 10; the model was trained on 8: --max-tokens 4 stays within"),
            std::string::npos)
      << as_json.messages;
  const nlohmann::json document = nlohmann::json::parse(as_json.output);
  ASSERT_EQ(document.at("samples").size(), 2u);
  std::vector<std::string> texts;
  for (const auto& sample : document.at("samples")) {
    EXPECT_EQ(sample.at("finish"), "length");
    EXPECT_EQ(sample.at("tokens"), 6);
    std::string text;
    for (int byte : sample.at("bytes")) text += static_cast<char>(byte);
    texts.push_back(text);
  }
  EXPECT_NE(texts[0], texts[1]);
  EXPECT_EQ(weft(command).output, texts[0]);  // nothing but the bytes: standard output is no terminal
  EXPECT_EQ(weft(command + on_one_rank).output, texts[0]);
  const std::string shorter = "generate out/tiny --prompt warp --max-tokens 4 --seed 4";
  const std::string both = run("('" + weft_program() + "' " + shorter + " 2>&1)").output;
  EXPECT_TRUE(both.starts_with(weft(shorter).output + "\nprompt of 4 tokens in ")) << both;
  EXPECT_EQ(weft(command + " --samples 2").output,
            fmt::format("--- sample 1 of 2 ---\n{}\n--- sample 2 of 2 ---\n{}\n", texts[0], texts[1]));
}

TEST_F(TrainedModelCommand, GenerateStopsAtTheTrainedLengthUnlessToldMore) {
  const ProgramResult within = weft("generate out/tiny --prompt warp");
  EXPECT_EQ(within.output.size(), 4u);
  EXPECT_EQ(within.messages.find("warning"), std::string::npos) << within.messages;
  const ProgramResult beyond = weft("generate out/tiny --prompt 'warp and weft'");
  EXPECT_EQ(beyond.output.size(), 128u);
  EXPECT_NE(beyond.messages.find("give a shorter prompt"), std::string::npos) << beyond.messages;
}

// Three ranks of data divide no batch of eight, and sixteen are more.
TEST_F(TrainedModelCommand, TheBatchOfTrainingRefusesNoLayout) {
  const double loss = json("eval out/tiny --data text.txt").at("loss");
  for (const char* layout :
       {"--parallelism.pipeline=1 --parallelism.data_shard=3", "--parallelism.data_shard=16 --parallelism.tensor=1"}) {
    const ProgramResult result =
        weft(std::string("eval out/tiny --data text.txt --json --parallelism.expert=1 ") + layout);
    ASSERT_EQ(result.exit_code, 0) << layout << "\n" << result.messages;
    EXPECT_NEAR(nlohmann::json::parse(result.output).at("loss"), loss, 2e-6 * loss) << layout;
  }
}

TEST_F(TrainedModelCommand, WrongRequestsAreRefusedWithEverythingWrong) {
  const auto refusal = [&](const std::string& arguments) {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    return result.messages;
  };
  const std::string request = refusal("generate out/tiny --prompt '' --top-p 1.5 --top-k 0 --stop ''");
  for (const char* part : {"the prompt is empty", "top-p 1.5", "top-k 0", "empty stop"}) {
    EXPECT_NE(request.find(part), std::string::npos) << part << " in " << request;
  }
  for (const char* seed : {"-1", "18446744073709551616", "1.5", "x"}) {
    const std::string told = refusal(std::string("generate out/tiny --prompt a --seed ") + seed);
    EXPECT_NE(told.find(std::string("\"") + seed + "\" is not a whole number from 0"), std::string::npos) << told;
  }
  const std::string nameless = refusal("data train-tokenizer text.txt --output ''");
  EXPECT_EQ(nameless.find("filesystem error"), std::string::npos) << nameless;
  const std::string long_name(300, 'n');
  const std::string too_long = refusal("diagnose " + long_name);
  EXPECT_NE(too_long.find(long_name + ": File name too long"), std::string::npos) << too_long;
  EXPECT_NE(refusal("generate out/tiny --prompt a --warmth=1").find("unknown option --warmth"), std::string::npos);
  EXPECT_NE(refusal("eval out/tiny --data missing.txt").find("--data: \"missing.txt\""), std::string::npos);
  EXPECT_NE(refusal("eval out --data text.txt").find("out"), std::string::npos);
  const std::string other = refusal("eval out/tiny --data text.txt --model.hidden_size=32");
  EXPECT_NE(other.find("another model"), std::string::npos) << other;
  EXPECT_NE(other.find("model.hidden_size"), std::string::npos) << other;
}

// A hybrid under two layouts, and a model that has no attention and no heads of it: trained, gone on with, evaluated
// and read aloud.
class StateSpaceCommand : public TinyTraining {
 protected:
  // The loss of the last step of a run that begins or goes on.
  double trained(const std::string& file, const std::string& more) const {
    const ProgramResult result = weft("train " + file + " " + more);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    std::ifstream metrics(folder_ / "out/tiny/metrics.jsonl");
    std::string line, last;
    while (std::getline(metrics, line)) last = line;
    return nlohmann::json::parse(last).at("loss");
  }
  void replace(std::string& text, const std::string& from, const std::string& to) const {
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
  }
};

TEST_F(StateSpaceCommand, TrainsGoesOnAndGenerates) {
  std::string hybrid = tiny_run;
  replace(hybrid, "\"d e\"", "\"(M A E)~5\"");
  replace(hybrid, "[model.moe]",
          "[model.state_space]\nnum_heads = 4\nhead_dim = 8\nstate_size = 8\nn_groups = 2\n[model.moe]");
  std::string pure = hybrid;
  for (const char* line :
       {"num_attention_heads = 4\n", "num_key_value_heads = 2\n", "head_dim = 4\n", "expert = 2\n"}) {
    replace(pure, line, "");
  }
  replace(pure, "\"(M A E)~5\"", "\"M*2 D\"");
  put("hybrid.toml", hybrid);
  put("pure.toml", pure);
  for (const std::string file : {"hybrid.toml", "pure.toml"}) {
    SCOPED_TRACE(file);
    std::filesystem::remove_all(folder_ / "out");
    trained(file, "--run.steps=2");
    // Other layouts go on, and learn what the first one would have learnt.
    const std::string alone = file == "hybrid.toml" ? on_one_rank
                                                    : " --parallelism.pipeline=1 --parallelism.tensor=1 "
                                                      "--parallelism.data_shard=1";
    const std::string goes_on = "--run.steps=4 --checkpoint.at_end=false";
    const double changed = trained(file, goes_on + alone);
    const double shared = trained(file, goes_on + " --parallelism.context=2 --parallelism.tensor=1");
    const double same = trained(file, "--run.steps=4");
    EXPECT_NEAR(changed, same, 1e-5 * same);
    EXPECT_NEAR(shared, same, 1e-5 * same);
    const std::string prompt = " --prompt 'warp and' --max-tokens 6 --temperature 0 --json";
    const ProgramResult text = weft("generate out/tiny" + prompt), other = weft("generate out/tiny" + prompt + alone);
    ASSERT_EQ(text.exit_code, 0) << text.messages;
    ASSERT_EQ(other.exit_code, 0) << other.messages;
    EXPECT_EQ(nlohmann::json::parse(text.output).at("samples"), nlohmann::json::parse(other.output).at("samples"));
  }
}

}  // namespace
}  // namespace weft
