// The folders of checkpoints: their names, complete ones, the way one takes its place, and those that are kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "parallel/runtime/error.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/output_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

class CheckpointFolders : public testing::Test {
 protected:
  const fs::path& path() const { return folder_.path(); }
  fs::path make(const std::string& name, bool manifest = true) const {
    fs::create_directories(path() / name);
    if (manifest) write_file(path() / name / manifest_name, name);
    return path() / name;
  }
  // Begins and publishes one whose manifest says `text`.
  CheckpointFolder publish(std::int64_t step, const std::string& text,
                           const ExchangeNames& exchange = exchange_names) const {
    fs::create_directories(unfinished_path(path(), step));
    write_file(unfinished_path(path(), step) / manifest_name, text);
    return publish_checkpoint(path(), step, exchange);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path())) found.push_back(entry.path().filename());
    std::ranges::sort(found);
    return found;
  }
  template <typename Call>
  static std::string said(ErrorKind kind, Call call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind) << error.what();
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointFolders, NamesSortAsSteps) {
  EXPECT_EQ(checkpoint_name(0), "step-00000000");
  EXPECT_EQ(checkpoint_name(1000), "step-00001000");
  EXPECT_EQ(checkpoint_name(123'456'789), "step-123456789");
}

TEST_F(CheckpointFolders, CompleteOnesNewestFirst) {
  EXPECT_TRUE(find_checkpoints(path() / "nowhere").empty());
  const auto old = make("step-00000007"), middle = make("step-00000100"), large = make("step-123456789");
  make("step-00000200", false);  // without a manifest
  for (const char* name : {"step-00000300.tmp", "step-7", "step--0000001", "step-0000004x", "step-", "x-00000005",
                           "step-99999999999999999999", "step-+0000005", "step-000000009"}) {
    make(name);
  }
  write_file(path() / "step-00000400", "a file");
  write_file(path() / "latest", "step-00000007\n");
  EXPECT_EQ(find_checkpoints(path()), (std::vector<CheckpointFolder>{{123'456'789, large}, {100, middle}, {7, old}}));
}

TEST_F(CheckpointFolders, UnfinishedOnesAreListed) {
  const auto a = make("step-00000003.tmp", false), b = make("step-00000004.tmp"),
             c = make("step-00000004.tmp.replaced.tmp");
  make("step-00000005");
  make("other.tmp");
  EXPECT_EQ(find_unfinished(path()), (std::vector<fs::path>{a, b, c}));
}

TEST_F(CheckpointFolders, FilesThatAKillLeftUnfinishedAreListed) {
  const fs::path latest = path() / "latest", trial = trial_path(path(), 12);
  std::vector<fs::path> left = {partial_path(latest), partial_path(path() / "latest_checkpointed_iteration.txt"), trial,
                                partial_path(trial)};
  for (const fs::path& file : left) write_file(file, "half");
  for (const char* other : {"latest", "latest_checkpointed_iteration.txt", "notes.partial", "try.txt"}) {
    write_file(path() / other, "whole");
  }
  std::ranges::sort(left);
  EXPECT_EQ(find_unfinished(path()), left);
}

// To have no checkpoint means to start at step 0: a folder that cannot be read must not look like it.
TEST_F(CheckpointFolders, AFolderThatCannotBeReadIsNoEmptyOne) {
  fs::create_symlink("loop", path() / "loop");
  EXPECT_NE(said(ErrorKind::failure, [&] { find_checkpoints(path() / "loop"); }).find("cannot be read: Too many"),
            std::string::npos);
  write_file(path() / "file", "");
  EXPECT_TRUE(find_checkpoints(path() / "file").empty());
}

TEST_F(CheckpointFolders, WhatAPathMeans) {
  const auto first = make("run/checkpoints/step-00000005"), second = make("run/checkpoints/step-00000010");
  const auto kept = make("run/best");
  const CheckpointFolder newest{10, second};
  EXPECT_EQ(resolve_checkpoint(path() / "run"), newest);
  EXPECT_EQ(resolve_checkpoint(path() / "run/"), newest);
  EXPECT_EQ(resolve_checkpoint(path() / "run/checkpoints"), newest);
  EXPECT_EQ(resolve_checkpoint(second), newest);
  EXPECT_EQ(resolve_checkpoint(first.string() + "/"), (CheckpointFolder{5, first}));
  EXPECT_EQ(resolve_checkpoint(kept), (CheckpointFolder{0, kept}));
  fs::create_directories(path() / "empty");
  const std::string nothing = said(ErrorKind::request, [&] { resolve_checkpoint(path() / "empty"); });
  EXPECT_EQ(nothing, fmt::format("{0}/empty is no checkpoint: it has no manifest.json, and neither it nor "
                                 "{0}/empty/checkpoints has folders step-<number> with one",
                                 path().string()));
  write_file(path() / "file", "");
  for (const char* name : {"nowhere", "file", "file/x"}) {
    EXPECT_NE(said(ErrorKind::request, [&] { resolve_checkpoint(path() / name); }).find("there is no such folder"),
              std::string::npos);
  }
}

// The folder `checkpoints` in the directory of a run may be that of an earlier run.
TEST_F(CheckpointFolders, ARunsDirectoryMeansWhereTheRunSaves) {
  const auto other = make("run/checkpoints/step-00000010"), own = make("saved/step-00000005");
  const auto say = [&](const std::string& directory) {
    write_file(path() / "run/config.toml", fmt::format("[checkpoint]\ndirectory = \"{}\"\n", directory));
  };
  say("");
  EXPECT_EQ(resolve_checkpoint(path() / "run"), (CheckpointFolder{10, other}));
  say((path() / "saved").string());
  EXPECT_EQ(resolve_checkpoint(path() / "run"), (CheckpointFolder{5, own}));
  EXPECT_EQ(resolve_checkpoint(path() / "run/checkpoints"), (CheckpointFolder{10, other}));
  // A run that was moved has what is inside of it, however the two paths are spelled.
  const auto inside = make("run/inner/step-00000007");
  const std::string here = fs::current_path().string();
  for (const auto& [of_run, of_checkpoints] :
       std::vector<std::pair<std::string, std::string>>{{"a/b", "a/b/inner"},
                                                        {"a/b", "./a//b/inner"},
                                                        {"./a/b/", "a/c/../b/inner"},
                                                        {"a/b", here + "/a/b/inner"},
                                                        {here + "/a/b", "a/b/inner"}}) {
    write_file(path() / "run/config.toml",
               fmt::format("[run]\ndirectory = \"{}\"\n[checkpoint]\ndirectory = \"{}\"\n", of_run, of_checkpoints));
    EXPECT_EQ(resolve_checkpoint(path() / "run"), (CheckpointFolder{7, inside})) << of_run << " " << of_checkpoints;
  }
  say((path() / "gone").string());
  const std::string text = said(ErrorKind::request, [&] { resolve_checkpoint(path() / "run"); });
  EXPECT_NE(text.find(fmt::format("{0}/run/config.toml says that its run saves to {0}/gone", path().string())),
            std::string::npos)
      << text;
}

// A command that reads takes no older checkpoint in silence, unless that one is named.
TEST_F(CheckpointFolders, APathDoesNotMeanAnOlderCheckpointThanTheLostOne) {
  const auto first = make("run/checkpoints/step-00000005"), second = make("run/checkpoints/step-00000010", false);
  write_file(second / "weights-00000-of-00001.safetensors", "x");
  for (const char* name : {"run", "run/checkpoints"}) {
    const std::string text = said(ErrorKind::request, [&] { resolve_checkpoint(path() / name); });
    EXPECT_NE(text.find("step-00000010 has tensors and no manifest.json"), std::string::npos) << text;
    EXPECT_TRUE(text.ends_with("to take step-00000005, or name the checkpoint that is to be read")) << text;
  }
  EXPECT_EQ(resolve_checkpoint(first), (CheckpointFolder{5, first}));
}

TEST_F(CheckpointFolders, PublishingGivesTheName) {
  EXPECT_EQ(publish(12, "first"), (CheckpointFolder{12, path() / "step-00000012"}));
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "latest_checkpointed_iteration.txt", "step-00000012"}));
  EXPECT_EQ(read_file(path() / "latest"), "step-00000012\n");
  EXPECT_EQ(read_file(path() / "latest_checkpointed_iteration.txt"), "12\n");
  publish(100'000'000, "later");
  EXPECT_EQ(read_file(path() / "latest"), "step-100000000\n");
  EXPECT_EQ(read_file(path() / "latest_checkpointed_iteration.txt"), "100000000\n");
  EXPECT_EQ(find_checkpoints(path()).size(), 2u);
}

TEST_F(CheckpointFolders, PublishingNeedsAManifest) {
  publish(12, "first");
  fs::create_directories(unfinished_path(path(), 12));
  EXPECT_NE(said(ErrorKind::failure, [&] { publish_checkpoint(path(), 12); }).find("has no manifest.json"),
            std::string::npos);
  EXPECT_EQ(read_file(path() / "step-00000012" / manifest_name), "first");
  EXPECT_NE(said(ErrorKind::failure, [&] { publish_checkpoint(path(), 13); }), "");
}

// On file systems that exchange names, the complete one stands under its name at any time.
TEST_F(CheckpointFolders, PublishingOverOneThatIsThere) {
  publish(12, "first");
  int exchanged = 0;
  publish(12, "second", [&](const char* a, const char* b) {
    EXPECT_EQ(fs::path(a), path() / "step-00000012.tmp");
    EXPECT_EQ(fs::path(b), path() / "step-00000012");
    EXPECT_EQ(read_file(fs::path(b) / manifest_name), "first");
    ++exchanged;
    const int result = exchange_names(a, b);
    EXPECT_EQ(read_file(fs::path(b) / manifest_name), "second");
    return result;
  });
  EXPECT_EQ(exchanged, 1);
  EXPECT_EQ(read_file(path() / "step-00000012" / manifest_name), "second");
  EXPECT_EQ(names().size(), 3u);
}

TEST_F(CheckpointFolders, FileSystemsThatCannotExchangeNames) {
  publish(12, "0");
  std::string count = "0";
  for (const int reason : {EINVAL, ENOSYS, ENOTSUP}) {
    make("step-00000012.tmp.replaced.tmp");  // of a save that was ended in between
    count += "1";
    publish(12, count, [&](const char*, const char*) {
      errno = reason;
      return -1;
    });
    EXPECT_EQ(read_file(path() / "step-00000012" / manifest_name), count);
    EXPECT_EQ(names().size(), 3u);
  }
  const auto refused = [&](const char*, const char*) {
    errno = EACCES;
    return -1;
  };
  EXPECT_NE(said(ErrorKind::failure, [&] { publish(12, "new", refused); }).find("cannot be renamed to"),
            std::string::npos);
  EXPECT_EQ(read_file(path() / "step-00000012" / manifest_name), count);
  EXPECT_EQ(find_unfinished(path()), std::vector<fs::path>{path() / "step-00000012.tmp"});
  // The new one vanishes in between: the old one gets its name back.
  const auto vanishes = [&](const char* from, const char*) {
    fs::remove_all(from);
    errno = EINVAL;
    return -1;
  };
  EXPECT_NE(said(ErrorKind::failure, [&] { publish(12, "new", vanishes); }).find("No such file"), std::string::npos);
  EXPECT_EQ(read_file(path() / "step-00000012" / manifest_name), count);
}

// By hand: of 60 50 40 30 20 10, what stays under each rule.
TEST_F(CheckpointFolders, RemovingTakesTheNameFirst) {
  const fs::path old = make("step-00000010");
  write_file(old / "weights.safetensors", "x");
  fs::create_directories(path() / "step-00000010.removed.tmp");  // of a removal that was cut short
  remove_checkpoint(old);
  EXPECT_TRUE(names().empty());
  // Cut short behind the renaming, which is all that this leaves, it is an orphan that the next start removes.
  make("step-00000020.removed.tmp");
  EXPECT_TRUE(find_checkpoints(path()).empty());
  EXPECT_EQ(find_unfinished(path()), std::vector<fs::path>{path() / "step-00000020.removed.tmp"});
}

TEST_F(CheckpointFolders, OfALinkTheLinkIsRemoved) {
  const TemporaryFolder elsewhere;
  write_file(elsewhere.path() / manifest_name, "theirs");
  fs::create_directory_symlink(elsewhere.path(), path() / "step-00000010");
  ASSERT_EQ(find_checkpoints(path()).size(), 1u);
  remove_checkpoint(path() / "step-00000010");
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(read_file(elsewhere.path() / manifest_name), "theirs");
}

TEST_F(CheckpointFolders, WhatCannotBeLookedIntoIsNotAbsent) {
  const fs::path folder = make("step-00000010", false);
  fs::create_symlink(manifest_name, folder / manifest_name);  // to itself
  const std::string text = said(ErrorKind::failure, [&] { find_checkpoints(path()); });
  EXPECT_NE(text.find("step-00000010 cannot be looked into"), std::string::npos) << text;
}

// A folder of the user is no such file.
TEST_F(CheckpointFolders, OfTheUserMayHaveTheNamesOfFiles) {
  make("step-00000010");
  for (const char* name : {"best", "latest"}) fs::create_directories(path() / name / "mine");
  EXPECT_EQ(find_best(path()), std::nullopt);
  EXPECT_EQ(find_lost_checkpoint(path(), {}), "");
}

TEST_F(CheckpointFolders, TheBestBehindAStepIsForgotten) {
  for (const char* name : {"step-00000010", "step-00000020"}) make(name);
  name_best(path(), {.step = 10, .loss = 1.5});
  name_best(path(), {.step = 20, .loss = 1.25});
  forget_best_after(path(), 20);
  EXPECT_EQ(find_best(path()), (BestCheckpoint{.step = 20, .loss = 1.25}));
  forget_best_after(path(), 10);
  EXPECT_EQ(find_best(path()), (BestCheckpoint{.step = 10, .loss = 1.5}));
  forget_best_after(path(), -1);
  EXPECT_FALSE(fs::exists(path() / "best"));
  // Of someone else.
  write_file(path() / "best", "of all\n");
  forget_best_after(path(), -1);
  EXPECT_EQ(read_file(path() / "best"), "of all\n");
}

TEST_F(CheckpointFolders, WhatIsLostIsSaid) {
  const auto lost = [&] { return find_lost_checkpoint(path(), find_checkpoints(path())); };
  EXPECT_EQ(lost(), "");
  const fs::path half = make("step-00000020", false);
  EXPECT_EQ(lost(), "");  // an empty folder is nobody's checkpoint
  write_file(half / "weights-00000-of-00001.safetensors", "x");
  EXPECT_NE(lost().find("step-00000020 has tensors and no manifest.json"), std::string::npos) << lost();
  EXPECT_TRUE(lost().ends_with("or remove the folder to begin anew")) << lost();
  make("step-00000010");
  EXPECT_TRUE(lost().ends_with("or remove the folder to take step-00000010")) << lost();
  make("step-00000030");
  EXPECT_EQ(lost(), "");  // it is older

  const auto latest = [&](const std::string& text) {
    write_file(path() / "latest", text);
    return lost();
  };
  EXPECT_EQ(latest("step-00000030\n"), "");
  EXPECT_EQ(latest("step-00000010\n"), "");  // behind
  EXPECT_NE(latest("step-00000040\n").find("latest names step-00000040, which is no checkpoint"), std::string::npos);
  EXPECT_NE(latest("global_step7\n").find("names global_step7"), std::string::npos);  // of another program
  fs::remove_all(path() / "step-00000010");
  fs::remove_all(path() / "step-00000030");
  fs::remove_all(half);
  EXPECT_TRUE(latest("step-00000030\n").ends_with("or remove that file to begin anew")) << lost();
}

TEST_F(CheckpointFolders, LatestCatchesUp) {
  publish(10, "ten");
  const CheckpointFolder newest{20, make("step-00000020")};  // ended between its two names
  EXPECT_EQ(read_file(path() / "latest"), "step-00000010\n");
  EXPECT_TRUE(point_latest_at(newest));
  EXPECT_EQ(read_file(path() / "latest"), "step-00000020\n");
  EXPECT_EQ(read_file(path() / "latest_checkpointed_iteration.txt"), "20\n");
  EXPECT_FALSE(point_latest_at(newest));
}

TEST_F(CheckpointFolders, WhatIsKept) {
  struct Case {
    std::int64_t keep_latest, keep_every;
    std::vector<std::int64_t> goes;
  };
  std::vector<CheckpointFolder> complete;
  for (const std::int64_t step : {60, 50, 40, 30, 20, 10, 0}) complete.push_back({step, {}});
  for (const Case& one : std::vector<Case>{{0, 0, {}},
                                           {0, 20, {}},
                                           {1, 0, {50, 40, 30, 20, 10, 0}},
                                           {3, 0, {30, 20, 10, 0}},
                                           {2, 20, {30, 10}},
                                           {1, 50, {40, 30, 20, 10}},
                                           {1, 7, {50, 40, 30, 20, 10}},
                                           {7, 0, {}},
                                           {100, 0, {}}}) {
    std::vector<std::int64_t> goes;
    for (const auto& folder : superseded(complete, one.keep_latest, one.keep_every)) goes.push_back(folder.step);
    EXPECT_EQ(goes, one.goes) << one.keep_latest << " " << one.keep_every;
  }
  EXPECT_TRUE(superseded({}, 1, 0).empty());
}

}  // namespace
}  // namespace weft
