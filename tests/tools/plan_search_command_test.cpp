// `weft plan --search` as a user runs it. The best is a run file that plans to what the table says, the picture and
// the document are there, and wrong words are refused.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "tests/tools/eight_gpus.h"
#include "tests/tools/program.h"
#include "trainer/costs/hardware.h"

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
  // The configuration behind the option, where CLI11 takes it for an axis.
  const auto behind =
      weft("plan --hardware h100 --top 3 --search run.toml " + axes.substr(std::string("--search ").size()));
  EXPECT_EQ(behind.output, text.output) << behind.messages;
}

// The best so far when time is up, and what is known of the rest.
TEST_F(PlanSearchCommand, StopsWhenTimeIsUp) {
  const std::string search = "plan run.toml --hardware h100 --search --json";
  const auto free = weft(search), slow = weft(search + " --seconds 1000");
  ASSERT_EQ(slow.exit_code, 0) << slow.messages;
  const Json all = Json::parse(free.output), same = Json::parse(slow.output);
  EXPECT_EQ(same.at("plans"), all.at("plans"));
  EXPECT_EQ(same.at("open"), 0);
  EXPECT_FALSE(same.contains("not_below_seconds"));
  const auto none = weft("plan run.toml --hardware h100 --search --seconds 0.000001");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.messages.find("raise --seconds"), std::string::npos) << none.messages;
  EXPECT_EQ(weft("plan run.toml --hardware h100 --search --seconds 0").exit_code, 2);
}

TEST_F(PlanSearchCommand, EndsWhereEveryOrderIsRefused) {
  for (const std::string limit : {"", " --seconds 1000"}) {
    const auto none = weft("plan run.toml --hardware h100 --search schedule=zbv chunks=1 pipeline=2" + limit);
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_NE(none.messages.find("no choice can be run"), std::string::npos) << none.messages;
  }
}

// A word of the command line that the best choice does not read is not among its words.
TEST_F(PlanSearchCommand, WordsOfTheBestAreTaken) {
  const auto text = weft(
      "plan run.toml --hardware h100 --training.recompute=full --training.recompute_every=2 --search "
      "schedule=1f1b pipeline=1 tensor=1 recompute=none");
  ASSERT_EQ(text.exit_code, 0) << text.messages;
  const std::string begin = "the fastest: ";
  const std::size_t at = text.output.find(begin) + begin.size();
  const std::string words = text.output.substr(at, text.output.find('\n', at) - at);
  EXPECT_EQ(weft("plan run.toml " + words).exit_code, 0) << words;
}

TEST_F(PlanSearchCommand, OptionsWithoutMeaningAreRefused) {
  const std::string search = "plan run.toml --hardware h100 --search schedule=1f1b pipeline=1 tensor=1 ";
  for (const std::string& words : {search + "--front-within 3", search + "--pareto front.svg --front-within 0.5",
                                   search + "--pareto front.svg --front-within nan",
                                   std::string("plan run.toml --hardware h100 --measured-steps 7")}) {
    EXPECT_EQ(weft(words).exit_code, 2) << words;
  }
}

// Both rows are plans that can be made again, and the term that decides is the one in which they differ most.
TEST_F(PlanSearchCommand, SetsDataShardingBesideTheBestHybrid) {
  put("experts.toml", small_run);
  for (const std::string file : {"run.toml", "experts.toml"}) {
    const std::string search =
        "plan " + file + " --hardware h100 --search schedule=1f1b microbatch_size=1 pipeline=1,2 tensor=1,2 context=1";
    const auto found = weft(search + " --json");
    ASSERT_EQ(found.exit_code, 0) << found.messages;
    const Json json = Json::parse(found.output), kinds = json.at("kinds");
    const Json &alone = kinds.at("data_sharding"), &hybrid = kinds.at("hybrid");
    EXPECT_EQ(alone.at("mesh"), "pp 1 x dp 1 x 8 x cp 1 x tp 1");
    EXPECT_NE(hybrid.at("mesh"), alone.at("mesh"));
    const double fastest = json.at("plans").at(0).at("step_seconds").get<double>();
    EXPECT_LE(fastest, alone.at("step_seconds").get<double>());
    EXPECT_LE(fastest, hybrid.at("step_seconds").get<double>());
    std::string decides;
    double most = -1.0;
    for (const Json* plan : {&alone, &hybrid}) {
      double sum = 0.0;
      for (const auto& [what, seconds] : plan->at("terms").items()) {
        sum += seconds.get<double>();
        const double apart = std::abs(alone["terms"].value(what, 0.0) - hybrid["terms"].value(what, 0.0));
        if (apart > most) decides = what;
        most = std::max(most, apart);
      }
      EXPECT_NEAR(sum, plan->at("step_seconds").get<double>(), 1e-9 * sum);
    }
    EXPECT_TRUE(kinds.at("decides").get<std::string>().starts_with(decides + ": ")) << kinds;
    const std::string text = weft(search).output;
    EXPECT_NE(text.find("\ndata sharding alone beside hybrids on 8 ranks"), std::string::npos) << text;
    EXPECT_NE(text.find("\ndecides: " + decides + ": "), std::string::npos) << text;
  }
}

// What a row says of the worst routing is what planning its words says.
TEST_F(PlanSearchCommand, TellsWhereRoutingMayExceedTheCard) {
  put("experts.toml", small_run);
  const std::string run = "plan experts.toml --hardware cpu ";
  const std::string search = run + "--search schedule=1f1b pipeline=1 tensor=1 context=1 expert=2 expert_tensor=1 ";
  const Json first = Json::parse(weft(search + "--top 1 --json").output).at("plans").at(0);
  const auto even = first.at("needed_bytes").get<std::int64_t>(),
             worst = first.at("worst_needed_bytes").get<std::int64_t>();
  ASSERT_GT(static_cast<double>(worst), static_cast<double>(even) / Verdict::limit);
  for (const std::int64_t memory : {2 * worst, worst}) {
    const std::string card = fmt::format("'--hardware.memory={} B' ", memory);
    const std::string text = weft(search + "--top 3 " + card).output;
    for (const Json& plan : Json::parse(weft(search + "--top 3 --json " + card).output).at("plans")) {
      std::string words;
      for (const Json& word : plan.at("words")) words += fmt::format("'{}' ", word.get<std::string>());
      const Json alone = Json::parse(weft(run + card + words + "--json").output);
      EXPECT_EQ(plan.at("worst_needed_bytes"), alone.at("worst_needed_bytes"));
      EXPECT_EQ(plan.at("worst_verdict"), alone.at("worst_verdict"));
      if (alone.at("worst_verdict") == "fits") continue;
      EXPECT_NE(text.find("!: fits with even routing"), std::string::npos) << text;
    }
    EXPECT_EQ(text.find("B!") != std::string::npos, text.find("!: fits with even routing") != std::string::npos);
    EXPECT_EQ(text.find("B!") != std::string::npos, memory == worst) << text;
  }
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
  const auto mesh = weft("plan run.toml --hardware h100 --search pipeline=3 --world 8");
  EXPECT_EQ(mesh.exit_code, 2);
  EXPECT_NE(mesh.messages.find("no mesh of 8 ranks has the degrees"), std::string::npos) << mesh.messages;
  EXPECT_EQ(weft("plan run.toml --hardware h100 --search --world 0").exit_code, 2);
  EXPECT_EQ(weft("plan run.toml --hardware h100 --search --top 0").exit_code, 2);
  EXPECT_EQ(weft("plan --search").exit_code, 2);
  EXPECT_EQ(weft("plan run.toml --search --compare").exit_code, 2);
}

}  // namespace
}  // namespace weft
