// Settings of sharding and precision that may be said, and those that are refused. Each refusal names the settings that
// clash.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/runtime/error.h"
#include "tests/trainer/config_sample.h"
#include "trainer/config/update_groups.h"
#include "trainer/plan/unit_policy.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

using config_sample::complete;
using config_sample::message;

// The sample with strategies and residencies left to their defaults, on four ranks that shard.
std::string plain_text() {
  std::string text = config_sample::with("residency = \"while_on_stage\"\n", "");
  text = config_sample::with("reduction = \"every 3\"\n", "", text);
  text = config_sample::with("residency = \"reshard_after_use\"\n", "", text);
  text = config_sample::with("data_shard = 2", "data_shard = 4", text);
  return config_sample::with("[shard.root]\nstrategy = \"no_shard\"\n", "[shard.root]\n", text);
}

Config read_plain(const Overrides& overrides) {
  return read_config_text(plain_text(), "run.toml", overrides).config;
}

void expect_all_said(const Overrides& overrides, const std::vector<std::string>& parts) {
  const std::string text = message(plain_text(), overrides);
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << "\nnot in\n" << text;
}

TEST(ShardKeys, AStrategyIsAPresetThatWhatIsWrittenOverrides) {
  const auto policy = [](const Overrides& overrides) {
    return resolve_policy(read_plain(overrides), Family::dense, 0);
  };
  // full_shard keeps its promise with and without a pipeline; gradients add up in shards where there are several
  // microbatches.
  for (const char* pipeline : {"parallelism.pipeline=1", "parallelism.pipeline=2"}) {
    EXPECT_EQ(policy({pipeline}).residency, Residency::reshard_after_use);
    EXPECT_EQ(policy({pipeline}).reduce_every, 0);
    EXPECT_TRUE(policy({pipeline}).accumulate_sharded);
    EXPECT_FALSE(policy({pipeline, "shard.reduction=last_microbatch"}).accumulate_sharded);
    // Written, the value that other strategies have by default wins too, also for one family.
    const UnitPolicy whole = policy({pipeline, "shard.accumulation=unsharded"});
    EXPECT_FALSE(whole.accumulate_sharded);
    EXPECT_EQ(whole.reduce_every, 0);
    EXPECT_FALSE(policy({pipeline, "shard.dense.accumulation=unsharded"}).accumulate_sharded);
    EXPECT_TRUE(policy({pipeline, "shard.experts.accumulation=unsharded"}).accumulate_sharded);
    EXPECT_TRUE(policy({pipeline, "shard.accumulation=unsharded", "shard.dense.accumulation=auto"}).accumulate_sharded);
  }

  const UnitPolicy zero2 = policy({"shard.strategy=shard_grad_op"});
  EXPECT_EQ(zero2.residency, Residency::step);
  EXPECT_EQ(zero2.reduce_every, 1);
  EXPECT_EQ(policy({"shard.strategy=shard_grad_op", "shard.reduction=\"every 2\""}).reduce_every, 2);
  EXPECT_EQ(policy({"shard.strategy=shard_grad_op", "shard.reduction=last_microbatch"}).reduce_every, 0);
  const UnitPolicy scattered = policy({"shard.strategy=shard_grad_op", "shard.accumulation=sharded"});
  EXPECT_TRUE(scattered.accumulate_sharded);
  EXPECT_EQ(scattered.reduce_every, 0);

  const UnitPolicy zero1 = policy({"shard.strategy=optimizer"});
  EXPECT_EQ(zero1.residency, Residency::step);
  EXPECT_EQ(zero1.reduce_every, 0);
  EXPECT_EQ(policy({"shard.residency=keep_after_forward"}).residency, Residency::keep_after_forward);
}

// The reason that `weft units` prints says what decided.
TEST(ShardKeys, AReasonSaysWhatDecided) {
  EXPECT_NE(resolve_policy(read_plain({"shard.lookahead=3"}), Family::dense, 1).reason.find("of the next 3 alone"),
            std::string::npos);
  EXPECT_NE(resolve_policy(read_plain({"shard.residency=2"}), Family::dense, 0).reason.find("2 neighbours"),
            std::string::npos);
}

TEST(ShardKeys, EachStageMayHaveAResidencyOfItsOwn) {
  const Config config =
      read_plain({"shard.dense.residency=[\"step\", 2]", "shard.head.residency=[\"window 3\", \"stage\"]"});
  EXPECT_EQ(resolve_policy(config, Family::dense, 0).residency, Residency::step);
  EXPECT_EQ(resolve_policy(config, Family::dense, 1).residency, Residency::island);
  EXPECT_EQ(resolve_policy(config, Family::dense, 1).island_ranks, 2);
  EXPECT_EQ(resolve_policy(config, Family::head, 0).window_stages, 3);
  EXPECT_EQ(resolve_policy(config, Family::embedding, 0).residency, Residency::reshard_after_use);
  EXPECT_EQ(islands_of(config), (std::set<Island>{{Group::dp_shard, 2}}));
  expect_all_said({"shard.dense.residency=[\"step\"]"}, {"residency has 1 entries for 2 pipeline stages"});
  expect_all_said({"shard.dense.residency=[\"step\"]", "shard.dense.wrap=root"},
                  {"residency has 1 entries for 2 pipeline stages"});
  expect_all_said({"shard.dense.residency=[]"}, {"the list is empty"});
  expect_all_said({"shard.dense.residency=[\"step\", 3]"}, {"stage 1: dense: residency 3", "do not divide"});
}

TEST(ShardKeys, ReadBackToTheSameConfig) {
  const Overrides overrides = {"shard.dense.residency=[\"step\", 2]", "shard.residency=2",
                               "shard.accumulation=sharded",          "shard.reduce_inputs=3",
                               "precision.experts.compute=float32",   "training.frozen=[\"embedding\", \"routing\"]",
                               "shard.dense.wrap=\"blocks 2\"",       "training.initial_loss_scale=1024"};
  const ResolvedConfig first = read_config_text(plain_text(), "run.toml", overrides);
  const ResolvedConfig second = read_config_text(first.toml, "again.toml");
  EXPECT_EQ(first.config, second.config);
}

TEST(ShardFaults, AnIslandIsAProperDivisorOfItsGroup) {
  expect_all_said({"shard.residency=1"}, {"residency 1", "one rank alone would keep everything"});
  expect_all_said({"shard.residency=4"}, {"residency 4", "that is the whole group"});
  expect_all_said({"shard.residency=3"}, {"residency 3", "they do not divide the group"});
  expect_all_said({"shard.residency=8"}, {"residency 8", "more than the group has"});
  expect_all_said({"shard.residency=0"}, {"residency \"0\" is not"});
  // Experts are sharded over another group: 4 x 2 ranks of a stage, 2 of them to spread experts.
  expect_all_said({"shard.experts.residency=8", "parallelism.expert=2"}, {"experts: residency 8", "of the 4 ranks"});
}

TEST(ShardTexts, AreWrittenAsTheyWereRead) {
  for (const char* text : {"stage", "reshard_after_use", "keep_after_forward", "keep_after_backward", "while_on_stage",
                           "step", "auto", "window 3", "8"}) {
    EXPECT_EQ(to_string(parse_residency(text)), text);
  }
  for (const char* text : {"auto", "each_microbatch", "last_microbatch", "every 1", "every 3"}) {
    EXPECT_EQ(to_string(parse_reduction(text)), text);
  }
}

TEST(ShardFaults, ACountIsNoFlag) {
  expect_all_said({"shard.lookahead=true"}, {"shard.lookahead: expected an integer"});
  expect_all_said({"shard.residency=false"}, {"reshard_after_forward false is called \"keep_after_forward\" here"});
  expect_all_said({"shard.residency=\"window 0\""}, {"\"window K\" (K stages, at least 1)"});
  expect_all_said({"shard.reduction=\"every 0\""}, {"is not auto, each_microbatch"});
  expect_all_said({"shard.reduce_inputs=-1"}, {"shard.reduce_inputs: -1 is out of range"});
  expect_all_said({"shard.wrap=\"blocks 0\""}, {"shard.wrap"});
}

TEST(ShardFaults, AnOldNameSaysTheNewOne) {
  expect_all_said({"shard.residency=\"each_use\""}, {"residency \"each_use\" is called \"reshard_after_use\" now"});
  expect_all_said({"shard.experts.residency=\"visit\""}, {"residency \"visit\" is called \"while_on_stage\" now"});
}

TEST(ShardFaults, ASolvedStepIsSolvedAsAWhole) {
  const std::string all = "shard.residency=auto", alone = "shard.lookahead=1", budget = "shard.memory_budget=\"1 GiB\"";
  expect_all_said({all}, {"residency \"auto\" needs a memory_budget, such as \"12 GiB\""});
  expect_all_said({budget}, {"memory_budget bounds what residency \"auto\" solves, and no family has it"});
  expect_all_said({all, budget, "shard.dense.residency=step"}, {"solved for a whole step", "dense do not"});
  expect_all_said({all, budget, "shard.strategy=optimizer"}, {"may drop them before its end"});
  expect_all_said({all, budget, "shard.lookahead=2"}, {"decides when gathers begin: leave lookahead out"});
  expect_all_said({all, budget, "shard.accumulation=sharded"}, {"write accumulation \"unsharded\""});
  expect_all_said({all, budget, "shard.reduction=\"every 2\""}, {"or once (\"last_microbatch\"), not \"every 2\""});
  expect_all_said({all, alone, "shard.memory_budget=lots"}, {"\"lots\" is no amount of memory"});
  expect_all_said({all, alone, "shard.memory_budget=-4"}, {"-4 is no amount of memory"});
  EXPECT_EQ(read_plain({all, alone, budget}).memory_budget, std::int64_t{1} << 30);
  EXPECT_EQ(read_plain({all, alone, "shard.memory_budget=\"1.5 GB\""}).memory_budget, 1'500'000'000);
  EXPECT_TRUE(ResolvedRun(read_plain({all, alone, budget})).timing().has_value());
  const auto refused = refusal_of([&] { ResolvedRun(read_plain({all, alone, "shard.memory_budget=1kB"})); });
  ASSERT_TRUE(refused.has_value());
  EXPECT_NE(refused->find("the smallest budget that does is"), std::string::npos) << *refused;
  const ResolvedConfig first = read_config_text(plain_text(), "run.toml", {all, alone, budget});
  EXPECT_EQ(read_config_text(first.toml, "again.toml").toml, first.toml);
  const ResolvedConfig small = read_config_text(plain_text(), "run.toml", {all, alone, "shard.memory_budget=1kB"});
  EXPECT_EQ(read_config_text(small.toml, "again.toml").config.memory_budget, 1000);
}

// Advice that can be followed: the parts that there are, or another residency.
TEST(ShardFaults, AnIslandIsToldItsSizes) {
  const std::string of8 = "parallelism.data_shard=8", of2 = "parallelism.data_shard=2";
  expect_all_said({of8, "shard.residency=3"}, {"they do not divide the group: write 2 or 4"});
  expect_all_said({of2, "shard.residency=2"}, {"that is the whole group: write \"reshard_after_use\""});
}

// A configuration has no key for microbatches.
TEST(ShardFaults, TooFewMicrobatchesAreToldTheBatch) {
  expect_all_said({"parallelism.pipeline=4", "parallelism.data_shard=2", "pipeline.schedule=dualpipev",
                   "pipeline.chunks=2", "training.microbatch_size=1", "training.global_batch_size=8"},
                  {"set training.global_batch_size = 16 for 8 microbatches"});
}

// 80 is meant as 80 GiB: the sentence has the unit to write.
TEST(ShardFaults, SmallAmountsOfMemoryNeedAUnit) {
  for (const char* key : {"hardware.memory", "checkpoint.host_memory"}) {
    expect_all_said({fmt::format("{}=80", key)},
                    {"80 without a unit is 80 bytes", "write \"80 GiB\", or \"80 B\" for bytes"});
    expect_all_said({fmt::format("{}=\"80\"", key)}, {"\"80\" without a unit is 80 bytes"});
  }
  EXPECT_EQ(read_plain({"hardware.memory=80 B"}).hardware.memory, 80);
  EXPECT_EQ(read_plain({"hardware.memory=1048576"}).hardware.memory, 1 << 20);
}

TEST(ShardFaults, StrategyAndReductionContradictEachOther) {
  expect_all_said({"shard.strategy=optimizer", "shard.reduction=each_microbatch"},
                  {"strategy \"optimizer\" keeps gradients whole", "reduction is \"each_microbatch\""});
  expect_all_said({"shard.strategy=optimizer", "shard.reduction=\"every 2\""}, {"reduction is \"every 2\""});
  expect_all_said({"shard.strategy=optimizer", "shard.accumulation=sharded"}, {"accumulation is \"sharded\""});
  expect_all_said({"shard.strategy=no_shard", "shard.accumulation=sharded"},
                  {"strategy \"no_shard\" keeps gradients whole", "accumulation is \"sharded\""});
  expect_all_said({"shard.accumulation=sharded", "shard.reduction=each_microbatch"},
                  {"accumulation \"sharded\" adds up shards", "reduction is \"each_microbatch\""});
}

// A family inherits what [shard] says: the line of that is shown, not of a key that only happens to be written.
TEST(ShardFaults, ARuleShowsTheLineThatTheFamilyInherits) {
  const std::string text = config_sample::with("strategy = \"full_shard\"\n",
                                               "strategy = \"no_shard\"\naccumulation = \"sharded\"\n", plain_text());
  const std::string written = text.substr(0, text.find("strategy = \"no_shard\""));
  const std::string place = fmt::format("run.toml:{}:", 1 + std::ranges::count(written, '\n'));
  const std::string said = message(text, {});
  EXPECT_TRUE(said.starts_with(place)) << said << "\nnot at " << place;
}

TEST(ShardFaults, StrategyAndResidencyContradictEachOther) {
  for (const char* strategy : {"shard_grad_op", "optimizer"}) {
    for (const char* residency : {"reshard_after_use", "keep_after_forward", "keep_after_backward", "2"}) {
      expect_all_said({fmt::format("shard.strategy={}", strategy), fmt::format("shard.residency={}", residency)},
                      {fmt::format("strategy \"{}\" gathers parameters once a step", strategy),
                       fmt::format("residency \"{}\"", residency)});
    }
  }
  expect_all_said({"shard.strategy=no_shard", "shard.residency=2"}, {"strategy \"no_shard\" keeps parameters whole"});
}

TEST(ShardFaults, AFamilyWithoutAPolicyIsNamed) {
  Config config = read_plain({});
  config.shard_by_family.erase(Family::experts);
  try {
    resolve_policy(config, Family::experts, 0);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("family experts has no policy"), std::string::npos) << error.what();
  }
  expect_all_said({"shard.router.strategy=full_shard"}, {"shard.router"});
}

// An optimizer that needs whole matrices of float32 parameters, and a unit that would hold two kinds of optimizer.
TEST(ShardFaults, AnOptimizerAndALayoutThatDoNotFit) {
  expect_all_said({"optimizer.name=muon", "precision.parameters=bfloat16"},
                  {"\"muon\" of dense keeps parameters in float32, but precision.parameters is \"bfloat16\""});
  const Config narrow = read_plain({"optimizer.name=muon", "optimizer.dense.state=bfloat16"});
  EXPECT_EQ(resolved_groups(narrow)[UpdateGroup::dense].state, DType::bfloat16);
  EXPECT_EQ(resolved_groups(narrow)[UpdateGroup::experts].state, DType::float32);
  expect_all_said({"optimizer.name=muon", "shard.wrap=root"},
                  {"embedding: wrap \"root\" puts it into the stage's root unit", "by adamw", "by muon"});
  expect_all_said({"shard.head.wrap=root", "shard.head.lookahead=5"}, {"head: wrap \"root\"", "lookahead 5"});
  expect_all_said({"optimizer.embedding.name=muon"}, {"between hidden states, which embedding is not"});
}

TEST(PrecisionFaults, AreNamed) {
  expect_all_said({"precision.parameters=float16"}, {"precision.parameters: \"float16\" is not available"});
  const std::string odd = "training.initial_loss_scale=1000";
  expect_all_said({"precision.compute=float16", odd}, {"initial_loss_scale 1000 is not a power of two"});
  expect_all_said({"training.frozen=[\"embeding\"]"}, {"training.frozen", "embedding"});
  expect_all_said({"training.frozen=1"}, {"training.frozen: expected an array"});
}

}  // namespace
}  // namespace weft
