// `weft train` as a user and a script see it: what it prints, what it leaves behind, how it ends.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "tests/tools/tiny_training.h"
#include "trainer/checkpoint/folder.h"

namespace weft {
namespace {

using SortedJson = nlohmann::json;

class TrainCommand : public TinyTraining {
 protected:
  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_)) {
      names.insert(std::filesystem::relative(entry.path(), folder_).string());
    }
    names.erase("messages");  // of the test itself
    std::erase_if(names, [](const std::string& name) { return name.find("/checkpoints/step-") != std::string::npos; });
    return names;
  }
  std::vector<SortedJson> metrics() const {
    std::vector<SortedJson> lines;
    std::ifstream file(folder_ / "out/tiny/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(SortedJson::parse(line));
    return lines;
  }
};

TEST_F(TrainCommand, TrainsAndLeavesItsFiles) {
  const auto result = weft("train run.toml");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  // The run asks for whole gradients until the last microbatch; that is all there is to say.
  EXPECT_TRUE(result.messages.starts_with("weft: warning: full_shard keeps whole float32 gradients"))
      << result.messages;
  const bool one_core = std::thread::hardware_concurrency() == 1;
  EXPECT_EQ(std::ranges::count(result.messages, '\n'), one_core ? 2 : 1) << result.messages;
  auto left = files();
  EXPECT_EQ(
      std::erase_if(left, [](const std::string& name) { return name.starts_with("out/tiny/tensorboard/events."); }),
      1u);
  EXPECT_EQ(left, (std::set<std::string>{"run.toml", "text.txt", "out", "out/tiny", "out/tiny/config.toml",
                                         "out/tiny/metrics.jsonl", "out/tiny/run.lock", "out/tiny/summary.json",
                                         "out/tiny/tensorboard", "out/tiny/checkpoints",
                                         "out/tiny/checkpoints/run.lock", "out/tiny/checkpoints/latest",
                                         "out/tiny/checkpoints/latest_checkpointed_iteration.txt"}));
  EXPECT_EQ(find_checkpoints(folder_ / "out/tiny/checkpoints").at(0).step, 3);
  const auto steps = metrics();
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_LT(steps[2]["loss"], steps[0]["loss"]);
  for (const char* part :
       {"weft: tiny on 8 ranks (threads, cpu)\n",
        "pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2; experts edp 2 x ep 2", "\nstep 1/3  loss ",
        // 349 windows of 8 bytes are read 24 / 349 times.
        "\n  data        2800 tokens in 1 file; 3 steps x 64 tokens = 192 tokens: 0.0688 passes\n", "\nstep 3/3  loss ",
        "memory at the peak, MiB: predicted by the program / measured", "          rank 7\n", "\noptimizer_state ",
        "static buckets that differ from their prediction: 0\n", "3 steps, loss "}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << part << "\n" << result.output;
  }
  const SortedJson summary = SortedJson::parse(std::ifstream(folder_ / "out/tiny/summary.json"));
  EXPECT_TRUE(summary["command_line"].get<std::string>().ends_with("train run.toml"));
  ASSERT_EQ(summary["ranks"].size(), 8u);
  for (const int stage : {0, 1}) {
    const auto walked = weft("walk run.toml --json --rank " + std::to_string(stage));
    const SortedJson walk = SortedJson::parse(walked.output)["strategies"][0];
    EXPECT_EQ(summary["ranks"][walk["rank"].get<std::size_t>()]["byte_steps"], walk["summary"]["byte_steps"]);
  }
  // What is left behind is a run file: it trains again, to the same losses.
  std::filesystem::remove_all(folder_ / "out/tiny/checkpoints");
  ASSERT_EQ(weft("train out/tiny/config.toml").exit_code, 0);
  const auto again = metrics();
  ASSERT_EQ(again.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(again[i]["loss"], steps[i]["loss"]);
}

// A plan that exceeds the card stops a run before anything is written or a rank started, and says what decides and
// what would help. A key starts the run all the same.
TEST_F(TrainCommand, DoesNotStartWhatItsPlanSaysWillNotFit) {
  const auto refused = weft("train run.toml '--hardware.memory=\"24 KiB\"'");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(refused.output, "");
  for (const char* part : {"run.toml: the plan says that this run does not fit: ", " decides with ", "\n  1. ",
                           "\n  2. ", "\n  3. ", "run.ignore_plan = true"}) {
    EXPECT_NE(refused.messages.find(part), std::string::npos) << part << "\n" << refused.messages;
  }
  EXPECT_EQ(refused.messages.find("\n  4. "), std::string::npos);
  EXPECT_EQ(files(), (std::set<std::string>{"run.toml", "text.txt"}));
  const auto started = weft("train run.toml '--hardware.memory=\"24 KiB\"' --run.ignore_plan=true");
  EXPECT_EQ(started.exit_code, 0) << started.messages;
  EXPECT_EQ(metrics().size(), 3u);
}

// On a processor that has products of bfloat16, a run that says nothing of its dtype is told the key.
TEST_F(TrainCommand, SaysWhereBfloat16IsMultipliedFaster) {
  std::ifstream processor("/proc/cpuinfo");
  const std::string flags(std::istreambuf_iterator<char>(processor), {});
  const bool has = flags.find(" avx512_bf16") != std::string::npos;
  const std::string line = "\n  products    float32; this processor multiplies bfloat16 faster: precision.compute = ";
  for (const auto& [words, told] :
       {std::pair("", has), {" --precision.compute=float32", false}, {" --precision.compute=bfloat16", false}}) {
    const auto result = weft(std::string("train run.toml --run.directory=new") + words);
    ASSERT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(result.output.find(line) != std::string::npos, told) << words << result.output;
    std::filesystem::remove_all(folder_ / "new");
  }
}

// If no remedy suffices alone, the words of the combination that does are there to be typed.
TEST_F(TrainCommand, NamesACombinationThatFits) {
  const std::string run = "run.toml '--hardware.memory=\"60 KiB\"'";
  const auto refused = weft("train " + run);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_NE(refused.messages.find("\nweft plan " + run + " --explain says more.\n"), std::string::npos)
      << refused.messages;
  const std::size_t found = refused.messages.find("\nfirst combination that fits on 8 ranks: ");
  ASSERT_NE(found, std::string::npos) << refused.messages;
  const std::size_t needs = refused.messages.find("\n  needs ", found),
                    begin = refused.messages.find("\n  ", needs + 1) + 3;
  const std::string words = refused.messages.substr(begin, refused.messages.find('\n', begin) - begin);
  const auto started = weft("train " + run + " " + words);
  EXPECT_EQ(started.exit_code, 0) << words << "\n" << started.messages;
}

// Nothing is left to be chosen by the memory.
constexpr const char* written_timing = "--shard.residency=reshard_after_use --shard.accumulation=sharded";

TEST_F(TrainCommand, WarnsOfAPlanThatLeavesLittleRoom) {
  const auto plan = SortedJson::parse(
      weft(fmt::format("plan run.toml --json {} '--hardware.memory=\"1 GiB\"'", written_timing)).output);
  const std::int64_t needed = plan["needed_bytes"];
  const auto messages_with = [&](double memory) {
    const auto kibibytes = static_cast<std::int64_t>(memory * static_cast<double>(needed) / 1024.0);
    const std::string arguments = fmt::format(" run.toml {} '--hardware.memory=\"{} KiB\"'", written_timing, kibibytes);
    const auto checked = weft("check" + arguments), result = weft("train" + arguments);
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(checked.messages, result.messages);
    return result.messages;
  };
  EXPECT_NE(messages_with(1.07).find("weft: warning: the plan says that this run fits: "), std::string::npos);
  std::filesystem::remove_all(folder_ / "out");
  EXPECT_EQ(messages_with(1.2).find("the plan says"), std::string::npos);
}

// Memory that suffices while tokens are routed evenly: the run starts, and says what routing may need.
TEST_F(TrainCommand, WarnsOfMemoryThatWorstRoutingExceeds) {
  const auto plan = SortedJson::parse(
      weft(fmt::format("plan run.toml --json {} '--hardware.memory=\"1 GiB\"'", written_timing)).output);
  const std::int64_t even = plan["needed_bytes"], worst = plan["worst_needed_bytes"];
  ASSERT_LT(even, worst);
  const auto warned = [&](std::int64_t memory) {
    const auto result = weft(fmt::format("check run.toml {} '--hardware.memory=\"{} B\"'", written_timing, memory));
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    return result.messages.find("with worst routing: at most") != std::string::npos;
  };
  // 95 % of it are a little more than even routing needs.
  const auto little = static_cast<std::int64_t>(1.06 * static_cast<double>(even));
  ASSERT_GT(static_cast<double>(worst), 0.95 * static_cast<double>(little));
  EXPECT_TRUE(warned(little));
  EXPECT_FALSE(warned(2 * worst));
}

TEST_F(TrainCommand, WarnsOfARunThatLeavesNoWeightsAndSaysWhereTheyAreSought) {
  const auto result = weft("train run.toml --checkpoint.at_end=false");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_NE(
      result.messages.find("weft: warning: checkpoint.interval is 0 and checkpoint.at_end false: the run leaves no "
                           "weights"),
      std::string::npos)
      << result.messages;
  for (const char* command :
       {"generate out/tiny --prompt a", "eval out/tiny --data text.txt", "export out/tiny there"}) {
    const auto refused = weft(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    for (const char* part : {"out/tiny is the directory of a run that has no checkpoint", "checkpoint.at_end = false",
                             "--checkpoint.interval=N"}) {
      EXPECT_NE(refused.messages.find(part), std::string::npos) << refused.messages;
    }
  }
}

TEST_F(TrainCommand, WarnsOfExpertsThatNothingBalances) {
  for (const char* command : {"check", "train"}) {
    const auto result = weft(std::string(command) + " run.toml --model.moe.router_aux_loss_coef=0");
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_NE(result.messages.find("weft: warning: model.moe.router_aux_loss_coef is 0: nothing balances"),
              std::string::npos)
        << command << ": " << result.messages;
  }
}

// Nothing of what a finished run left is changed, and what to do is said.
TEST_F(TrainCommand, AFinishedRunIsLeftAsItIs) {
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  const auto content = [&](const char* name) {
    std::ifstream file(folder_ / "out/tiny" / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string config = content("config.toml"), steps = content("metrics.jsonl"),
                    summary = content("summary.json");
  const auto result = weft("train run.toml --optimizer.learning_rate=0.5");
  EXPECT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(result.output.find("changed since then"), std::string::npos) << result.output;
  for (const char* part : {"all 3 steps of the run had been taken", "--run.steps=6", "another run.directory"}) {
    EXPECT_NE(result.output.find(part), std::string::npos) << result.output;
  }
  EXPECT_EQ(content("config.toml"), config);
  EXPECT_EQ(content("metrics.jsonl"), steps);
  EXPECT_EQ(content("summary.json"), summary);
}

// Its checkpoints stay where they are; its metrics do not.
TEST_F(TrainCommand, ARunThatPassesItsCheckpointsOverSaysSo) {
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  const std::string told =
      "WARNING: out/tiny/checkpoints has 1 checkpoints, the newest step-00000003. The run does not go on from them, "
      "because checkpoint.directory is new; its metrics replace those in out/tiny\n";
  for (const std::int64_t steps : {2, 4}) {  // the second goes on from its own
    const auto result = weft(fmt::format("train run.toml --checkpoint.directory=new --run.steps={}", steps));
    EXPECT_EQ(result.exit_code, 0) << result.messages;
    EXPECT_EQ(result.output.find(told) != std::string::npos, steps == 2) << result.output;
  }
  const auto named = weft("train run.toml --checkpoint.directory=out/../out/tiny/checkpoints --run.steps=4");
  EXPECT_EQ(named.output.find("WARNING"), std::string::npos) << named.output;
}

// A run there would write over the files of the checkpoint, and begin with other weights.
TEST_F(TrainCommand, ACheckpointIsNoRunDirectory) {
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  for (const std::string command : {"train", "check"}) {
    const auto result = weft(command + " run.toml --run.directory=out/tiny/checkpoints/step-00000003");
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.messages.find("is a checkpoint"), std::string::npos) << result.messages;
  }
  EXPECT_EQ(weft("checkpoint verify out/tiny").exit_code, 0);
}

// Those of training first, in the order of the keys; what only follows from them is not counted.
TEST_F(TrainCommand, ARunThatGoesOnNamesTheKeysThatChanged) {
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  const auto result = weft(
      "train run.toml --run.steps=4 --parallelism.pipeline=1 --shard.lookahead=2 --training.microbatch_size=2 "
      "--optimizer.learning_rate=0.5 --lr_scheduler.warmup_steps=1 --checkpoint.keep_latest=1");
  EXPECT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_NE(result.output.find("changed since then: parallelism.pipeline 2 -> 1, shard.lookahead 1 -> 2, "
                               "training.microbatch_size 1 -> 2, optimizer.learning_rate 0.001 -> 0.5, "
                               "lr_scheduler.warmup_steps 0 -> 1, run.steps 3 -> 4, checkpoint.keep_latest 3 -> 1\n"),
            std::string::npos)
      << result.output;
}

TEST_F(TrainCommand, OverridesReachTheRun) {
  const auto result = weft("train run.toml --run.steps=2 --run.directory=elsewhere");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_NE(result.output.find("\nstep 2/2  loss "), std::string::npos) << result.output;
  EXPECT_TRUE(std::filesystem::exists(folder_ / "elsewhere/summary.json"));
}

TEST_F(TrainCommand, WarnsOnStandardErrorAndTrains) {
  const auto result = weft("train run.toml --shard.wrap=root --run.steps=1");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_TRUE(result.messages.starts_with("weft: warning: wrap \"root\" for dense, embedding and head: "))
      << result.messages;
  EXPECT_EQ(result.output.find("warning"), std::string::npos);
}

// Found before anything is written, and soon.
TEST_F(TrainCommand, WrongRequestsEndWithTwoAndLeaveNothingBehind) {
  const std::string long_name(300, 'x');
  const std::string too_long = "train run.toml --run.directory=made/on/the/way/" + long_name;
  put("empty.txt", "");
  put("short.txt", "weft");
  const auto before = files();
  struct Case {
    const char* arguments;
    std::vector<const char*> parts;
  };
  const std::vector<Case> cases = {
      {"run.toml '--data.train=[\"gone.txt\"]'", {"data.train: \"gone.txt\": No such file or directory"}},
      {"run.toml '--data.train=[\"gone.txt\", \"empty.txt\"]'", {"\"gone.txt\"", "\"empty.txt\": the file is empty"}},
      {"run.toml '--data.train=[\"short.txt\"]'", {"\"short.txt\": 4 bytes are fewer than one window"}},
      {"run.toml --pipeline.costs=gone.toml", {"pipeline.costs: \"gone.toml\": No such file", "\"modelled\" needs no"}},
      {"run.toml --data.train=gone.txt", {"\"gone.txt\": No such file or directory: /", "/gone.txt was looked for"}},
      {"run.toml '--data.train=*.text'", {"\"*.text\": No such file", "patterns are not expanded: name each file"}},
      {"run.toml '--data.train=[\".\"]'", {"\".\": it is not a regular file"}},
      {"run.toml '--data.train=[]'", {"data.train names no file"}},
      {"run.toml '--run.steps=\"many\"'", {"run.steps: expected an integer, got the string \"many\""}},
      {"run.toml --run.stepz=3", {"unknown key run.stepz: did you mean run.steps?"}},
      {"run.toml --steps=5",
       {"unknown option --steps=5: did you mean --run.steps=5? Keys need their section; weft keys lists them"}},
      {"run.toml --lr 0.1", {"unknown option --lr: did you mean --optimizer.learning_rate=VALUE?"}},
      {"run.toml --run.device=gpu", {"got \"gpu\" (did you mean \"cuda\"?)"}},
      {"run.toml --pipeline.schedule=1F1B", {"got \"1F1B\" (did you mean \"1f1b\"?)"}},
      {"run.toml --run.steps=0", {"run.steps: 0 is out of range: at least 1"}},
      {"run.toml --parallelism.expert=3",
       {"does not split over parallelism.expert 3", "expert 3 x expert_tensor 1 = 3"}},
      {"run.toml '--pipeline.layout=Ed|L|'", {"pipeline.layout"}},
      {"run.toml --pipeline.schedule=gone.csv", {"\"gone.csv\": No such file"}},
      {"run.toml --parallelism.data_shard=3", {"global_batch_size 8 is not a multiple of"}},
      {"run.toml --run.directory=text.txt", {"run.directory text.txt cannot be created"}},
      {"run.toml --run.directory=text.txt/run", {"run.directory text.txt/run cannot be created"}},
      {"gone.toml", {"gone.toml"}},
      {"", {"CONFIG is required"}},
  };
  for (const Case& test : cases) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = weft(std::string("train ") + test.arguments);
    // Nothing is computed: the rest of the three seconds is room for a busy machine.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(3)) << test.arguments;
    EXPECT_EQ(result.exit_code, 2) << test.arguments << "\n" << result.messages;
    EXPECT_EQ(result.output, "") << test.arguments;
    for (const char* part : test.parts) {
      EXPECT_NE(result.messages.find(part), std::string::npos) << test.arguments << "\n" << result.messages;
    }
    EXPECT_EQ(files(), before) << test.arguments;
  }
  // The folders above the one that cannot be made are not left either.
  const auto result = weft(too_long);
  EXPECT_EQ(result.exit_code, 2) << result.messages;
  EXPECT_NE(result.messages.find("cannot be created: File name too long"), std::string::npos) << result.messages;
  EXPECT_EQ(files(), before);
}

// Steps of this size overflow float32 within a step or two.
TEST_F(TrainCommand, AFailureWhileRunningEndsWithThree) {
  const auto result = weft("train run.toml --optimizer.learning_rate=1e30 --shard.reduction=auto");
  EXPECT_EQ(result.exit_code, 3) << result.output;
  EXPECT_TRUE(result.messages.starts_with("weft: rank ")) << result.messages;
  for (const char* part : {": in step ", " the gradient of ", " holds a NaN or an infinity on this rank"}) {
    EXPECT_NE(result.messages.find(part), std::string::npos) << result.messages;
  }
  // The steps before it are on disk, and no summary claims that the run has ended.
  EXPECT_GE(metrics().size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/tiny/summary.json"));
}

TEST_F(TrainCommand, BenchStepReportsRatesAndShares) {
  const auto before = files();
  const auto result = weft("bench step run.toml --warmup 1 --steps 2 --seconds 0.01 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const SortedJson report = SortedJson::parse(result.output);
  for (const char* key : {"tokens_per_second", "tokens_per_second_best", "step_milliseconds", "gflops_per_step",
                          "gflops_per_second", "product_gflops_per_second", "share_of_product_rate"}) {
    ASSERT_TRUE(report.contains(key)) << result.output;
    EXPECT_GT(report[key].get<double>(), 0.0) << key;
  }
  EXPECT_GE(report["tokens_per_second_best"], report["tokens_per_second"]);
  // Shares of all ranks' time add up to one, the unnamed rest included: eight roundings of doubles near 1.
  double sum = 0.0;
  for (const auto& [phase, share] : report["share_of_rank_time"].items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1.0, 8 * 0x1p-52);
  EXPECT_EQ(files(), before);
  EXPECT_NE(weft("bench step --config run.toml --warmup 0 --steps 1 --seconds 0.01").output.find("8 ranks on "),
            std::string::npos);
  // The checkpoints of the configuration's run are its own: a bench saves none, and begins anew.
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(weft("bench step run.toml --warmup 0 --steps 2 --seconds 0.01 --checkpoint.interval=1").exit_code, 0);
  }
  EXPECT_EQ(files(), before);
  // Nor do checkpoints that the run has left stand in the way.
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  const auto trained = files();
  EXPECT_EQ(weft("bench step run.toml --warmup 0 --steps 2 --seconds 0.01").exit_code, 0);
  EXPECT_EQ(files(), trained);
  for (const char* arguments : {"bench step gone.toml", "bench step run.toml --steps 0", "bench", "bench step"}) {
    EXPECT_EQ(weft(arguments).exit_code, 2) << arguments;
  }
}

// Every product of the rank's step, as many times as the step has it. Together they are the model's operations, of
// which rank 0 of 2 x 2 x 2 has its share.
TEST_F(TrainCommand, BenchProductsReportsEveryShape) {
  const auto before = files();
  const std::string alone =
      "run.toml --parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 "
      "--parallelism.expert=1 ";
  const auto result = weft("bench products " + alone + "--seconds 0.001 --json");
  ASSERT_EQ(result.exit_code, 0) << result.messages;
  const SortedJson report = SortedJson::parse(result.output);
  double flops = 0.0, milliseconds = 0.0;
  for (const SortedJson& row : report["products"]) {
    const double calls = row["calls"].get<double>();
    EXPECT_GT(row["microseconds"].get<double>(), 0.0);
    const double of_one = 2.0 * row["rows"].get<double>() * row["columns"].get<double>() * row["inner"].get<double>();
    EXPECT_NEAR(row["gflops_per_second"].get<double>() * row["microseconds"].get<double>() * 1e3, of_one,
                1e-9 * of_one);
    flops += calls * of_one;
    milliseconds += row["step_milliseconds"].get<double>();
  }
  EXPECT_NEAR(report["gflops_per_step"].get<double>(), flops / 1e9, 1e-12 * flops);
  EXPECT_NEAR(report["step_milliseconds"].get<double>(), milliseconds, 1e-9 * milliseconds);
  const SortedJson step = SortedJson::parse(weft("bench step " + alone + "--warmup 0 --steps 1 --json").output);
  // Products without attention's scores.
  EXPECT_LT(flops / 1e9, step["gflops_per_step"].get<double>());
  EXPECT_GT(flops / 1e9, 0.8 * step["gflops_per_step"].get<double>());
  EXPECT_EQ(files(), before);
  EXPECT_NE(weft("bench products --config run.toml --seconds 0.001").output.find(" a^T b "), std::string::npos);
  EXPECT_EQ(weft("bench products run.toml --seconds 0").exit_code, 2);
}

TEST_F(TrainCommand, AnOrderOfOnesOwnStaysWithTheRun) {
  put("own.csv", "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n");
  const auto trained = weft("train run.toml --pipeline.schedule=own.csv --checkpoint.at_end=true");
  ASSERT_EQ(trained.exit_code, 0) << trained.messages;
  EXPECT_NE(trained.output.find("own.csv"), std::string::npos) << trained.output;
  std::filesystem::remove(folder_ / "own.csv");
  for (const char* command :
       {"eval out/tiny --data text.txt", "eval out/tiny --data text.txt --pipeline.schedule=gpipe",
        "train out/tiny/config.toml --run.steps=4"}) {
    const auto found = weft(command);
    EXPECT_EQ(found.exit_code, 0) << command << found.messages;
    EXPECT_EQ(found.messages.find("schedule"), std::string::npos) << found.messages;
  }
}

// The parameters of the run's own checkpoints have their new names, whether it began with another's or went on.
TEST_F(TrainCommand, NamesThatSwapAreSwappedOnce) {
  const std::string train = "train run.toml --model.layers='d e d' --optimizer.learning_rate=0 ";
  ASSERT_EQ(weft(train + "--run.directory=other").exit_code, 0);
  std::filesystem::copy(folder_ / "other", folder_ / "before", std::filesystem::copy_options::recursive);
  const std::string q = ".attention.q_proj.weight", first = "blocks.0" + q, second = "blocks.2" + q;
  const std::string swapping =
      train + "'--checkpoint.rename=[\"" + first + "=" + second + "\", \"" + second + "=" + first + "\"]' ";
  const auto differing_weights = [&](const std::string& run) {
    std::set<std::string> names;
    const SortedJson diff = SortedJson::parse(weft("checkpoint diff before " + run + " --json").output);
    for (const SortedJson& tensor : diff.at("tensors")) {
      if (tensor.value("state", "") == "") names.insert(tensor.at("name"));
    }
    return names;
  };
  for (const auto& [run, how] :
       {std::pair("out/tiny", "--checkpoint.start_from=before "), std::pair("other", "--run.directory=other ")}) {
    for (const char* steps : {"--run.steps=4", "--run.steps=5"}) {
      const auto trained = weft(swapping + how + steps);
      ASSERT_EQ(trained.exit_code, 0) << trained.messages;
      EXPECT_EQ(differing_weights(run), (std::set{first, second})) << run << " " << steps;
    }
  }
}

// Each of 8 ranks keeps two files of the checkpoint open. A limit that may be raised is none.
TEST_F(TrainCommand, AShortageOfDescriptorsIsNoDamage) {
  ASSERT_EQ(weft("train run.toml").exit_code, 0);
  const std::string resume = " && '" + weft_program() + "' train run.toml --run.steps=4";
  const auto refused = run("ulimit -n 16" + resume);
  EXPECT_EQ(refused.exit_code, 3) << refused.messages;
  EXPECT_NE(refused.messages.find("cannot be read"), std::string::npos) << refused.messages;
  EXPECT_EQ(refused.output.find("IS DAMAGED"), std::string::npos) << refused.output;
  const auto resumed = run("ulimit -S -n 16" + resume);
  EXPECT_EQ(resumed.exit_code, 0) << resumed.messages;
  EXPECT_NE(resumed.output.find("goes on from"), std::string::npos) << resumed.output;
}

TEST_F(TrainCommand, MegatronsOrderHasTheSamplesOfTheRun) {
  ASSERT_EQ(weft("data tokenize text.txt --tokenizer byte --output text").exit_code, 0);
  const std::string train = "train run.toml --data.train=text --data.order=megatron";
  ASSERT_EQ(weft(train).exit_code, 0);
  const std::string smaller = " --training.global_batch_size=4 --run.steps=9";
  for (const std::string& command : {train + smaller, "check" + train.substr(5) + smaller}) {
    const auto refused = weft(command);
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_NE(
        refused.messages.find("order of 36 samples (run.steps x training.global_batch_size), and the 24 samples "
                              "read by step 3 leave too few of them: set training.global_batch_size to 8 or more"),
        std::string::npos)
        << refused.messages;
  }
  EXPECT_EQ(weft(train + " --training.global_batch_size=16 --run.steps=9").exit_code, 0);
}

}  // namespace
}  // namespace weft
