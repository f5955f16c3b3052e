// `weft plan --search` as a user runs it: the best is a run file that plans to what the table says, the picture and the
// document are there, and wrong words are refused.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>

#include "tests/tools/eight_gpus.h"
#include "tests/tools/program.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class PlanSearchCommand : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    put("run.toml", eight_gpus);
    put("text", std::string(65536, 'a'));
  }
};

TEST_F(PlanSearchCommand, WritesTheBestAsARunFile) {
  const std::string axes = "--search schedule=1f1b pipeline=1,2 tensor=1,2 recompute=none,full";
  const auto found = weft("plan run.toml --hardware h100 --top 3 --json --output best.toml --pareto front.svg " + axes);
  ASSERT_EQ(found.exit_code, 0) << found.messages;
  const Json json = Json::parse(found.output);
  const Json best = json.at("plans").at(0);
  const auto plan = weft("plan best.toml --json");
  ASSERT_EQ(plan.exit_code, 0) << plan.messages;
  const Json planned = Json::parse(plan.output);
  EXPECT_DOUBLE_EQ(planned.at("step_seconds").get<double>(), best.at("step_seconds").get<double>());
  EXPECT_EQ(planned.at("hardware"), "h100");
  std::int64_t peak = 0;
  for (const Json& rank : planned.at("ranks")) peak = std::max(peak, rank.at("peak_bytes").get<std::int64_t>());
  EXPECT_EQ(peak, best.at("peak_bytes").get<std::int64_t>());
  EXPECT_EQ(weft("check best.toml").exit_code, 0);
  EXPECT_EQ(run("head -c 4 front.svg").output, "<svg");
  const auto text = weft("plan run.toml --hardware h100 --top 3 " + axes);
  ASSERT_EQ(text.exit_code, 0) << text.messages;
  EXPECT_NE(text.output.find("the fastest: "), std::string::npos) << text.output;
}

TEST_F(PlanSearchCommand, RefusesWhatItCannotSearch) {
  const auto axis = weft("plan run.toml --hardware h100 --search colour=red");
  EXPECT_EQ(axis.exit_code, 2);
  EXPECT_NE(axis.messages.find("colour"), std::string::npos) << axis.messages;
  const auto memory = weft("plan run.toml --hardware h100 --hardware.memory=3GiB --search schedule=1f1b pipeline=1");
  EXPECT_EQ(memory.exit_code, 0) << "two GiB are reserved, and the tiny model fits into one: " << memory.messages;
  const auto none = weft("plan run.toml --hardware h100 --hardware.memory=2GiB --search schedule=1f1b pipeline=1");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.messages.find("nothing fits on 8 ranks"), std::string::npos) << none.messages;
  EXPECT_EQ(weft("plan --search").exit_code, 2);
  EXPECT_EQ(weft("plan run.toml --search --compare").exit_code, 2);
}

}  // namespace
}  // namespace weft
