// Overrides as a user gives them: on a run file, on the resolved file that a run left, and on its checkpoint.
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "parallel/runtime/outside_text.h"
#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class OverrideCommand : public TinyTraining {
 protected:
  // The lines of a run's metrics, without what a clock measured.
  std::vector<SortedJson> metrics(const std::string& directory) const {
    std::vector<SortedJson> lines;
    std::ifstream file(folder_ / directory / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      lines.push_back(SortedJson::parse(line));
      for (const char* measured : {"seconds", "data_seconds", "tokens_per_second", "tflops", "system_allocations"})
        lines.back().erase(measured);
    }
    return lines;
  }
  void expect_refused(const std::string& arguments, const std::string& part) const {
    const ProgramResult result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_NE(result.messages.find(part), std::string::npos) << arguments << "\n" << result.messages;
  }
};

// What a summary and a receipt have as the command is what a shell takes.
TEST_F(OverrideCommand, AreQuotedWhereTheyAreTold) {
  const std::vector<std::string> words = {"a b",        "it's",           "`x`", "$HOME", "", "tab\there",
                                          "two\nlines", "plain-1.0/%=,:", "é"};
  EXPECT_EQ(run("printf '%s|' " + shell_text(words)).output, fmt::format("{}|", fmt::join(words, "|")));
  run("cp run.toml 'a run.toml'");
  ASSERT_EQ(weft("train 'a run.toml' --run.steps=1 --run.name=\"it's\" --run.directory=out").exit_code, 0);
  const SortedJson summary = SortedJson::parse(std::ifstream(folder_ / "out/summary.json"));
  EXPECT_TRUE(summary["command_line"].get<std::string>().ends_with(
      "train 'a run.toml' --run.steps=1 '--run.name=it'\\''s' --run.directory=out"))
      << summary["command_line"];
}

// They would be in config.toml and JSON, which no reader takes then.
TEST_F(OverrideCommand, MustBeUtf8) {
  expect_refused("train run.toml --run.steps=1 --run.name=caf\xe9", "--run.name=caf\xef\xbf\xbd is not UTF-8");
  expect_refused("train caf\xe9.toml", "caf\xef\xbf\xbd.toml: the name is not UTF-8");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));
}

// The original is the oracle: what a run left behind is overridden as the file that it was started with.
TEST_F(OverrideCommand, ReachARunThatIsStartedFromAResolvedFile) {
  ASSERT_EQ(weft("train run.toml --run.steps=1 --checkpoint.interval=1 --run.directory=first").exit_code, 0);
  const std::vector<SortedJson> plain = metrics("first");
  for (const char* words :
       {"--optimizer.learning_rate=0.3", "--precision.compute=bfloat16", "--shard.strategy=no_shard"}) {
    const std::string rest = fmt::format(" {} --run.steps=2 --checkpoint.at_end=false --run.directory=", words);
    const ProgramResult original = weft("train run.toml" + rest + "original");
    const ProgramResult resolved = weft("train first/config.toml --checkpoint.interval=0" + rest + "resolved");
    ASSERT_EQ(original.exit_code, 0) << original.messages;
    ASSERT_EQ(resolved.exit_code, 0) << resolved.messages;
    EXPECT_EQ(metrics("resolved"), metrics("original")) << words;
    EXPECT_NE(metrics("resolved").front(), plain.front()) << words;
    for (const char* command : {"units", "plan"}) {
      const std::string shown = weft(fmt::format("{} run.toml {}", command, words)).output;
      EXPECT_EQ(weft(fmt::format("{} first/config.toml {}", command, words)).output, shown) << words;
      if (std::string(words).find("optimizer") != std::string::npos) continue;
      EXPECT_NE(weft(fmt::format("{} run.toml", command)).output, shown) << words;
    }
  }
  EXPECT_NE(weft("train first/config.toml --optimizer.learning_rate=0.3 --run.steps=1 --run.directory=third "
                 "--checkpoint.interval=0")
                .output.find("  lr 3.00e-01  "),
            std::string::npos);
  const std::string eval = "eval first --data text.txt";
  const std::string narrow = weft(eval + " --precision.compute=bfloat16").output;
  EXPECT_NE(narrow.substr(0, narrow.find("in ")), weft(eval).output.substr(0, narrow.find("in ")));
}

TEST_F(OverrideCommand, ThatNothingReadsAreRefused) {
  std::string text = "include = [\"run.toml\"]\n";
  for (const char* family : {"dense", "experts", "embedding", "head"}) {
    text += fmt::format("[precision.{}]\ncompute = \"float32\"\n", family);
  }
  put("own.toml", text);
  for (const char* command : {"train", "check", "plan", "units", "mesh", "program", "layout show"}) {
    expect_refused(
        fmt::format("{} own.toml --precision.compute=bfloat16", command),
        "command line: --precision.compute=bfloat16: error: precision.compute: nothing in this run reads it: "
        "dense (own.toml:3), experts (own.toml:5), embedding (own.toml:7), head (own.toml:9) have values of "
        "their own");
    expect_refused(fmt::format("{} run.toml --optimizer.momentum=0.5", command), "read it where name is \"sgd\"");
  }
  // A plan for a card reads it.
  expect_refused("plan run.toml --run.deterministic=true", "device is \"cuda\" or hardware.name a card");
  EXPECT_EQ(weft("plan run.toml --run.deterministic=true --hardware.name=h100").exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

// A forward of saved weights reads less than the run that trained them.
TEST_F(OverrideCommand, ThatOnlyTrainingReadsAreRefusedForSavedWeights) {
  ASSERT_EQ(weft("train run.toml --run.steps=1 --run.directory=saved").exit_code, 0);
  const std::string generate = "generate saved --prompt warp --max-tokens 1", eval = "eval saved --data text.txt";
  const std::vector<std::string> keys = {"run.name=other",
                                         "run.seed=99",
                                         "run.steps=9",
                                         "optimizer.learning_rate=0.5",
                                         "training.max_grad_norm=3",
                                         "spikes.grad_norm=4",
                                         "profiling.first_step=1",
                                         "checkpoint.interval=1",
                                         "training.recompute=full",
                                         "data.train=text.txt",
                                         "validation.split=false",
                                         "lr_scheduler.warmup_steps=1",
                                         "precision.reduction=bfloat16",
                                         "model.initializer_range=1"};
  std::string words;
  for (const std::string& key : keys) words += " --" + key;
  for (const std::string& command : {generate, eval}) {
    for (const std::string& key : keys) {
      expect_refused(command + words, fmt::format("--{}: error: {}: nothing in this run reads it: it is read where "
                                                  "weights are trained",
                                                  key, key.substr(0, key.find('='))));
    }
    const ProgramResult read =
        weft(command +
             " --parallelism.tensor=1 --training.microbatch_size=2 --shard.lookahead=2 "
             "--run.communication_timeout_seconds=60 --precision.parameters=bfloat16 --hardware.name=h100");
    EXPECT_EQ(read.exit_code, 0) << read.messages;
  }
  expect_refused(generate + " --run.seed=3", "; --seed is that of the text");
  // Some are read by one of the two.
  const std::string read_by_eval =
      " --data.documents=mask --data.order=weft --model.moe.capacity_factor=1"
      " --model.moe.aux_loss=sequence";
  EXPECT_EQ(weft(eval + read_by_eval).exit_code, 0);
  for (const char* key : {"data.documents", "model.moe.capacity_factor"}) expect_refused(generate + read_by_eval, key);
  expect_refused("eval saved --split --data.split=20,80", "data.split is \"\" in the checkpoint");
}

TEST_F(OverrideCommand, GivenTwiceAreRefusedNamingBoth) {
  for (const char* command : {"train", "check", "plan", "units", "mesh", "program", "walk", "bench step"}) {
    expect_refused(fmt::format("{} run.toml --run.steps=2 --training.microbatch_size=1 --run.steps=3", command),
                   "command line: --run.steps=3: error: run.steps is given twice, by --run.steps=2 and by "
                   "--run.steps=3: leave one out");
  }
  for (const char* options : {"", " --explain", " --compare", " --advise", " --search"}) {
    expect_refused(fmt::format("plan run.toml --hardware h100 --hardware.name=cpu{}", options),
                   "hardware.name is given twice, by --hardware.name=cpu and by --hardware.name=h100");
  }
}

// The rates of the groups, in the line of a step and in the metrics.
TEST_F(OverrideCommand, RatesAreThoseThatAreApplied) {
  const std::string run = "train run.toml --run.steps=1 --checkpoint.at_end=false";
  ProgramResult result = weft(run + " --optimizer.experts.learning_rate=0.01 --lr_scheduler.warmup_steps=1");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const std::string rates = "  lr 1.00e-03 (dense, embedding, head, routing, vectors), 1.00e-02 (experts)  ";
  EXPECT_NE(result.output.find(rates), std::string::npos) << result.output;
  EXPECT_EQ(metrics("out/tiny").front()["lr"], (SortedJson{{"dense", 1e-3},
                                                           {"embedding", 1e-3},
                                                           {"head", 1e-3},
                                                           {"routing", 1e-3},
                                                           {"vectors", 1e-3},
                                                           {"experts", 1e-2}}));
  // One that is trained alone is the only one.
  result = weft(run +
                " '--training.frozen=[\"dense\", \"embedding\", \"head\", \"routing\"]'"
                " --optimizer.experts.learning_rate=0.01");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_NE(result.output.find("  lr 1.00e-02  "), std::string::npos) << result.output;
  EXPECT_EQ(metrics("out/tiny").front()["lr"], 1e-2);
}

}  // namespace
}  // namespace weft
