// Outputs of a command that cannot be written: a full device, a closed pipe, a full disk.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/tools/started_run.h"

namespace weft {
namespace {

class LostOutput : public StartedRun {};

TEST_F(LostOutput, OnAFullDeviceIsAFailure) {
  for (const char* command : {"--version", "--help", "keys", "mesh --world 8", "check run.toml", "units run.toml",
                              "plan run.toml --json", "train run.toml", "launch --ranks 2 -- keys"}) {
    const ProgramResult result = run(std::string("'" WEFT_PROGRAM "' ") + command + " >/dev/full");
    EXPECT_EQ(result.exit_code, 3) << command << "\n" << result.messages;
    EXPECT_NE(result.messages.find("standard output"), std::string::npos) << command << "\n" << result.messages;
  }
  EXPECT_EQ(weft("check run.toml 2>/dev/full").exit_code, 0);
}

// A file of the program must not take the place of a stream that is closed. Nothing waits for it, nothing goes into it.
TEST_F(LostOutput, OfAStreamThatIsClosed) {
  const std::string one_rank =
      " --parallelism.pipeline=1 --parallelism.tensor=1 --parallelism.data_shard=1 --parallelism.expert=1";
  for (const auto& [closed, code] :
       {std::pair{"<&-", 0}, std::pair{"2>&-", 0}, std::pair{"<&- 2>&-", 0}, std::pair{">&-", 3},
        std::pair{"<&- >&-", 3}, std::pair{">&- 2>&-", 3}, std::pair{"<&- >&- 2>&-", 3}}) {
    run("rm -rf one data.*");
    for (const std::string& command :
         {std::string("check run.toml"), std::string("launch --ranks 1 -- check run.toml"),
          "train run.toml --run.directory=one" + one_rank,
          std::string("data tokenize text.txt --tokenizer byte --output data"), std::string("eval one --data text.txt"),
          std::string("generate one --prompt warp --max-tokens 1")}) {
      const ProgramResult result = run("(timeout 60 '" WEFT_PROGRAM "' " + command + " " + closed + ")");
      EXPECT_EQ(result.exit_code, code) << command << " " << closed << "\n" << result.messages;
    }
    EXPECT_EQ(saved("one").size(), 1u) << closed;
  }
}

// A warning that cannot be told decides nothing: this run saves no weights, of which it warns.
TEST_F(LostOutput, OfAWarningEndsNothing) {
  const std::string warned = "'" WEFT_PROGRAM "' train run.toml --checkpoint.at_end=false --run.directory=";
  EXPECT_NE(run(warned + "told").messages.find("weft: warning: "), std::string::npos);
  for (const std::string place : {"/dev/full", "&-"}) {
    std::filesystem::remove_all(folder_ / "told");
    EXPECT_EQ(run("(" + warned + "told 2>" + place + ")").exit_code, 0) << place;
    EXPECT_EQ(steps_taken("told"), 3) << place;
  }
}

TEST_F(LostOutput, ToAFileOnAFullDeviceIsAFailure) {
  for (const char* command : {"program run.toml", "layout simulate run.toml"}) {
    const ProgramResult result = weft(std::string(command) + " --output /dev/full");
    EXPECT_EQ(result.exit_code, 3) << command << "\n" << result.messages;
    EXPECT_NE(result.messages.find("/dev/full cannot be written: No space left on device"), std::string::npos)
        << command << "\n"
        << result.messages;
  }
}

// As of any filter: who closes a pipe knows that it is closed.
TEST_F(LostOutput, OfAClosedPipeIsNotTold) {
  const ProgramResult result = run("(('" WEFT_PROGRAM "' keys; echo $? >code) | true)");
  EXPECT_EQ(result.messages, "");
  std::ifstream code(folder_ / "code");
  int ended = -1;
  code >> ended;
  EXPECT_EQ(ended, 3);
}

// All steps are taken although nothing of them can be read.
TEST_F(LostOutput, OnAFullDeviceEndsNoRun) {
  for (const std::string launch : {"", "launch --ranks 1 -- "}) {
    std::filesystem::remove_all(folder_ / "out");
    const ProgramResult result = run("'" WEFT_PROGRAM "' " + launch + "train run.toml --run.steps=7 >/dev/full");
    EXPECT_EQ(result.exit_code, 3) << launch;
    EXPECT_TRUE(result.messages.ends_with("weft: standard output cannot be written: No space left on device\n"))
        << launch;
    EXPECT_EQ(steps_taken("out/tiny"), 7) << launch;
  }
}

TEST_F(LostOutput, OfAClosedPipeSavesFirst) {
  for (const std::string launch : {"", "launch --ranks 1 -- "}) {
    std::filesystem::remove_all(folder_ / "out");
    const ProgramResult result =
        run("(('" WEFT_PROGRAM "' " + launch + "train run.toml --run.steps=50000; echo $? >code) | head -n 12)");
    EXPECT_NE(result.output.find("step"), std::string::npos);
    std::ifstream code(folder_ / "code");
    int ended = -1;
    code >> ended;
    EXPECT_EQ(ended, 3) << launch;
    const auto there = saved("out/tiny");
    ASSERT_EQ(there.size(), 1u) << launch;
    EXPECT_EQ(there.front().step, steps_taken("out/tiny")) << launch;
    EXPECT_LT(there.front().step, 50'000) << launch;
  }
}

// A paused terminal, or a pager: the run goes on behind the 4 KiB that this pipe holds, and a signal saves it.
TEST_F(LostOutput, AReaderThatStallsHoldsNothingUp) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  constexpr int room = 4096;
  ASSERT_EQ(fcntl(ends[1], F_SETPIPE_SZ, room), room);
  const pid_t process = fork();
  if (process == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    if (chdir(folder_.c_str()) != 0) _exit(126);
    execl(WEFT_PROGRAM, "weft", "train", "run.toml", "--run.steps=1000000", "--metrics.interval=1", nullptr);
    _exit(127);
  }
  close(ends[1]);
  EXPECT_TRUE(comes_true([&] { return steps_taken("out/tiny") > 100; }));
  kill(process, SIGTERM);
  EXPECT_TRUE(comes_true([&] { return saved("out/tiny").size() == 1; }));
  std::array<char, 4096> taken;
  std::int64_t bytes = 0;
  for (ssize_t count; (count = read(ends[0], taken.data(), taken.size())) > 0;) bytes += count;
  close(ends[0]);
  EXPECT_GT(bytes, room);
  EXPECT_EQ(wait_for(process), 75);
  EXPECT_EQ(saved("out/tiny").at(0).step, steps_taken("out/tiny"));
}

// A folder stands in the way of the trace of one rank.
TEST_F(LostOutput, OfATraceEndsNoRun) {
  for (const int rank : {0, 3}) {
    const std::string directory = fmt::format("run{}", rank),
                      trace = fmt::format("{}/trace_rank{}.json", directory, rank);
    std::filesystem::create_directories(folder_ / trace / "kept");
    const ProgramResult result = weft("train run.toml --profiling.first_step=2 --run.directory=" + directory);
    EXPECT_EQ(result.exit_code, 3) << result.messages;
    const std::string reason = trace + " cannot be put in place: Is a directory\n";
    EXPECT_NE((rank == 0 ? result.output : result.messages).find(reason), std::string::npos) << result.output;
    EXPECT_NE(result.messages.find("weft: a trace was not kept: " + reason), std::string::npos) << result.messages;
    EXPECT_EQ(steps_taken(directory), 3);
    EXPECT_EQ(saved(directory).at(0).step, 3);
    EXPECT_TRUE(std::filesystem::exists(folder_ / directory / "summary.json"));
    EXPECT_TRUE(std::filesystem::is_regular_file(folder_ / directory / "trace_rank1.json"));
  }
}

// As a full disk does (ulimit -f): files of the checkpoint are larger than the limit, all others smaller.
TEST_F(LostOutput, OfAFileAtItsSizeLimitEndsNoRun) {
  const ProgramResult result =
      run("(ulimit -f 64; '" WEFT_PROGRAM
          "' train run.toml --checkpoint.interval=2 --parallelism.pipeline=1 --parallelism.tensor=1 "
          "--parallelism.data_shard=1 --parallelism.expert=1)");
  EXPECT_EQ(result.exit_code, 3) << result.messages;
  EXPECT_NE(result.output.find("checkpoint step-00000002 was NOT saved"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("File too large"), std::string::npos) << result.output;
  EXPECT_EQ(steps_taken("out/tiny"), 3);
  EXPECT_TRUE(saved("out/tiny").empty());
}

// Before a configuration or a run is read. A file of that name stays as it is until there is something to write.
TEST_F(LostOutput, ToAFileIsRefusedBeforeTheWork) {
  put("kept", "mine");
  for (const std::string command :
       {"plan gone.toml --search --output", "plan gone.toml --search --pareto", "layout sweep gone.toml --csv",
        "layout sweep gone.toml --svg", "layout simulate gone.toml --output", "program gone.toml --output",
        "trace costs gone --output"}) {
    const ProgramResult refused = weft(command + " absent/file");
    EXPECT_EQ(refused.exit_code, 2) << command;
    EXPECT_NE(refused.messages.find("absent/file cannot be written: No such file or directory"), std::string::npos)
        << command << "\n"
        << refused.messages;
    for (const char* file : {" kept", " fresh", " /dev/null"}) {
      const std::string told = weft(command + file).messages;
      EXPECT_NE(told.find("gone"), std::string::npos) << command << "\n" << told;
    }
    EXPECT_EQ(run("cat kept").output, "mine") << command;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "fresh")) << command;
  }
}

// Nor is a file that the configuration is read from replaced, by whatever name, nor the configuration of a run.
TEST_F(LostOutput, ToAFileOfTheConfigurationIsRefused) {
  const std::string own = "include = [\"run.toml\"]\n";
  put("own.toml", own);
  std::filesystem::create_symlink("own.toml", folder_ / "link.toml");
  std::filesystem::create_directories(folder_ / "run");
  std::filesystem::copy_file(folder_ / "run.toml", folder_ / "run/config.toml");
  const std::string base = run("cat run.toml").output;
  const auto expect_refused = [&](const std::string& arguments, const std::string& message) {
    const ProgramResult refused = weft(arguments);
    EXPECT_EQ(refused.exit_code, 2) << arguments;
    EXPECT_NE(refused.messages.find(message), std::string::npos) << arguments << "\n" << refused.messages;
    EXPECT_EQ(run("cat own.toml").output, own) << arguments;
    EXPECT_EQ(run("cat run.toml").output, base) << arguments;
    EXPECT_EQ(run("cat run/config.toml").output, base) << arguments;
  };
  struct Case {
    std::string command, words, option;
  };
  for (const auto& [command, words, option] :
       {Case{"plan", " --search schedule=1f1b", "--output"}, Case{"plan", " --search schedule=1f1b", "--pareto"},
        Case{"layout sweep", "", "--csv"}, Case{"layout sweep", "", "--svg"}, Case{"layout simulate", "", "--output"},
        Case{"program", "", "--output"}, Case{"program", " --format svg", "--output"}}) {
    for (const auto& [output, source] : {std::pair{"own.toml", "own.toml"}, std::pair{"link.toml", "own.toml"},
                                         std::pair{"../$(basename \"$PWD\")/run.toml", "run.toml"}}) {
      const std::string message =
          std::string(" would replace ") + source + ", of which the configuration is read; choose another " + option;
      expect_refused(command + " own.toml" + words + " " + option + " " + output, message);
    }
  }
  expect_refused("trace costs run --output run/config.toml", "would replace run/config.toml, of which");
}

// A file system of 4 MiB, whose room somebody else takes and gives back.
class FullDisk : public LostOutput {
 protected:
  void SetUp() override {
    LostOutput::SetUp();
    disk_ = folder_ / "disk";
    std::filesystem::create_directories(disk_);
    if (mount("tmpfs", disk_.c_str(), "tmpfs", 0, "size=4m") != 0) GTEST_SKIP() << "mounting takes root";
  }
  void TearDown() override {
    umount(disk_.c_str());
    LostOutput::TearDown();
  }
  void fill() const {
    std::ofstream file(disk_ / "filler", std::ios::binary);
    const std::string block(4096, 'x');
    while (file.write(block.data(), std::ssize(block)).flush()) {
    }
  }
  std::filesystem::path disk_;
};

TEST_F(FullDisk, CostsNoMetrics) {
  const pid_t process = start({"--run.steps=1000000", "--run.directory=disk/run", "--checkpoint.directory=elsewhere"});
  ASSERT_TRUE(comes_true([&] { return steps_taken("disk/run") > 3; })) << log();
  fill();
  ASSERT_TRUE(comes_true([&] { return log().find("wait in memory") != std::string::npos; })) << log();
  const std::int64_t then = steps_taken("disk/run");
  std::filesystem::remove(disk_ / "filler");
  EXPECT_TRUE(comes_true([&] { return steps_taken("disk/run") > then + 5; })) << log();
  kill(process, SIGTERM);
  EXPECT_EQ(wait_for(process), 75) << log();
  std::ifstream metrics(folder_ / "disk/run/metrics.jsonl");
  std::int64_t step = 0;
  for (std::string line; std::getline(metrics, line);) ASSERT_EQ(nlohmann::json::parse(line).at("step"), ++step);
  EXPECT_EQ(step, find_checkpoints(folder_ / "elsewhere").at(0).step);
}

TEST_F(FullDisk, IsFoundAtTheStart) {
  fill();
  const ProgramResult result = weft("train run.toml --checkpoint.interval=1000 --checkpoint.directory=disk/saved");
  EXPECT_EQ(result.exit_code, 2) << result.messages;
  EXPECT_NE(result.messages.find("No space left on device"), std::string::npos) << result.messages;
  EXPECT_EQ(steps_taken("out/tiny"), 0);
  for (const auto& entry : std::filesystem::directory_iterator(disk_ / "saved")) {
    EXPECT_EQ(entry.path().filename(), "run.lock") << "what was tried is gone";
  }
}

}  // namespace
}  // namespace weft
