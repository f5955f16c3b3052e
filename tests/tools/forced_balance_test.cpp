// A run whose experts are dealt in turn: all that it leaves, and each command that shows it, says so. No other run is
// said to be one.
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class ForcedBalance : public TinyTraining {
 protected:
  // Whether standard output or standard error has the sentence.
  bool tells(const std::string& arguments) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments << result.messages;
    return (result.output + result.messages).find("experts are dealt in turn") != std::string::npos;
  }
  bool tells_json(const std::string& arguments) {
    const auto result = weft(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << arguments << result.messages;
    return SortedJson::parse(result.output).value("forced_balance", false);
  }
};

TEST_F(ForcedBalance, IsToldWhereverARunIsShown) {
  const std::string tokens = " --data.tokenizer=byte";
  for (const bool forced : {true, false}) {
    const std::string run = forced ? "forced" : "free",
                      keys = tokens + (forced ? " --model.moe.force_balance=true" : "");
    const auto trained = weft("train run.toml --run.directory=" + run + keys);
    ASSERT_EQ(trained.exit_code, 0) << trained.messages;
    EXPECT_EQ(trained.messages.find("experts are dealt in turn") != std::string::npos, forced);
    EXPECT_EQ(trained.output.find("experts dealt in turn") != std::string::npos, forced) << trained.output;
    std::ifstream summary(folder_ / run / "summary.json");
    EXPECT_EQ(SortedJson::parse(summary).value("forced_balance", false), forced);
    for (const std::string& command : {"plan run.toml" + keys, "eval " + run + " --data text.txt",
                                       "generate " + run + " --prompt warp --max-tokens 2"}) {
      EXPECT_EQ(tells(command), forced) << command;
      EXPECT_EQ(tells_json(command), forced) << command;
    }
    for (const std::string& command :
         {"receipt " + run, "diagnose " + run, "bench step run.toml --warmup 0 --steps 1 --seconds 0.01" + keys}) {
      EXPECT_EQ(tells(command), forced) << command;
    }
    EXPECT_EQ(SortedJson::parse(weft("receipt " + run + " --json").output).at("model").at("forced_balance"), forced);
    EXPECT_EQ(tells_json("bench step run.toml --warmup 0 --steps 1 --seconds 0.01" + keys), forced);
    // A build without dygraphs has no pages.
    const auto page = weft("report " + run);
    const bool told = page.output.find("experts are dealt in turn") != std::string::npos;
    EXPECT_EQ(told, forced && page.exit_code == 0);
  }
}

}  // namespace
}  // namespace weft
