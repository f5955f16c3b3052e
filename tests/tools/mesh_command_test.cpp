// Golden meshes, derived by hand from rank = sum of index x stride.
#include <nlohmann/json.hpp>

#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;
using MeshCommand = ProgramTest;

// pp 2 x dp_shard 2 x tp 2; experts: ep 4 takes a whole stage.
TEST_F(MeshCommand, WorldOfEightAsJson) {
  put("run.toml", small_run);
  const Json expected = Json::parse(R"({
    "world": 8,
    "dense": {
      "pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
      "dp_replicate": [[0], [1], [2], [3], [4], [5], [6], [7]],
      "dp_shard": [[0, 2], [1, 3], [4, 6], [5, 7]],
      "cp": [[0], [1], [2], [3], [4], [5], [6], [7]],
      "tp": [[0, 1], [2, 3], [4, 5], [6, 7]]
    },
    "expert": {
      "pp": [[0, 4], [1, 5], [2, 6], [3, 7]],
      "edp": [[0], [1], [2], [3], [4], [5], [6], [7]],
      "ep": [[0, 1, 2, 3], [4, 5, 6, 7]],
      "etp": [[0], [1], [2], [3], [4], [5], [6], [7]]
    },
    "ranks": [
      {"rank": 0, "pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 0, "edp": 0, "ep": 0, "etp": 0},
      {"rank": 1, "pp": 0, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 1, "edp": 0, "ep": 1, "etp": 0},
      {"rank": 2, "pp": 0, "dp_replicate": 0, "dp_shard": 1, "cp": 0, "tp": 0, "edp": 0, "ep": 2, "etp": 0},
      {"rank": 3, "pp": 0, "dp_replicate": 0, "dp_shard": 1, "cp": 0, "tp": 1, "edp": 0, "ep": 3, "etp": 0},
      {"rank": 4, "pp": 1, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 0, "edp": 0, "ep": 0, "etp": 0},
      {"rank": 5, "pp": 1, "dp_replicate": 0, "dp_shard": 0, "cp": 0, "tp": 1, "edp": 0, "ep": 1, "etp": 0},
      {"rank": 6, "pp": 1, "dp_replicate": 0, "dp_shard": 1, "cp": 0, "tp": 0, "edp": 0, "ep": 2, "etp": 0},
      {"rank": 7, "pp": 1, "dp_replicate": 0, "dp_shard": 1, "cp": 0, "tp": 1, "edp": 0, "ep": 3, "etp": 0}
    ]
  })");
  for (const char* arguments : {"mesh run.toml --json", "mesh --json run.toml",
                                "mesh --world 8 --pipeline 2 --tensor 2 --data-shard 2 --expert 4 --json",
                                "mesh --world 8 --pipeline 2 --tensor 2 --expert 4 --json",
                                "mesh --pipeline 2 --tensor 2 --data-shard 2 --expert 4 --json"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(Json::parse(result.output), expected) << arguments;
  }
}

// Folding: tp 2 x cp 2 x dp 2 x pp 2 over etp 1 x ep 8 x edp 1 x pp 2.
TEST_F(MeshCommand, FoldedWorldOfSixteenAsJson) {
  const auto result = weft(
      "mesh --world 16 --pipeline 2 --tensor 2 --context 2 --data-replicate 1 --data-shard 2 --expert 8 "
      "--expert-tensor 1 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json mesh = Json::parse(result.output);
  EXPECT_EQ(mesh["dense"]["dp_shard"], Json::parse("[[0,4],[1,5],[2,6],[3,7],[8,12],[9,13],[10,14],[11,15]]"));
  EXPECT_EQ(mesh["dense"]["cp"], Json::parse("[[0,2],[1,3],[4,6],[5,7],[8,10],[9,11],[12,14],[13,15]]"));
  EXPECT_EQ(mesh["dense"]["tp"], Json::parse("[[0,1],[2,3],[4,5],[6,7],[8,9],[10,11],[12,13],[14,15]]"));
  EXPECT_EQ(mesh["expert"]["ep"], Json::parse("[[0,1,2,3,4,5,6,7],[8,9,10,11,12,13,14,15]]"));
  const Json pipelines = Json::parse("[[0,8],[1,9],[2,10],[3,11],[4,12],[5,13],[6,14],[7,15]]");
  EXPECT_EQ(mesh["dense"]["pp"], pipelines);
  EXPECT_EQ(mesh["expert"]["pp"], pipelines);
  EXPECT_EQ(mesh["ranks"][13], Json::parse(R"({"rank": 13, "pp": 1, "dp_replicate": 0, "dp_shard": 1, "cp": 0, "tp": 1,
                                               "edp": 0, "ep": 5, "etp": 0})"));
}

// tp 2, pp 4 and what is left for data, as Megatron's documentation lists it.
TEST_F(MeshCommand, WorldOfSixteenWithDataDegreeLeftOver) {
  const auto result = weft("mesh --world 16 --pipeline 4 --tensor 2 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const Json mesh = Json::parse(result.output);
  EXPECT_EQ(mesh["dense"]["dp_shard"], Json::parse("[[0,2],[1,3],[4,6],[5,7],[8,10],[9,11],[12,14],[13,15]]"));
  EXPECT_EQ(mesh["dense"]["pp"], Json::parse("[[0,4,8,12],[1,5,9,13],[2,6,10,14],[3,7,11,15]]"));
}

TEST_F(MeshCommand, TextShowsDegreesRanksAndGroups) {
  put("run.toml", small_run);
  const auto result = weft("mesh run.toml --parallelism.expert=2");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  for (const char* part : {"world 8\n", "dense   pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2\n",
                           "expert  pp 2 x edp 2 x ep 2 x etp 1\n", "  dp_shard      [0,2] [1,3] [4,6] [5,7]\n",
                           "  edp           [0,2] [1,3] [4,6] [5,7]\n"}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << part << result.output;
  }
}

TEST_F(MeshCommand, DegreesThatFormNoMeshAreRefusedWithTheArithmetic) {
  const auto uneven = weft("mesh --world 16 --pipeline 3 --tensor 2 --json");
  EXPECT_EQ(uneven.exit_code, 2);
  EXPECT_NE(
      uneven.messages.find("world 16 is not a multiple of pipeline 3 x data_replicate 1 x context 1 x tensor 2 = 6"),
      std::string::npos)
      << uneven.messages;
  const auto wrong = weft("mesh --world 16 --data-shard 4 --expert 3");
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_NE(wrong.messages.find("world 16 is not pipeline 1"), std::string::npos) << wrong.messages;
  EXPECT_NE(wrong.messages.find("expert 3 x expert_tensor 1 = 3 does not divide"), std::string::npos) << wrong.messages;
  for (const char* arguments : {"mesh --tensor 0", "mesh --data-shard -1", "mesh --world 4 --tensor -2",
                                "mesh --tensor 2000000000 --pipeline 2000000000 --data-shard 7"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
  }
}

}  // namespace
}  // namespace weft
