// `weft plan --advise` and the limits of `weft plan --compare` as a user runs them. The output is a run file with the
// figures that were told. Sizes that are said to fit do, the next ones do not.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/tools/eight_gpus.h"
#include "tests/tools/program.h"
#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using Json = nlohmann::ordered_json;

class PlanAdviseCommand : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    put("dense.toml", eight_gpus);
    put("experts.toml", small_run);
    put("text", std::string(65536, 'a'));
    put("text.txt", std::string(65536, 'a'));
  }
  Json document(const std::string& arguments) const {
    const auto result = weft(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << arguments << "\n" << result.messages;
    return Json::parse(result.output, nullptr, false);
  }
  static std::int64_t peak_of(const Json& plan) {
    std::int64_t peak = 0;
    for (const Json& rank : plan.at("ranks")) peak = std::max(peak, rank.at("peak_bytes").get<std::int64_t>());
    return peak;
  }
};

TEST_F(PlanAdviseCommand, PrintsARunFileWithTheFiguresItTells) {
  for (const std::string file : {"dense.toml", "experts.toml"}) {
    // A key of the command line is part of the result.
    const std::string advise = "plan " + file + " --hardware h100 --training.sequence_length=128 --advise";
    const Json json = document(advise);
    const Json& steps = json.at("steps");
    ASSERT_GE(steps.size(), 4u);
    const auto kept = [&](std::size_t step) { return steps[step]["tried"][steps[step]["kept"].get<std::size_t>()]; };
    const Json start = document("plan " + file + " --hardware h100 --training.sequence_length=128");
    EXPECT_EQ(steps[0]["tried"][0]["step_seconds"], start["step_seconds"]);
    EXPECT_EQ(steps[0]["tried"][0]["peak_bytes"].get<std::int64_t>(), peak_of(start));
    const Json last = kept(steps.size() - 1);
    EXPECT_LE(last["step_seconds"].get<double>(), start["step_seconds"].get<double>());
    for (std::size_t s = 1; s < steps.size(); ++s) {
      EXPECT_EQ(steps[s]["tried"][0]["step_seconds"], kept(s - 1)["step_seconds"]);
      EXPECT_EQ(steps[s]["tried"][0]["peak_bytes"], kept(s - 1)["peak_bytes"]);
    }

    const auto text = weft(advise);
    ASSERT_EQ(text.exit_code, 0) << text.messages;
    EXPECT_NE(text.output.find("\n\n" + json["toml"].get<std::string>()), std::string::npos) << text.output;
    for (const char* line : {"\n# wrap: ", "\n# strategy: ", "\n# lookahead: ", "\n# recompute: "}) {
      EXPECT_NE(text.output.find(line), std::string::npos) << line << text.output;
    }
    put("best.toml", text.output);
    const Json best = document("plan best.toml");
    EXPECT_EQ(best["hardware"], "h100");
    EXPECT_EQ(best["step_seconds"], last["step_seconds"]);
    EXPECT_EQ(peak_of(best), last["peak_bytes"].get<std::int64_t>());
    EXPECT_EQ(best["needed_bytes"], last["needed_bytes"]);
    const auto check = weft("check best.toml");
    EXPECT_EQ(check.exit_code, 0) << check.messages;
  }
}

// Half blocks save memory and time beside full recomputation. The strategy and less recomputation leave their cost.
TEST_F(PlanAdviseCommand, TakesBackAKeyThatLaterOnesMakeACost) {
  const std::string run = "plan " WEFT_SOURCE_DIR "/configs/plan_7b_2_nodes.toml --hardware h100";
  const Json json = document(run + " --training.recompute=full --advise");
  const Json& steps = json.at("steps");
  ASSERT_EQ(steps.size(), 5u) << json;
  EXPECT_NE(steps[0]["kept"], 0);
  const Json &back = steps[4], &before = back["tried"][0], after = back["tried"][back["kept"].get<std::size_t>()];
  EXPECT_EQ(back["what"], "taken back");
  EXPECT_EQ(after["value"], "wrap");
  EXPECT_LT(1.01 * after["step_seconds"].get<double>(), before["step_seconds"].get<double>());
  EXPECT_EQ(json["toml"].get<std::string>().find("shard.wrap"), std::string::npos) << json["toml"];
}

TEST_F(PlanAdviseCommand, TrainsOnWhatItPrints) {
  put("tiny.toml", tiny_run);
  const auto text = weft("plan tiny.toml --advise");
  ASSERT_EQ(text.exit_code, 0) << text.messages;
  put("best.toml", text.output);
  const auto trained = weft("train best.toml");
  EXPECT_EQ(trained.exit_code, 0) << trained.messages;
}

TEST_F(PlanAdviseCommand, StandsAlone) {
  EXPECT_EQ(weft("plan --advise").exit_code, 2);
  for (const char* other : {"--compare", "--explain", "--kernels", "--coarse", "--search"}) {
    EXPECT_EQ(weft(std::string("plan dense.toml --advise ") + other).exit_code, 2) << other;
  }
}

// On a card for four sequences at a time under full_shard.
TEST_F(PlanAdviseCommand, ComparisonsSayTheLargestMicrobatch) {
  const std::string run =
      "plan experts.toml --hardware cpu --shard.residency=reshard_after_use "
      "--shard.reduction=last_microbatch --shard.accumulation=sharded ";
  const auto with_sequences = [](std::int64_t size) {  // four microbatches on two data ranks
    return fmt::format(" --training.microbatch_size={} --training.global_batch_size={}", size, 8 * size);
  };
  const auto needed = document(run + with_sequences(4))["worst_needed_bytes"].get<std::int64_t>();
  const std::string card = fmt::format(" '--hardware.memory={} B'", static_cast<std::int64_t>(1.06 * needed));
  bool seen = false;
  const Json compared = document(run + with_sequences(1) + card + " --compare");
  for (const Json& strategy : compared["strategies"]) {
    if (strategy["strategy"] != "full_shard") continue;
    seen = true;
    EXPECT_EQ(strategy["largest_microbatch"], 4);
    const auto recomputed = strategy["largest_microbatch_recomputed"].get<std::int64_t>();
    EXPECT_GE(recomputed, 4);
    for (const std::int64_t more : {0, 1}) {
      const Json plain = document(run + with_sequences(4 + more) + card);
      EXPECT_EQ(plain["worst_verdict"] == "fits", more == 0) << plain["verdict_text"];
      const Json full = document(run + with_sequences(recomputed + more) + card + " --training.recompute=full");
      EXPECT_EQ(full["worst_verdict"] == "fits", more == 0) << full["verdict_text"];
    }
  }
  EXPECT_TRUE(seen);
  const std::string text = weft(run + with_sequences(1) + card + " --compare").output;
  EXPECT_NE(text.find("largest microbatch  with full recompute"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft
