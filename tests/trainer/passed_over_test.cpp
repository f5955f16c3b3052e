// The checkpoint that a run goes on from: a damaged one is passed over, one that may be sound is not.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/trainer/checkpoint_sample.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"

namespace weft {
namespace {

// Four ranks with checkpoints of steps 1 to 4.
class PassedOver : public testing::Test {
 protected:
  void SetUp() override {
    config_.checkpoint.keep_latest = 0;
    run_steps(config_);
  }
  std::filesystem::path path(std::int64_t step) const { return folder_ / "a" / checkpoint_name(step); }
  void cut(std::int64_t step) const {
    std::filesystem::resize_file(path(step) / "weights-00000-of-00004.safetensors", 100);
  }
  // The message that the next run ends with.
  std::string refusal(const CheckpointSetup& setup) const {
    try {
      run_steps(config_, {}, {}, setup);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  Config config_ = saving_config({.layers = "d e", .degrees = {.pipeline = 2, .data_shard = 2}}, folder_ / "a", 4, 1);
  SaidLines said_;
};

TEST_F(PassedOver, IsNotTheLatestAndTakesNoPlaceOfAKeptOne) {
  cut(3);
  cut(4);
  config_.checkpoint.keep_latest = 2;
  config_.run.steps = 2;
  EXPECT_EQ(refusal(said_.setup()), "");
  EXPECT_EQ(said_.count("IS DAMAGED"), 2) << said_.all();
  EXPECT_EQ(read_file(folder_ / "a" / "latest"), "step-00000002\n");
  config_.run.steps = 3;
  EXPECT_EQ(refusal({}), "");
  std::vector<std::int64_t> left;
  for (const CheckpointFolder& saved : find_checkpoints(folder_ / "a")) left.push_back(saved.step);
  EXPECT_EQ(left, (std::vector<std::int64_t>{4, 3, 2}));
}

// Descriptors run out on rank 0 behind the first candidate, and perhaps on others.
TEST_F(PassedOver, IsNoneThatTheSystemRefuses) {
  cut(4);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  CheckpointSetup setup = said_.setup();
  setup.say = [say = setup.say, &before](int rank, const std::string& text) {
    say(rank, text);
    const rlimit none{0, before.rlim_max};
    if (text.find("IS DAMAGED") != std::string::npos) setrlimit(RLIMIT_NOFILE, &none);
  };
  const std::string refused = refusal(setup);
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_NE(refused.find("step-00000003"), std::string::npos) << refused;
  EXPECT_NE(refused.find("cannot be read"), std::string::npos) << refused;
  EXPECT_GE(said_.count("step-00000003/manifest.json\" cannot be read: Too many open files"), 1) << said_.all();
  EXPECT_EQ(said_.count("IS DAMAGED"), 1) << said_.all();
  EXPECT_EQ(refusal({}), "");
}

// A run that took these names for absent ones would begin anew beside its checkpoints, and lose its best.
TEST_F(PassedOver, IsNoNameThatCannotBeRead) {
  const std::filesystem::path folder = folder_ / "a";
  name_best(folder, {.step = 4, .loss = 1.5});
  const auto refused = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const std::string best = refused([&] { find_best(folder); });
  const std::string latest = refused([&] { point_latest_at({20, folder / "step-00000020"}); });
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_NE(best.find("best\" cannot be read: Too many open files"), std::string::npos) << best;
  EXPECT_NE(latest.find("latest\" cannot be read: Too many open files"), std::string::npos) << latest;
}

// Saves behind it would be older by their names: each start would go back to it.
TEST_F(PassedOver, IsNoneWithTheNameOfAnotherStep) {
  std::filesystem::rename(path(2), path(30));
  const std::string refused = refusal(said_.setup());
  EXPECT_NE(refused.find("step-00000030: its name is that of step 30, and it was saved as step-00000002"),
            std::string::npos)
      << refused;
  EXPECT_EQ(said_.count("IS DAMAGED"), 0) << said_.all();
  const std::vector<std::string> faults = find_checkpoint_faults(path(30));
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(refused.find(faults.front()), std::string::npos) << faults.front();
}

TEST_F(PassedOver, IsNoneOfAnotherVersion) {
  const std::filesystem::path file = path(4) / manifest_name;
  const std::string from = "\"version\": 1";
  std::string text = read_file(file);
  write_file(file, signed_again(text.replace(text.find(from), from.size(), "\"version\": 2")));
  const std::string refused = refusal(said_.setup());
  EXPECT_NE(refused.find("step-00000004"), std::string::npos) << refused;
  EXPECT_GE(said_.count("it is of version 2; this Weft reads version 1"), 1) << said_.all();
  EXPECT_EQ(said_.count("IS DAMAGED"), 0) << said_.all();
}

}  // namespace
}  // namespace weft
