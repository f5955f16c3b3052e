// Multi-token prediction from the command line: a run on, its checkpoint under another layout, its use without
// predictors, and what is refused.
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

class PredictionCommand : public TinyTraining {
 protected:
  ProgramResult train(const std::string& arguments) {
    return weft("train run.toml --data.tokenizer=byte --optimizer.learning_rate=0.01 " + arguments);
  }
  std::vector<nlohmann::json> metrics(const std::string& run) {
    std::ifstream file(folder_ / run / "metrics.jsonl");
    std::vector<nlohmann::json> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  double loss_of(const std::string& arguments) {
    const auto result = weft("eval " + arguments + " --data text.txt --json");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return nlohmann::json::parse(result.output).at("loss");
  }
};

constexpr const char* one_rank =
    " --parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.expert=1 "
    "--pipeline.layout=auto";

TEST_F(PredictionCommand, GoesOnUnderAnotherLayoutAndIsUsedWithoutPredictors) {
  const std::string model = "--model.layers='d e m*2' --model.mtp_loss_coef=0.5 ";
  ASSERT_EQ(train(model + "--run.directory=whole --run.steps=8" + one_rank).exit_code, 0);
  const auto first = train(model +
                           "--run.directory=parts --run.steps=8 --checkpoint.interval=4 --pipeline.layout='Edem*2|L' "
                           "--validation.data=text.txt --validation.batches=2");
  ASSERT_EQ(first.exit_code, 0) << first.messages;
  const auto alone = metrics("whole"), many = metrics("parts");
  ASSERT_EQ(alone.size(), 8u);
  for (std::size_t step = 0; step < 8; ++step) {
    EXPECT_NEAR(many[step].at("loss"), alone[step].at("loss"), 1e-5);
    ASSERT_EQ(many[step].at("mtp_losses").size(), 2u);
    for (const std::size_t k : {0u, 1u}) {
      EXPECT_NEAR(many[step].at("mtp_losses")[k], alone[step].at("mtp_losses")[k], 1e-5) << step;
    }
  }
  // From the middle, the other way round.
  const auto second =
      train(model +
            "--run.directory=again --run.steps=8 --checkpoint.start_from=parts/checkpoints/step-00000004 "
            "--checkpoint.weights_only=false" +
            one_rank);
  ASSERT_EQ(second.exit_code, 0) << second.messages;
  const auto resumed = metrics("again");
  ASSERT_EQ(resumed.size(), 4u);
  EXPECT_NEAR(resumed.back().at("mtp_losses")[1], many.back().at("mtp_losses")[1], 1e-5);
  EXPECT_NEAR(resumed.back().at("loss"), many.back().at("loss"), 1e-5);

  const double loss = loss_of("parts");
  EXPECT_NEAR(loss_of("parts" + std::string(one_rank)), loss, 1e-6);
  EXPECT_EQ(weft("generate parts --prompt warp --max-tokens 4").exit_code, 0);
  const auto refused = weft("export parts folder --max-position-embeddings 8");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("model.layers ends with m"), std::string::npos) << refused.messages;
  const auto written = weft("export parts folder --without-predictors");
  ASSERT_EQ(written.exit_code, 0) << written.messages;
  ASSERT_EQ(weft("import folder back").exit_code, 0);
  EXPECT_NEAR(loss_of("back --data.tokenizer=byte"), loss, 1e-6);
}

TEST_F(PredictionCommand, UpcyclesPredictorsToo) {
  const std::string dense = "--run.directory=dense --model.layers='d d m' --run.steps=4 --parallelism.expert=1";
  ASSERT_EQ(train(dense).exit_code, 0);
  const auto made = weft("checkpoint upcycle dense up --experts 4 --layers 'd e m'");
  ASSERT_EQ(made.exit_code, 0) << made.messages;
  EXPECT_NEAR(loss_of("up"), loss_of("dense"), 2e-6);
  const auto goes_on = train(
      "--run.directory=moe --model.layers='d e m' --model.moe.moe_intermediate_size=24 --run.steps=1 "
      "--checkpoint.start_from=up --checkpoint.weights_only=true");
  ASSERT_EQ(goes_on.exit_code, 0) << goes_on.messages;
  EXPECT_EQ(weft("checkpoint upcycle dense twice --experts 4 --layers 'e e'").exit_code, 2);
}

TEST_F(PredictionCommand, RefusesWhatIsNoModelAndNoLayout) {
  const auto refused = [&](const std::string& arguments, const std::string& reason) {
    const auto result = weft("check run.toml " + arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_NE(result.messages.find(reason), std::string::npos) << result.messages;
  };
  refused("--model.layers=m", "m predicts behind blocks, and here are none");
  refused("--model.layers='d m e'", "column 5 of \"d m e\": a block behind m");
  refused("--model.layers='d e m' --pipeline.layout='Ed|eL'", "0 predictors (m), but model.layers");
  refused("--model.layers='d e m*2' --pipeline.layout='Edem|mL'", "an m on a second stage");
  refused("--model.mtp_loss_coef=0.1", "model.layers has m");
  refused("--model.layers='d e m' --model.mtp_loss_coef=-1", "at least 0 and finite");
}

}  // namespace
}  // namespace weft
