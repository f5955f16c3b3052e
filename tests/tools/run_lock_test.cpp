// Two runs in one directory: the second is refused, and the first does not notice.
#include "tests/tools/started_run.h"

namespace weft {
namespace {

class RunLocks : public StartedRun {
 protected:
  void SetUp() override {
    StartedRun::SetUp();
    first_ = start({"--run.steps=1000000", "--checkpoint.directory=saved"});
    ASSERT_TRUE(comes_true([&] { return steps_taken("out/tiny") > 0; })) << log();
  }
  void TearDown() override {
    if (first_ > 0) end_first();
    StartedRun::TearDown();
  }
  void end_first() {
    kill(first_, SIGKILL);
    wait_for(first_);
    first_ = -1;
  }
  void expect_refused(const ProgramResult& result, const std::string& directory) const {
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.output, "");
    for (const std::string& part : {directory + " is in use by process " + std::to_string(first_) + " on "}) {
      EXPECT_NE(result.messages.find(part), std::string::npos) << result.messages;
    }
  }

  pid_t first_ = -1;
};

TEST_F(RunLocks, ASecondRunIsRefusedBeforeItWritesAnything) {
  const std::string config = "/config.toml";
  const auto changed = [&] { return std::filesystem::last_write_time(folder_ / ("out/tiny" + config)); };
  const auto before = changed();
  const std::int64_t steps = steps_taken("out/tiny");
  expect_refused(weft("train run.toml"), "run.directory out/tiny");
  // By another name, and where checkpoints of both would meet.
  expect_refused(weft("train run.toml --run.directory=out/../out/tiny"), "run.directory out/../out/tiny");
  expect_refused(weft("train run.toml --run.directory=other --checkpoint.directory=saved"),
                 "checkpoint.directory saved");
  expect_refused(weft("train run.toml --checkpoint.directory=new"), "run.directory out/tiny");
  for (const char* folder : {"other", "new"}) EXPECT_FALSE(std::filesystem::exists(folder_ / folder)) << folder;
  EXPECT_EQ(changed(), before);
  EXPECT_GE(steps_taken("out/tiny"), steps);
  EXPECT_EQ(kill(first_, 0), 0);
  // What only reads goes on as ever.
  EXPECT_EQ(weft("check run.toml").exit_code, 0);
}

TEST_F(RunLocks, AFolderOfCheckpointsHasOneRunByWhateverName) {
  end_first();
  first_ = start({"--run.steps=1000000", "--run.directory=plain"});
  ASSERT_TRUE(comes_true([&] { return steps_taken("plain") > 0; })) << log();
  std::filesystem::create_directory_symlink("plain/checkpoints", folder_ / "link");
  for (const std::string name : {"plain/checkpoints", "plain/checkpoints/.", "./plain//checkpoints/", "link"}) {
    expect_refused(weft("train run.toml --run.directory=other --checkpoint.directory=" + name),
                   "checkpoint.directory " + name);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
  // The folder of a run that names none either.
  std::filesystem::create_directories(folder_ / "linked");
  std::filesystem::create_directory_symlink("../plain/checkpoints", folder_ / "linked/checkpoints");
  expect_refused(weft("train run.toml --run.directory=linked"), "checkpoint.directory linked/checkpoints");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "linked/run.lock"));
  EXPECT_EQ(kill(first_, 0), 0);
}

TEST_F(RunLocks, ARunIsNotInItsOwnWay) {
  for (const char* name : {"both", "./both/", "both/.", "both/checkpoints"}) {
    const ProgramResult result =
        weft(std::string("train run.toml --run.directory=both --checkpoint.directory=") + name);
    EXPECT_EQ(result.exit_code, 0) << name << result.messages;
  }
}

TEST_F(RunLocks, AKilledRunLeavesTheDirectoryToTheNext) {
  end_first();
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/tiny/run.lock"));
  const ProgramResult next = weft("train run.toml --checkpoint.directory=saved");
  EXPECT_EQ(next.exit_code, 0) << next.messages;
  EXPECT_EQ(steps_taken("out/tiny"), 3);
}

// Whatever was being written when it was killed, and by which of its ranks.
TEST_F(RunLocks, TheNextRunRemovesWhatAKillLeftHalfWritten) {
  end_first();
  const std::filesystem::path run = folder_ / "out/tiny", saved = folder_ / "saved";
  const std::vector<std::filesystem::path> left = {
      run / "config.toml.partial",       run / "metrics.jsonl.partial",     run / "summary.json.partial",
      run / "trace_rank31.json.partial", saved / "latest.partial",          saved / "try-00031.tmp",
      saved / "try-00031.tmp.partial",   saved / "step-00000009.tmp/a.tmp", run / "model.partial"};
  for (const auto& path : left) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "half";
  }
  const ProgramResult next = weft("train run.toml --checkpoint.directory=saved --checkpoint.interval=3");
  EXPECT_EQ(next.exit_code, 0) << next.messages;
  for (const auto& path : left) EXPECT_EQ(std::filesystem::exists(path), path == left.back()) << path;
}

}  // namespace
}  // namespace weft
