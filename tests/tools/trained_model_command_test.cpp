// `weft eval` and `weft generate` in this process, on a model that nobody trained: what they print and refuse.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "parallel/runtime/error.h"
#include "tests/tools/tiny_training.h"
#include "tools/commands.h"

namespace weft {
namespace {

class TrainedModelCommand : public TinyTraining {
 protected:
  void SetUp() override {
    TinyTraining::SetUp();
    std::filesystem::create_directories(path("model"));
    std::filesystem::copy_file(path("run.toml"), path("model/config.toml"));
  }

  struct Output {
    std::string out, messages, error;
  };
  Output run_here(const std::vector<std::string>& words) {
    CLI::App program{"weft"};
    std::string asked;
    const WeightsOfCheckpoint initial = [&asked](const std::string& checkpoint) {
      asked = checkpoint;
      return FillWeights();
    };
    add_eval_command(program, initial);
    add_generate_command(program, initial);
    Output output;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    try {
      program.parse(std::vector<std::string>(words.rbegin(), words.rend()));
      EXPECT_EQ(asked, path("model").string());
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      output.error = error.what();
    } catch (const CLI::ParseError& error) {
      output.error = error.what();
    }
    output.out = testing::internal::GetCapturedStdout();
    output.messages = testing::internal::GetCapturedStderr();
    return output;
  }
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  std::string model() const { return path("model").string(); }
};

TEST_F(TrainedModelCommand, EvalPrintsTheFiguresOfTheText) {
  put("held.txt", "warp and weft and warp");
  const std::vector<std::string> words = {"eval", model(), "--data", path("held.txt").string()};
  std::vector<std::string> as_json = words;
  as_json.push_back("--json");
  const auto document = nlohmann::json::parse(run_here(as_json).out);
  const double loss = document.at("loss");
  // Nothing is learned: near the logarithm of the vocabulary.
  EXPECT_NEAR(loss, std::log(256.0), 0.5);
  EXPECT_DOUBLE_EQ(document.at("perplexity"), std::exp(loss));
  EXPECT_DOUBLE_EQ(document.at("bits_per_byte"), loss / std::log(2.0));
  EXPECT_EQ(document.at("tokens"), 21);
  EXPECT_EQ(document.at("windows"), 3);
  const std::string text = run_here(words).out;
  EXPECT_NE(text.find(fmt::format("loss {:.6f} nats a token", loss)), std::string::npos) << text;
  EXPECT_NE(text.find("21 tokens in 3 windows of 8"), std::string::npos) << text;

  std::vector<std::string> alone = as_json;
  for (const char* key : {"pipeline", "tensor", "data_shard", "expert"}) {
    alone.push_back(fmt::format("--parallelism.{}=1", key));
  }
  const double loss_of_one = nlohmann::json::parse(run_here(alone).out).at("loss");
  EXPECT_NEAR(loss_of_one, loss, 2e-6 * loss);
}

TEST_F(TrainedModelCommand, GenerateWritesTheBytesOfEachSample) {
  const std::vector<std::string> words = {"generate", model(), "--prompt", "warp", "--max-tokens", "6", "--seed", "4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return run_here(more);
  };
  const Output json = with({"--samples", "2", "--json"});
  const auto document = nlohmann::json::parse(json.out);
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
  EXPECT_EQ(with({}).out, texts[0]);  // nothing but the bytes: standard output is no terminal
  EXPECT_EQ(with({"--samples", "2"}).out,
            fmt::format("--- sample 1 of 2 ---\n{}\n--- sample 2 of 2 ---\n{}\n", texts[0], texts[1]));
  EXPECT_EQ(with({"--stop", texts[0].substr(3, 2), "--stop", "no such text"}).out,
            texts[0].substr(0, texts[0].find(texts[0].substr(3, 2))));
  EXPECT_NE(json.messages.find("tokens/s"), std::string::npos) << json.messages;
  EXPECT_NE(json.messages.find("position 10; the model was trained on 8"), std::string::npos) << json.messages;
}

TEST_F(TrainedModelCommand, WrongRequestsAreRefusedWithEverythingWrong) {
  const std::string generate = run_here({"generate", model(), "--prompt", "", "--top-p", "1.5", "--top-k", "0"}).error;
  for (const char* part : {"the prompt is empty", "top-p 1.5", "top-k 0"}) {
    EXPECT_NE(generate.find(part), std::string::npos) << part << " in " << generate;
  }
  EXPECT_NE(run_here({"generate", model(), "--prompt", "a", "--warmth=1"}).error.find("unknown option --warmth"),
            std::string::npos);
  EXPECT_NE(run_here({"eval", model(), "--data", "missing.txt"}).error.find("--data: \"missing.txt\""),
            std::string::npos);
  EXPECT_NE(run_here({"eval", path("none").string(), "--data", path("text.txt").string()}).error.find("config.toml"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
