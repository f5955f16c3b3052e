// A run, its checkpoint as a folder of Hugging Face, that folder as a checkpoint again, and a run that begins with it.
// The last is the same as a run that begins with the first checkpoint, bit for bit.
#include <nlohmann/json.hpp>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class HuggingFaceRun : public TinyTraining {
 protected:
  // Loss and gradient norm of each step of a run that takes its weights from `from`.
  SortedJson losses_from(const std::string& from, const std::string& options = "") const {
    const auto trained = weft("train run.toml --run.directory=after-" + from +
                              " --checkpoint.weights_only=true --checkpoint.start_from=" + from + options);
    EXPECT_EQ(trained.exit_code, 0) << trained.messages;
    SortedJson losses = SortedJson::array();
    std::ifstream metrics(folder_ / ("after-" + from) / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) {
      const SortedJson step = SortedJson::parse(line);
      losses.push_back({step.at("loss"), step.at("grad_norm")});
    }
    return losses;
  }
};

TEST_F(HuggingFaceRun, GoesOnFromAnExportedAndImportedCheckpoint) {
  const auto trained = weft("train run.toml --run.directory=first --checkpoint.interval=3");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  const auto exported = weft("export first folder --max-shard-size 4KB");
  ASSERT_EQ(exported.exit_code, 0) << exported.messages;
  EXPECT_NE(exported.output.find(" as qwen3_moe: "), std::string::npos) << exported.output;
  EXPECT_NE(exported.output.find("\nit has no tokenizer: the ids of a model of bytes are list(text.encode())"),
            std::string::npos)
      << exported.output;
  const auto imported = weft("import folder again");
  ASSERT_EQ(imported.exit_code, 0) << imported.messages;
  const auto verified = weft("checkpoint verify again");
  EXPECT_EQ(verified.exit_code, 0) << verified.output << verified.messages;
  const SortedJson direct = losses_from("first"), around = losses_from("again");
  EXPECT_EQ(direct.size(), 3u);
  EXPECT_EQ(around, direct);
  // Not what a run without a checkpoint sees.
  EXPECT_EQ(weft("train run.toml --run.directory=fresh").exit_code, 0);
  std::ifstream metrics(folder_ / "fresh" / "metrics.jsonl");
  std::string line;
  std::getline(metrics, line);
  EXPECT_NE(SortedJson::parse(line).at("loss"), direct[0][0]);
}

// The router of DeepSeek-V3, a shared expert and a predictor, under an architecture that has all of them. The bias is
// one that has moved.
TEST_F(HuggingFaceRun, KeepsBiasesAndPredictorsOnTheWay) {
  const std::string glm =
      " --model.layers='d e m' --model.moe.scoring=sigmoid --model.moe.selection_bias=true"
      " --model.moe.bias_update_rate=0.05 --model.moe.n_group=2 --model.moe.routed_scaling_factor=1.5"
      " --model.moe.shared_expert_intermediate_size=16";
  const auto trained = weft("train run.toml --run.directory=first --checkpoint.interval=3" + glm);
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  const auto exported = weft("export first folder");
  ASSERT_EQ(exported.exit_code, 0) << exported.messages;
  EXPECT_NE(exported.output.find(" as glm4_moe: "), std::string::npos) << exported.output;
  ASSERT_EQ(weft("import folder again").exit_code, 0);
  const SortedJson direct = losses_from("first", glm);
  EXPECT_EQ(losses_from("again", glm), direct);
  // Without the predictor it is another checkpoint, which begins the model without it.
  ASSERT_EQ(weft("export first bare --without-predictors").exit_code, 0);
  ASSERT_EQ(weft("import bare bare-again").exit_code, 0);
  const auto refused = weft(
      "train run.toml --run.directory=bare-run --checkpoint.weights_only=true"
      " --checkpoint.start_from=bare-again" +
      glm);
  EXPECT_NE(refused.exit_code, 0);
}

// State spaces and attention, with experts and a shared one, over pipeline and expert ranks.
TEST_F(HuggingFaceRun, GoesOnFromAHybridThatWasExportedAndImported) {
  const std::string hybrid =
      " --model.layers='(M E A E)*2' --model.qk_norm=false --model.moe.shared_expert_intermediate_size=12"
      " --model.state_space.num_heads=4 --model.state_space.head_dim=8 --model.state_space.state_size=6";
  // One group of B and C is not split.
  const std::string layout = hybrid + " --parallelism.tensor=1 --parallelism.data_shard=4";
  const auto trained = weft("train run.toml --run.directory=first --checkpoint.interval=3" + layout);
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  const auto exported = weft("export first folder --max-shard-size 4KB");
  ASSERT_EQ(exported.exit_code, 0) << exported.messages;
  EXPECT_NE(exported.output.find(" as granitemoehybrid: "), std::string::npos) << exported.output;
  const auto imported = weft("import folder again");
  ASSERT_EQ(imported.exit_code, 0) << imported.messages;
  EXPECT_EQ(losses_from("again", layout), losses_from("first", layout));
}

}  // namespace
}  // namespace weft
