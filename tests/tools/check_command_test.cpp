// `weft check` refuses what `weft train` would refuse before its first step, in the same words, and passes the rest.
#include <fmt/format.h>

#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/tiny_training.h"

namespace weft {
namespace {

class CheckCommand : public TinyTraining {
 protected:
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }
  // run.toml with `from` replaced by `to`.
  void put_changed(const std::string& name, const std::string& from, const std::string& to) const {
    std::ifstream file(folder_ / "run.toml");
    std::stringstream text;
    text << file.rdbuf();
    std::string changed = text.str();
    const std::size_t at = changed.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    put(name, changed.replace(at, from.size(), to));
  }
};

struct Broken {
  std::string arguments;
  std::string fault;  // a part of the first line
};

TEST_F(CheckCommand, FindsWhatTrainRefuses) {
  put("empty.txt", "");
  put("short.txt", "weft");
  put_changed("gone.toml", "[\"text.txt\"]", "[\n  \"text.txt\",\n  \"gone.txt\",\n  \"empty.txt\"\n]");
  put_changed("start.toml", "[data]", "[checkpoint]\nstart_from = \"nowhere\"\n[data]");
  put("late.jsonl", "{\"q\": \"" + std::string(200, 'q') + "\", \"a\": \"a\"}\n");
  ASSERT_EQ(weft("data tokenize late.jsonl --prompt q --key a --tokenizer byte --no-end --output late").exit_code, 0);
  put_changed("thin.toml", "intermediate_size = 24", "intermediate_size = 1");
  ASSERT_EQ(weft("train run.toml --run.steps=1 --checkpoint.interval=1 --run.directory=saved").exit_code, 0);
  for (const char* folder : {"taken/metrics.jsonl", "locked/run.lock"}) {
    std::filesystem::create_directories(folder_ / folder);
  }
  const std::vector<Broken> cases = {
      // Files of data, with the line of the name.
      {"gone.toml", "gone.toml:31:3: error: data.train: \"gone.txt\": No such file or directory"},
      {"run.toml '--data.train=[\"empty.txt\"]'",
       "command line: --data.train=[\"empty.txt\"]: error: data.train: \"empty.txt\": the file is empty"},
      {"run.toml '--data.train=[\"text.txt\", \"short.txt\"]'",
       "data.train: \"short.txt\": 4 bytes are fewer than one window of sequence_length + 1 = 9"},
      {"run.toml '--data.train=[\".\"]'", "data.train: \".\": it is not a regular file"},
      // Where the run writes.
      {"run.toml --run.directory=text.txt", "error: run.directory text.txt cannot be created: Not a directory"},
      {"run.toml --run.directory=text.txt/run", "error: run.directory text.txt/run cannot be created: Not a directory"},
      {"run.toml --run.directory=made/" + std::string(300, 'x'), "cannot be created: File name too long"},
      {"run.toml --run.directory=/proc/x", "error: run.directory /proc/x cannot be created: "},
      {"run.toml --run.directory=taken", "error: run.directory taken: metrics.jsonl is a folder"},
      {"run.toml --checkpoint.directory=locked", "error: checkpoint.directory locked: run.lock is a folder"},
      {"run.toml --checkpoint.directory=text.txt",
       "error: checkpoint.directory text.txt cannot be created: Not a directory"},
      // What it validates.
      {"run.toml '--validation.data=[\"late.bin\"]' --validation.batches=2",
       "none of the 16 windows of \"late.bin\" that are read has a token that counts"},
      // What it begins with.
      {"start.toml", "start.toml:29:14: error: "},
      {"run.toml --run.directory=saved --checkpoint.resume=false",
       "error: checkpoint.resume is false, but saved/checkpoints has checkpoints, the newest step-00000001"},
      {"run.toml --run.directory=saved --model.hidden_size=32", "step-00000001: it is of another model:"},
      {"run.toml --run.directory=saved --run.seed=5", "its data is not that of this run"},
      {"run.toml --run.directory=saved --run.seed=5", "command line: --run.seed=5: error: "},
      {"run.toml --run.directory=saved --model.hidden_size=32", "command line: --model.hidden_size=32: error: "},
      {"run.toml --data.tokenizer=gone.json", "command line: --data.tokenizer=gone.json: error: data.tokenizer: "},
      {"run.toml --checkpoint.start_from=saved --model.hidden_size=32", "step-00000001: it is of another model:"},
      {"run.toml --checkpoint.start_from=saved --checkpoint.weights_only=false --run.seed=5",
       "its data is not that of this run"},
      // What no rule of a single key sees.
      {"thin.toml --parallelism.tensor=1 --parallelism.expert=2 --optimizer.name=muon",
       "\"muon\" turns whole matrices, and those of dense have a single row where model.intermediate_size is 1"},
      {"run.toml --model.moe.moe_intermediate_size=1 --optimizer.experts.name=muon",
       "those of experts have a single row where model.moe.moe_intermediate_size is 1"},
      {"run.toml --parallelism.tensor=1 --model.moe.shared_expert_intermediate_size=1 --optimizer.name=muon",
       "those of dense have a single row where model.moe.shared_expert_intermediate_size is 1"},
      {"run.toml --model.layers=dd --parallelism.expert=1 --parallelism.expert_tensor=2",
       "expert_tensor 2 has no experts to split: model.layers \"dd\" has no MoE blocks (e, E)"},
      {"run.toml --shard.residency=auto --shard.memory_budget=1kB", "memory_budget 1000 B is too small"},
      {"run.toml --pipeline.costs=gone.costs", "gone.costs"},
      {"run.toml --pipeline.schedule=gone.csv", "\"gone.csv\": No such file"},
      {"run.toml --run.launch=processes", "ranks that are processes exchange tensors of GPUs"},
      {"run.toml --training.global_batch_size=7", "global_batch_size 7 is not a multiple of"},
      // What the card has no room for.
      {"run.toml '--hardware.memory=\"24 KiB\"'", "run.toml: the plan says that this run does not fit: "},
  };
  const std::string twice = weft("check run.toml --run.directory=saved --data.train=gone.txt").messages;
  EXPECT_EQ(twice.find("gone.txt\"", twice.find("gone.txt\"") + 1), std::string::npos) << twice;
  const auto before = std::distance(std::filesystem::recursive_directory_iterator(folder_), {});
  for (const auto& [arguments, fault] : cases) {
    const ProgramResult checked = weft("check " + arguments), trained = weft("train " + arguments);
    EXPECT_EQ(checked.exit_code, 2) << arguments << "\n" << checked.messages;
    EXPECT_EQ(trained.exit_code, 2) << arguments << "\n" << trained.messages;
    EXPECT_NE(checked.messages.find(fault), std::string::npos) << arguments << "\n" << checked.messages;
    EXPECT_EQ(first_line(checked.messages), first_line(trained.messages)) << arguments;
    EXPECT_EQ(trained.output, "") << arguments;
  }
  EXPECT_EQ(std::distance(std::filesystem::recursive_directory_iterator(folder_), {}), before);
}

// Each fault has one line, and none is there because of another. Every file and folder that is named is looked at.
TEST_F(CheckCommand, ListsEveryFaultOnce) {
  const std::string train = "--data.train=no.txt", tokenizer = "--data.tokenizer=no.json",
                    validation = "--validation.data=held.txt", start = "--checkpoint.start_from=nowhere",
                    folder = "--run.directory=text.txt/run", head = "--model.head_dim=15", costs = "no.costs";
  struct Wrong {
    std::string arguments;
    std::vector<std::string> faults;  // a part of each line
  };
  std::filesystem::create_directories(folder_ / "held/checkpoints/step-00000001");
  run("touch held/checkpoints/step-00000001/manifest.json");
  const std::vector<Wrong> cases = {
      {"--run.directory=held --checkpoint.resume=false", {"has checkpoints"}},
      // Another folder was meant.
      {"--run.directory=held --checkpoint.resume=false --run.directry=new", {"did you mean run.directory?"}},
      {fmt::format("{} {} {} {} {}", train, tokenizer, validation, start, folder),
       {"\"no.json\": No such", "\"no.txt\": No such", "\"held.txt\": No such", "text.txt/run cannot be created",
        "nowhere: there is no such folder"}},
      {fmt::format("{} {} {}", train, validation, start),
       {"\"no.txt\": No such", "\"held.txt\": No such", "nowhere: there is no such folder"}},
      // No file is compared with a model or a length that is refused.
      {fmt::format("{} {} --training.sequence_length=0", head, train),
       {"sequence_length: 0 is out", "head_dim 15 is odd", "\"no.txt\": No such"}},
      {fmt::format("{} --model.vocab_size=abc --training.sequence_length=4096", head),
       {"vocab_size: expected an integer", "head_dim 15 is odd"}},
      {fmt::format("{} --shard.residency=auto --shard.memory_budget=1kB", train),
       {"\"no.txt\": No such", "memory_budget 1000 B is too small"}},
      {fmt::format("{} --pipeline.costs={}", train, costs), {"\"no.txt\": No such", "\"no.costs\": No such"}},
      // A table of costs that a single stage does not need is a file that is named.
      {fmt::format("--parallelism.pipeline=1 --pipeline.costs={}", costs), {"\"no.costs\": No such"}},
      // A word that is no key could have been meant for one that is required, or that a rule reads.
      {fmt::format("{} --nokey=1 --run.bogus=1 --steps 3 {}", head, train),
       {"unknown option --nokey", "unknown option --steps: did you mean --run.steps=VALUE?", "unexpected argument 3",
        "unknown key run.bogus", "\"no.txt\": No such"}},
      {"--nokey=1 --run.steps=2 --run.steps=3 --run.seed=x",
       {"unknown option --nokey", "run.steps is given twice", "run.seed: expected an integer"}},
  };
  for (const char* command : {"check", "train"}) {
    for (const auto& [arguments, faults] : cases) {
      const ProgramResult result = weft(fmt::format("{} run.toml {}", command, arguments));
      EXPECT_EQ(result.exit_code, 2) << arguments;
      std::istringstream lines(result.messages);
      std::size_t count = 0;
      for (std::string line; std::getline(lines, line);) count += line.starts_with("weft: warning") ? 0 : 1;
      EXPECT_EQ(count, faults.size()) << arguments << "\n" << result.messages;
      for (const std::string& fault : faults) {
        EXPECT_NE(result.messages.find(fault), std::string::npos) << arguments << "\n" << result.messages;
      }
    }
  }
  for (const char* command : {"plan", "units", "mesh", "program", "walk", "bench step", "layout sweep"}) {
    const std::string messages = weft(fmt::format("{} run.toml --nokey=1 --run.bogus=1{}", command,
                                                  std::string(command) == "layout sweep" ? " --schedules 1f1b" : ""))
                                     .messages;
    EXPECT_NE(messages.find("unknown option --nokey"), std::string::npos) << messages;
    EXPECT_NE(messages.find("unknown key run.bogus"), std::string::npos) << messages;
  }
}

// Also what an absent feature is told in a file.
TEST_F(CheckCommand, PassesWhatTrains) {
  put_changed("dense.toml", "[data]",
              "[shard.experts]\nresidency = 2\nwrap = \"root\"\n[optimizer.routing]\nname = \"lion\"\n[data]");
  put_changed("thin.toml", "intermediate_size = 24", "intermediate_size = 1");
  const std::vector<std::string> cases = {
      "run.toml",
      "dense.toml --model.layers=dd --parallelism.expert=1 --parallelism.tensor=1 --parallelism.data_shard=1",
      "thin.toml --parallelism.tensor=1 --optimizer.name=muon --optimizer.dense.name=lion",
      "run.toml --optimizer.name=muon",
      "run.toml --model.moe.moe_intermediate_size=1 --optimizer.name=muon '--training.frozen=[\"experts\"]'",
      "run.toml --shard.residency=auto '--shard.memory_budget=\"1 GiB\"'",
      "run.toml --run.directory=made/on/the/way",
      "run.toml '--hardware.memory=\"24 KiB\"' --run.ignore_plan=true",
  };
  for (const std::string& arguments : cases) {
    const ProgramResult checked = weft("check " + arguments);
    EXPECT_EQ(checked.exit_code, 0) << arguments << "\n" << checked.messages;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "made"));
    const ProgramResult trained = weft("train --run.steps=1 " + arguments);
    EXPECT_EQ(trained.exit_code, 0) << arguments << "\n" << trained.messages;
    std::filesystem::remove_all(folder_ / "out");
    std::filesystem::remove_all(folder_ / "made");
  }
}

// What is left of a checkpoint, or a name for one that is gone, is no reason to begin anew over it.
TEST_F(CheckCommand, NothingBeginsAnewOverALostCheckpoint) {
  namespace fs = std::filesystem;
  const std::string run = " run.toml --run.steps=2 --checkpoint.interval=1 --run.directory=lost";
  ASSERT_EQ(weft("train" + run).exit_code, 0);
  const auto content = [&](const std::string& name) {
    std::ifstream file(folder_ / "lost" / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string metrics = content("metrics.jsonl"), config = content("config.toml");
  const auto expect_refused = [&](const std::string& fault) {
    for (const char* command : {"check", "train"}) {
      const ProgramResult result = weft(command + run);
      EXPECT_EQ(result.exit_code, 2) << command;
      EXPECT_NE(result.messages.find(fault), std::string::npos) << command << ": " << result.messages;
    }
    EXPECT_EQ(content("metrics.jsonl"), metrics);
    EXPECT_EQ(content("config.toml"), config);
  };
  const fs::path checkpoints = folder_ / "lost" / "checkpoints";
  fs::rename(checkpoints / "step-00000002" / "manifest.json", folder_ / "manifest.json");
  expect_refused("step-00000002 has tensors and no manifest.json");
  for (const char* step : {"step-00000001", "step-00000002"}) fs::remove_all(checkpoints / step);
  expect_refused("names step-00000002, which is no checkpoint");
  fs::remove(checkpoints / "latest");
  EXPECT_EQ(weft("train" + run).exit_code, 0);
}

// Texts that would send a reader down as many calls as they have brackets, and sizes whose tables nobody could hold.
TEST_F(CheckCommand, HostileTextsAreRefusedInFewWords) {
  const auto nested = [](char open, char close) {
    return std::string(50'000, open) + "d" + std::string(50'000, close);
  };
  put("arrays.toml", "a = " + nested('[', ']') + "\n");
  put("layers.toml", "[model]\nlayers = \"" + nested('(', ')') + "\"\n");
  put("layout.toml", "include = [\"run.toml\"]\n[pipeline]\nlayout = \"" + nested('(', ')') + "\"\n");
  std::string tables = "1", key = "a";
  for (int i = 0; i < 20'000; ++i) {
    tables.insert(0, "{b=");
    tables += '}';
    key += ".a";
  }
  put("tables.toml", "a = " + tables + "\n");
  put("keys.toml", key + " = 1\n");
  put("sections.toml", "[" + key + "]\n");
  put("itself.toml", "include = [\"itself.toml\"]\n");
  for (const char* arguments :
       {"arrays.toml", "layers.toml", "layout.toml", "tables.toml", "keys.toml", "sections.toml", "itself.toml",
        "run.toml --model.layers=d*99999", "run.toml --training.global_batch_size=134217728",
        "run.toml --model.hidden_size=2147483640 --model.intermediate_size=2147483640",
        "run.toml --training.sequence_length=2147483640", "/dev/zero", "."}) {
    for (const char* command : {"check ", "plan ", "units "}) {
      const ProgramResult result = weft(std::string(command) + arguments);
      EXPECT_EQ(result.exit_code, 2) << command << arguments;
      EXPECT_NE(result.messages, "") << command << arguments;
      EXPECT_LT(result.messages.size(), 4000u) << command << arguments << "\n" << result.messages.substr(0, 2000);
    }
  }
}

// 349 windows of 8 bytes; the keys of the file and one more.
TEST_F(CheckCommand, EndsWithAVerdict) {
  const ProgramResult checked = weft("check run.toml --run.seed=3");
  EXPECT_EQ(checked.exit_code, 0) << checked.messages;
  const std::string last = checked.output.substr(checked.output.rfind('\n', checked.output.size() - 2) + 1);
  const std::regex verdict(
      "# can be trained: 2800 tokens in 1 file; 3 steps x 64 tokens = 192 tokens: 0.0688 passes; 8 ranks, [1-9][0-9]+ "
      "parameters, 23 keys said\n");
  EXPECT_TRUE(std::regex_match(last, verdict)) << last;
  put("again.toml", checked.output);
  EXPECT_EQ(weft("check again.toml").exit_code, 0);
}

// The resolved configuration is printed also where a file is missing: plans are made elsewhere than runs.
TEST_F(CheckCommand, PrintsARunFileThatSaysTheSame) {
  const ProgramResult checked = weft("check run.toml --precision.experts.compute=bfloat16 '--data.train=[\"gone\"]'");
  EXPECT_EQ(checked.exit_code, 2);
  put("again.toml", checked.output);
  const ProgramResult again = weft("check again.toml '--data.train=[\"text.txt\"]' --precision.compute=float16");
  EXPECT_EQ(again.exit_code, 0) << again.messages;
  const auto line = [&](const std::string& section) {
    const std::string text = again.output.substr(again.output.find("[" + section + "]"));
    return text.substr(text.find("compute"), text.find('\n', text.find("compute")) - text.find("compute"));
  };
  EXPECT_TRUE(line("precision.experts").starts_with("compute = \"bfloat16\"")) << line("precision.experts");
  EXPECT_TRUE(line("precision.dense").starts_with("compute = \"float16\"")) << line("precision.dense");
  EXPECT_TRUE(line("precision.dense").ends_with("# precision.compute")) << line("precision.dense");
}

}  // namespace
}  // namespace weft
