// `weft layout show`: the pictures of small layouts as they are printed, and the numbers as scripts read them.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>

#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using LayoutCommand = ProgramTest;

TEST_F(LayoutCommand, DrawsWhichRankHoldsWhat) {
  put("run.toml", small_run);
  const auto result = weft("layout show run.toml --pipeline.layout='Ede|e*2L'");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(result.messages, "");
  EXPECT_TRUE(
      result.output.starts_with("layout \"Ede|eeL\": 2 stages on 2 ranks, looped placement (schedule 1f1b)\n"
                                "largest over mean of operations, repeated ones too: "))
      << result.output;
  EXPECT_NE(result.output.find("\n\n"
                               "       | chunk 0  |\n"
                               "rank 0 | 0: E d e |\n"
                               "rank 1 | 1: e*2 L |\n\n"),
            std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find("\nstage  rank  chunk  layers  parameters "), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("compared"), std::string::npos);
}

// By hand, a token's forward: attention 2 x 32 x (2 x 32 + 2 x 16) + 2 x 32 x 128 = 14,336; dense 6 x 32 x 64 =
// 12,288; experts 6 x 32 x 2 x 16 + 2 x 32 x 4 = 6,400; head 2 x 32 x 256 = 16,384.
TEST_F(LayoutCommand, TellsScriptsEveryNumber) {
  put("run.toml", small_run);
  const auto result = weft("layout show run.toml --json --layout 'Edee|eL' --layout '[1, 3]'");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json layouts = Json::parse(result.output)["layouts"];
  ASSERT_EQ(layouts.size(), 3u);
  EXPECT_EQ(layouts[0]["layout"], "Ede|eeL");  // automatic: 47,360 beside 57,856
  EXPECT_EQ(layouts[1]["layout"], "Edee|eL");
  EXPECT_EQ(layouts[2]["layout"], "Ed|e*3L");
  const Json& stages = layouts[2]["stages"];
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0]["layers"], "E d");
  EXPECT_EQ(stages[0]["forward_flops"], 14336 + 12288);
  EXPECT_EQ(stages[1]["forward_flops"], 3 * (14336 + 6400) + 16384);
  EXPECT_DOUBLE_EQ(stages[0]["load"].get<double>(), 26624.0 / ((26624 + 78592) / 2));
  EXPECT_DOUBLE_EQ(layouts[2]["stage_imbalance"].get<double>(), 78592.0 / ((26624 + 78592) / 2));
  // Embedding 256 x 32; q and o 2 x 32 x 32, k and v 2 x 16 x 32, two norms of 32 and two of 8; mlp 3 x 32 x 64.
  EXPECT_EQ(stages[0]["parameters"], 8192 + 2048 + 1024 + 80 + 6144);
  EXPECT_EQ(stages[0]["active_parameters"], stages[0]["parameters"]);
  // Of four experts of 3 x 16 x 32 two are active.
  EXPECT_EQ(stages[1]["parameters"].get<int>() - stages[1]["active_parameters"].get<int>(), 3 * 2 * 1536);
  for (const char* key : {"parameter_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes"}) {
    EXPECT_GT(stages[1][key].get<std::int64_t>(), 0) << key;
    EXPECT_EQ(layouts[2]["ranks"][1][key], stages[1][key]) << key;
  }
  EXPECT_EQ(layouts[2]["ranks"][1]["stages"], Json::parse("[1]"));
  EXPECT_EQ(layouts[2]["placement"], "looped");
}

TEST_F(LayoutCommand, ComparesLayoutsInALineEach) {
  put("run.toml", small_run);
  const auto result = weft("layout show --layout 'Ed|e*3L' run.toml --layout 'Edeee|L'");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::size_t at = result.output.find("\ncompared: ");
  ASSERT_NE(at, std::string::npos) << result.output;
  const std::string compared = result.output.substr(at + 1);
  EXPECT_EQ(std::count(compared.begin(), compared.end(), '\n'), 5) << compared;
  EXPECT_NE(compared.find("\nEd|e*3L          1.494         1.494 "), std::string::npos) << compared;
  EXPECT_NE(compared.find("\nEde*3|L "), std::string::npos) << compared;
}

TEST_F(LayoutCommand, WrongRequestsEndWithTwo) {
  put("run.toml", small_run);
  for (const char* arguments :
       {"layout", "layout show", "layout draw run.toml", "layout show gone.toml", "layout show run.toml --fast",
        "layout show run.toml --layout", "layout show run.toml --layout Ed", "layout show run.toml extra"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
    EXPECT_NE(result.messages, "") << arguments;
  }
  EXPECT_EQ(weft("layout show run.toml --fast").messages,
            "weft layout show: error: unknown option --fast; see weft layout show --help\n");
  EXPECT_EQ(weft("layout show run.toml --layout 'Ed|xeeeL'").messages,
            "command line: --pipeline.layout=Ed|xeeeL: error: pipeline.layout: column 4: 'x' is no symbol of a layout; "
            "accepted: E (embedding), d (dense block), e (MoE block), t (any block), m (predictor), L (head), | or (\n"
            "    Ed|xeeeL\n"
            "       ^\n");
}

}  // namespace
}  // namespace weft
