// weft checkpoint upcycle: the model with experts begins with the losses of the dense one, under any layout, and
// trains.
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

class UpcycleCommand : public TinyTraining {
 protected:
  void SetUp() override {
    TinyTraining::SetUp();
    const auto trained = weft(
        "train run.toml --run.directory=dense --model.layers=d*3 --run.steps=20 --parallelism.expert=1 "
        "--optimizer.learning_rate=0.01 --data.tokenizer=byte");
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  }
  double loss_of(const std::string& arguments, const std::string& data = "text.txt") {
    const auto result = weft("eval " + arguments + " --data " + data + " --json");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return nlohmann::json::parse(result.output).at("loss");
  }
  std::string refusal_of(const std::string& arguments) {
    const auto result = weft("checkpoint upcycle dense refused " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "refused"));
    return result.messages;
  }
};

TEST_F(UpcycleCommand, BeginsWithTheLossesOfTheDenseModel) {
  const double dense = loss_of("dense");
  EXPECT_LT(dense, 4.5);  // of log 256 = 5.5
  for (const std::string layers : {"e*3", "d e d", "d e*2"}) {
    const auto made =
        weft("checkpoint upcycle dense 'up " + layers + "' --experts 6 --per-token 3 --layers '" + layers + "'");
    ASSERT_EQ(made.exit_code, 0) << made.messages;
    EXPECT_NE(made.output.find("parameters"), std::string::npos) << made.output;
    EXPECT_EQ(weft("checkpoint verify 'up " + layers + "'").exit_code, 0);
    EXPECT_NEAR(loss_of("'up " + layers + "'"), dense, 2e-6) << layers;
    EXPECT_NEAR(loss_of("'up " + layers + "' --parallelism.data_shard=2 --parallelism.expert=2 --parallelism.tensor=2"),
                dense, 2e-6)
        << layers;
  }
  // It is the start of a run, in which the experts come apart.
  const auto trained = weft(
      "train run.toml --run.directory=moe --model.layers='d e d' --run.steps=30 --model.moe.num_experts=6 "
      "--model.moe.num_experts_per_tok=3 --model.moe.moe_intermediate_size=24 --optimizer.learning_rate=0.01 "
      "--checkpoint.start_from='up d e d' --checkpoint.weights_only=true --data.tokenizer=byte");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  EXPECT_LT(loss_of("moe"), dense);
  const auto apart = weft("checkpoint diff moe 'up d e d' --json");
  EXPECT_NE(apart.output.find("blocks.1.experts.5.up_proj.weight"), std::string::npos);
}

// No block of the dense run reads these keys. The first two would change the losses of the new model, the third would
// leave 3 experts in 2 groups, which no run opens.
TEST_F(UpcycleCommand, TakesOverNoKeyThatTheDenseRunDidNotRead) {
  std::string run = tiny_run;
  const std::string section = "[model.moe]\n";
  run.insert(run.find(section) + section.size(), "routed_scaling_factor = 2.5\ncapacity_factor = 1.0\nn_group = 2\n");
  put("unread.toml", run);
  const auto trained =
      weft("train unread.toml --run.directory=unread --model.layers=d*3 --parallelism.expert=1 --data.tokenizer=byte");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  ASSERT_EQ(weft("checkpoint upcycle unread up --experts 3").exit_code, 0);
  EXPECT_NEAR(loss_of("up"), loss_of("unread"), 2e-6);
}

// A run that trains within documents is evaluated within them, and so is what it becomes.
TEST_F(UpcycleCommand, KeepsTheDocumentsOfTheDenseRun) {
  put("lines.txt", "warp\nand\nweft\nwarp\nweft\nweft\nand\n");
  ASSERT_EQ(weft("data tokenize lines.txt --documents line --tokenizer byte --output lines").exit_code, 0);
  const auto trained = weft(
      "train run.toml --run.directory=masked --model.layers=d*3 --parallelism.expert=1 --data.train='[\"lines.bin\"]' "
      "--data.tokenizer=byte --data.documents=mask --run.steps=20 --optimizer.learning_rate=0.01");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  ASSERT_EQ(weft("checkpoint upcycle masked up --experts 4").exit_code, 0);
  const double dense = loss_of("masked", "lines.bin");
  EXPECT_GT(std::abs(loss_of("masked --data.documents=join", "lines.bin") - dense), 1e-3);
  EXPECT_NEAR(loss_of("up", "lines.bin"), dense, 2e-6);
}

TEST_F(UpcycleCommand, RefusesWhatIsNoBeginning) {
  EXPECT_NE(refusal_of("--experts 1").find("a token cannot go to 2 of 1 experts"), std::string::npos);
  EXPECT_NE(refusal_of("--experts 4 --per-token 0").find("a token cannot go to 0 of 4"), std::string::npos);
  // As a run of that model is.
  EXPECT_NE(refusal_of("--experts 40000 --layers 'e d e'")
                .find("num_experts 40000 in each of 2 MoE blocks (model.layers) are more than 65536 experts"),
            std::string::npos);
  EXPECT_NE(refusal_of("--experts 4 --layers 'e e'").find("the layers have 2 blocks, the dense model has 3"),
            std::string::npos);
  EXPECT_NE(refusal_of("--experts 4 --layers 'd*3'").find("no block of the layers has experts"), std::string::npos);
  ASSERT_EQ(weft("checkpoint upcycle dense once --experts 4").exit_code, 0);
  EXPECT_NE(weft("checkpoint upcycle once twice --experts 4").messages.find("has experts already"), std::string::npos);
  EXPECT_NE(weft("checkpoint upcycle dense once --experts 4").exit_code, 0);
}

// config.toml of the new checkpoint tells the names, and is UTF-8.
TEST_F(UpcycleCommand, RefusesNamesThatTheNewCheckpointCannotHave) {
  std::filesystem::copy(folder_ / "dense", folder_ / "caf\xe9", std::filesystem::copy_options::recursive);
  std::filesystem::create_directory_symlink("caf\xe9", folder_ / "link");
  for (const char* names : {"dense caf\xe9/up", "caf\xe9 up", "dense link/up", "link up"}) {
    const auto result = weft(std::string("checkpoint upcycle ") + names + " --experts 4");
    EXPECT_EQ(result.exit_code, 2) << names;
    EXPECT_NE(result.messages.find("caf\xef\xbf\xbd"), std::string::npos) << result.messages;
    EXPECT_NE(result.messages.find(": the name is not UTF-8"), std::string::npos) << result.messages;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "link/up") || std::filesystem::exists(folder_ / "up")) << names;
  }
  // verify would say that a checkpoint of step 0 has a wrong name.
  for (const char* name : {"step-00000009", "step-00000009/"}) {
    const auto result = weft(std::string("checkpoint upcycle dense ") + name + " --experts 4");
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_NE(result.messages.find("is that of a later step"), std::string::npos) << result.messages;
    EXPECT_FALSE(std::filesystem::exists(folder_ / name));
  }
  ASSERT_EQ(weft("checkpoint upcycle dense step-00000000 --experts 4").exit_code, 0);
  EXPECT_EQ(weft("checkpoint verify step-00000000").exit_code, 0);
}

}  // namespace
}  // namespace weft
