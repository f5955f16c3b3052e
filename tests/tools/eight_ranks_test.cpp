// The shipped combinations of a pipeline and data ranks on eight ranks: they train, and learn what one rank learns.
#include <nlohmann/json.hpp>

#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

class EightRanks : public TinyTraining {
 protected:
  std::vector<double> losses(const std::string& config, const std::string& options) const {
    const auto trained =
        weft("train '" WEFT_SOURCE_DIR "/configs/" + config +
             "' --run.steps=2 --lr_scheduler.warmup_steps=0 --data.train='[\"text.txt\"]' --training.sequence_length=32"
             " --checkpoint.interval=0 --run.directory=out/run" +
             options);
    EXPECT_EQ(trained.exit_code, 0) << trained.messages;
    std::vector<double> found;
    std::ifstream metrics(folder_ / "out" / "run" / "metrics.jsonl");
    for (std::string line; std::getline(metrics, line);) found.push_back(nlohmann::json::parse(line).at("loss"));
    std::filesystem::remove_all(folder_ / "out");
    return found;
  }
};

TEST_F(EightRanks, TrainTheTestedCombinationsAsOneRankDoes) {
  const std::string one_rank =
      " --parallelism.pipeline=1 --parallelism.data_shard=1 --parallelism.expert=1 --pipeline.schedule=1f1b"
      " --pipeline.chunks=1";
  for (const char* config : {"eight_ranks_1f1b.toml", "eight_ranks_dualpipev.toml"}) {
    const auto sharded = losses(config, ""), whole = losses(config, one_rank);
    ASSERT_EQ(sharded.size(), 2u) << config;
    ASSERT_EQ(whole.size(), 2u) << config;
    // Float32 sums of about 6 in another order.
    for (std::size_t step = 0; step < 2; ++step) EXPECT_NEAR(sharded[step], whole[step], 1e-5) << config;
  }
}

TEST_F(EightRanks, DualPipeIsRefusedForItsTwoCopies) {
  const auto refused =
      weft("program '" WEFT_SOURCE_DIR "/configs/eight_ranks_dualpipev.toml' --pipeline.schedule=dualpipe");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_NE(refused.messages.find("every rank then has two stages' parameters"), std::string::npos) << refused.messages;
  EXPECT_NE(refused.messages.find("\"dualpipev\" has its order with one copy"), std::string::npos) << refused.messages;
}

}  // namespace
}  // namespace weft
