// Saves that fail, and checkpoints that are damaged or of something else: the one before stays, and nothing is taken
// for what it is not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "parallel/runtime/outside_text.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/saved_run.h"
#include "tests/trainer/temporary_folder.h"
#include "trainer/checkpoint/keys.h"
#include "trainer/resolve/resolved_run.h"

namespace weft {
namespace {

const TinyLayout two_by_two{.layers = "d e", .degrees = {.pipeline = 2, .data_shard = 2}};

std::vector<std::int64_t> saved_steps(const std::filesystem::path& directory) {
  std::vector<std::int64_t> steps;
  for (const CheckpointFolder& saved : find_checkpoints(directory)) steps.push_back(saved.step);
  return steps;
}

void flip_bit(const std::filesystem::path& file, std::int64_t at) {
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  bytes.seekg(at);
  const int byte = bytes.get();
  bytes.seekp(at);
  bytes.put(static_cast<char>(byte ^ 4));
}

// The message that a run ends with.
std::string failure_of(const Config& config, const CheckpointSetup& setup = {}) {
  try {
    run_steps(config, {}, {}, setup);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Ways in which the system refuses. After so many calls, each fails once: of four ranks, one has a bad moment.
struct Refusal {
  std::string name;
  std::function<void(FileCalls&, std::atomic<int>&, int)> break_after;
  std::string message;
};

std::vector<Refusal> refusals() {
  return {
      {"no_space",
       [](FileCalls& calls, std::atomic<int>& count, int at) {
         calls.write = [&count, at](int file, const void* data, std::size_t bytes) -> ssize_t {
           if (++count != at) return ::write(file, data, bytes);
           errno = ENOSPC;
           return -1;
         };
       },
       "No space left on device"},
      {"input_output",
       [](FileCalls& calls, std::atomic<int>& count, int at) {
         calls.flush = [&count, at](int file) {
           if (++count != at) return ::fsync(file);
           errno = EIO;
           return -1;
         };
       },
       "Input/output error"},
      {"nothing_taken",
       [](FileCalls& calls, std::atomic<int>& count, int at) {
         calls.write = [&count, at](int file, const void* data, std::size_t bytes) -> ssize_t {
           return ++count == at ? 0 : ::write(file, data, bytes);
         };
       },
       "takes no more bytes"},
  };
}

class SaveRefused : public ::testing::TestWithParam<Refusal> {};

// Four ranks with two files and a part each make 12 calls to flush in a save. Rank 0's manifest and pointers follow,
// and calls to write are more. Wherever the refusal comes, a checkpoint is complete or is none.
TEST_P(SaveRefused, LeavesTheOneBefore) {
  int refused_saves = 0;
  for (int at = 1; at <= 60; at += 3) {
    const TemporaryFolder folder;
    Config config = saving_config(two_by_two, folder / "a", 3, 1);
    config.checkpoint.keep_latest = 0;
    SaidLines said;
    CheckpointSetup setup = said.setup();
    std::atomic<int> count = 0;
    GetParam().break_after(setup.calls, count, at);
    const std::string failure = failure_of(config, setup);
    const std::vector<std::int64_t> steps = saved_steps(folder / "a");
    for (const std::int64_t step : steps) {
      EXPECT_EQ(CheckpointReader(folder / "a" / checkpoint_name(step)).find_faults(), std::vector<std::string>{});
    }
    if (said.count("NOT saved") == 0) continue;
    ++refused_saves;
    EXPECT_EQ(said.count("NOT saved"), 1) << said.all();
    EXPECT_GE(said.count(GetParam().message), 1) << said.all();
    // Where the last save is the one that failed, the run says so at its end.
    EXPECT_EQ(failure.empty(), !steps.empty() && steps.front() == 3) << failure;
    EXPECT_EQ(steps.size(), 2u) << said.all();
    // The next run goes on from the newest, and takes away what was left.
    config.run.steps = 4;
    EXPECT_EQ(failure_of(config), "");
    EXPECT_EQ(saved_steps(folder / "a").front(), 4);
    EXPECT_TRUE(find_unfinished(folder / "a").empty());
  }
  EXPECT_GT(refused_saves, 5);
}

INSTANTIATE_TEST_SUITE_P(Calls, SaveRefused, ::testing::ValuesIn(refusals()),
                         [](const auto& instance) { return instance.param.name; });

TEST(SaveFault, WritesInPiecesAreWhole) {
  const TemporaryFolder folder;
  const Config config = saving_config(two_by_two, folder / "a", 1, 1);
  CheckpointSetup setup;
  setup.calls.write = [](int file, const void* data, std::size_t bytes) {
    return ::write(file, data, std::min<std::size_t>(bytes, 37));
  };
  run_steps(config, {}, {}, setup);
  EXPECT_EQ(CheckpointReader(folder / "a" / "step-00000001").find_faults(), std::vector<std::string>{});
}

// A file system of its own that has room for one checkpoint, and for most of another.
class SmallDisk {
 public:
  explicit SmallDisk(const std::filesystem::path& path, std::int64_t kibibytes) : path_(path) {
    std::filesystem::create_directories(path);
    const std::string size = fmt::format("size={}k", kibibytes);
    mounted_ = mount("weft-test", path.c_str(), "tmpfs", 0, size.c_str()) == 0;
    reason_ = std::strerror(errno);
  }
  ~SmallDisk() {
    if (mounted_) umount(path_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::string& reason() const { return reason_; }

 private:
  std::filesystem::path path_;
  bool mounted_ = false;
  std::string reason_;
};

TEST(SaveFault, AFullDiskLeavesTheOneBefore) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "elsewhere", 1, 1);
  run_steps(config);
  std::int64_t pages = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "elsewhere" / "step-00000001")) {
    pages += (static_cast<std::int64_t>(entry.file_size()) + 4095) / 4096;
  }
  const SmallDisk disk(folder / "disk", 4 * pages * 19 / 10);
  if (!disk.mounted()) GTEST_SKIP() << "needs the right to mount a small tmpfs: " << disk.reason();
  config = saving_config(two_by_two, folder / "disk" / "a", 3, 1);
  config.checkpoint.keep_latest = 0;
  SaidLines said;
  EXPECT_NE(failure_of(config, said.setup()).find("step-00000003 was NOT saved"), std::string::npos);
  EXPECT_EQ(said.count("NOT saved"), 2) << said.all();
  EXPECT_GE(said.count("No space left on device"), 1) << said.all();
  EXPECT_EQ(saved_steps(folder / "disk" / "a"), std::vector<std::int64_t>{1});
  EXPECT_EQ(CheckpointReader(folder / "disk" / "a" / "step-00000001").find_faults(), std::vector<std::string>{});
}

TEST(SaveFault, ADirectoryThatVanishesIsMadeAgain) {
  const TemporaryFolder folder;
  const Config config = saving_config(two_by_two, folder / "a", 4, 1);
  RunObserver observer;
  observer.after_step = [&](RankRun& run, const StepMetrics& metrics) {
    // By its name, at once: other ranks may be writing into it.
    if (run.rank() == 0 && metrics.step == 3) std::filesystem::rename(folder / "a", folder / "gone");
  };
  SaidLines said;
  run_steps(config, observer, {}, said.setup());
  EXPECT_EQ(saved_steps(folder / "a").front(), 4) << said.all();
}

TEST(SaveFault, APlaceThatCannotBeWrittenIsToldAtTheStart) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  const Config config = saving_config(two_by_two, folder / "file" / "below", 2, 2);
  bool began = false;
  RunObserver observer;
  observer.before_first_step = [&](RankRun&) { began = true; };
  try {
    run_steps(config, observer);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    EXPECT_NE(std::string(error.what()).find("cannot be made: Not a directory"), std::string::npos) << error.what();
  }
  EXPECT_FALSE(began);
}

// As on machines of which each has a disk of its own. Neither folder keeps a file of the trial.
TEST(SaveFault, AFolderThatOneRankDoesNotShareIsToldAtTheStart) {
  const TemporaryFolder folder;
  const Config config = saving_config({.layers = "d e", .degrees = {.data_shard = 4}}, folder / "a", 1, 1);
  Config elsewhere = config;
  elsewhere.checkpoint.directory = folder / "b";
  const ResolvedRun resolved(config);
  const TokenDataset data = training_data(config);
  const KeyValues identity = data_keys(config, data);
  NvtxDomain domain;
  for (const auto& [odd, named] : {std::pair(0, 1), std::pair(2, 2)}) {
    try {
      run_ranks(config, backend_of(config), [&, odd = odd](const RankContext& context) {
        RankRun run(resolved, data, domain, context);
        const Config& own = run.rank() == odd ? elsewhere : config;
        const CheckpointSetup setup;
        RankCheckpoints checkpoints(own, identity, run.checkpoint_rows(), run.world(), run.stream(), setup);
        checkpoints.load();
        run.world().barrier();
        ADD_FAILURE() << "rank " << run.rank() << " is ready to train";
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::request);
      const std::string expected = fmt::format("rank {} does not see the file that rank 0", named);
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
    for (const char* name : {"a", "b"}) EXPECT_TRUE(std::filesystem::is_empty(folder / name)) << name;
  }
}

// Free memory for less than one checkpoint is told, and no folder of the trial stays.
TEST(SaveFault, AFullPlaceIsToldAtTheStart) {
  const TemporaryFolder folder;
  const std::string disk = (folder / "disk").string();
  std::filesystem::create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "mounting takes root";
  Config config = saving_config({.layers = "d e"}, folder / "disk" / "a", 1, 5);
  config.checkpoint.at_end = false;
  SaidLines said;
  run_steps(config, {}, {}, said.setup());
  EXPECT_EQ(said.count("WARNING: a checkpoint takes "), 1) << said.all();
  EXPECT_TRUE(std::filesystem::is_empty(folder / "disk" / "a"));
  umount(disk.c_str());
}

TEST(LoadFault, ADamagedOneIsPassedOverLoudly) {
  for (const char* file :
       {"weights-00001-of-00004.safetensors", "optimizer-00002-of-00004.safetensors", "manifest.json"}) {
    const TemporaryFolder folder;
    Config config = saving_config(two_by_two, folder / "a", 2, 1);
    run_steps(config);
    const auto path = folder / "a" / "step-00000002" / file;
    flip_bit(path, static_cast<std::int64_t>(std::filesystem::file_size(path)) - 40);
    config.run.steps = 3;
    SaidLines said;
    const KeptRun result = run_kept(config, {}, {}, said.setup());
    EXPECT_EQ(result.steps.front().step, 2) << "goes on from step 1";
    EXPECT_EQ(said.count("step-00000002 IS DAMAGED and is passed over"), 1) << said.all();
    EXPECT_EQ(said.count("goes on from"), 1);
    EXPECT_GE(said.count(file), 1) << said.all();
    // The damaged one was saved again.
    EXPECT_EQ(CheckpointReader(folder / "a" / "step-00000002").find_faults(), std::vector<std::string>{});
  }
}

TEST(LoadFault, TruncatedAndMissingFilesAreDamage) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "a", 3, 1);
  run_steps(config);
  std::filesystem::resize_file(folder / "a" / "step-00000003" / "weights-00000-of-00004.safetensors", 100);
  std::filesystem::remove(folder / "a" / "step-00000002" / "optimizer-00003-of-00004.safetensors");
  SaidLines said;
  EXPECT_EQ(run_kept(config, {}, {}, said.setup()).steps.front().step, 2);
  EXPECT_EQ(said.count("IS DAMAGED"), 2) << said.all();
  EXPECT_GE(said.count("has 100 bytes where"), 1);
  EXPECT_GE(said.count("No such file"), 1);
}

TEST(LoadFault, NothingBeginsAnewInSilence) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "a", 1, 1);
  run_steps(config);
  flip_bit(folder / "a" / "step-00000001" / "manifest.json", 50);
  config.run.steps = 2;
  EXPECT_NE(failure_of(config).find("none of the 1 checkpoints of"), std::string::npos) << failure_of(config);
  config.checkpoint.resume = false;
  EXPECT_NE(failure_of(config).find("would pass for older ones"), std::string::npos) << failure_of(config);
}

TEST(LoadFault, AnotherModelIsRefusedWithItsKeys) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "a", 1, 1);
  run_steps(config);
  config.run.steps = 2;
  Config other = config;
  other.model.head_dim = 8;
  other.model.qk_norm = false;
  const std::string failure = failure_of(other);
  EXPECT_NE(failure.find("model.head_dim is 6 in the checkpoint and 8 here"), std::string::npos) << failure;
  EXPECT_NE(failure.find("model.qk_norm is true in the checkpoint and false here"), std::string::npos);
  EXPECT_EQ(failure.find("model.hidden_size"), std::string::npos);
  other = config;
  other.training.sequence_length = 16;
  EXPECT_NE(failure_of(other).find("training.sequence_length is 8 in the checkpoint and 16 here"), std::string::npos);
  other = config;
  other.optimizer.rule = UpdateRule::lion;
  EXPECT_NE(failure_of(other).find("states are of another rule of the optimizer"), std::string::npos)
      << failure_of(other);
  // What only losses see may change.
  config.model.moe.router_aux_loss_coef = 0.5;
  EXPECT_EQ(failure_of(config), "");
  config.run.steps = other.run.steps = 3;
  other.checkpoint.allow_unused = {"*.exp_avg_sq"};
  EXPECT_NE(failure_of(other), "");
  other.checkpoint.allow_unused = {"*.exp_avg", "*.exp_avg_sq"};
  other.checkpoint.allow_missing = {"*.exp_avg"};
  EXPECT_EQ(failure_of(other), "");
}

// LAMB's states have the names of AdamW's.
TEST(LoadFault, StatesOfAnotherRuleAreRefusedWhateverTheirNames) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "a", 1, 1);
  run_steps(config);
  config.run.steps = 2;
  config.optimizer.rule = UpdateRule::lamb;
  EXPECT_NE(failure_of(config).find("states are of another rule of the optimizer"), std::string::npos);
  config.checkpoint.allow_unused = config.checkpoint.allow_missing = {"*.exp_avg", "*.exp_avg_sq"};
  EXPECT_EQ(failure_of(config), "");
}

TEST(LoadFault, AnotherCapacityIsNoOtherModel) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "a", 1, 1);
  config.model.moe.capacity_factor = 1.5;
  run_steps(config);
  config.run.steps = 2;
  config.model.moe.capacity_factor = 0.0;
  config.model.moe.drop_policy = DropPolicy::position;
  EXPECT_EQ(failure_of(config), "");
  // Earlier checkpoints have the keys in their manifests.
  EXPECT_EQ(differing_model({{"model.moe.capacity_factor", "1.5"}, {"model.moe.drop_policy", "\"probability\""}}, {}),
            "");
}

// Keys that no block reads are no part of a model, whether the checkpoint has them, as earlier ones do, or not.
TEST(LoadFault, KeysThatNoBlockReadsAreNoPartOfAModel) {
  Config dense = config_of(TinyLayout{.layers = "d*2"});
  KeyValues saved = model_keys(dense);
  EXPECT_FALSE(saved.contains("model.moe.num_experts"));
  dense.model.moe.num_experts += 4;
  EXPECT_EQ(differing_model(saved, model_keys(dense)), "");
  saved["model.moe.num_experts"] = "4";
  EXPECT_EQ(differing_model(saved, model_keys(dense)), "");
  const Config both = config_of(TinyLayout{.layers = "d e"});
  Config other = both;
  other.model.moe.num_experts *= 2;
  EXPECT_NE(differing_model(model_keys(both), model_keys(other)).find("model.moe.num_experts"), std::string::npos);
  Config experts = config_of(TinyLayout{.layers = "e*2"});
  saved = model_keys(experts);
  saved["model.intermediate_size"] = "0";
  EXPECT_EQ(differing_model(saved, model_keys(experts)), "");
}

// Two groups of ten states have the shapes of four groups of five.
TEST(LoadFault, GroupsOfAStateSpaceArePartOfAModel) {
  const TemporaryFolder folder;
  TinyLayout layout = two_by_two;
  layout.layers = "M d";
  Config config = saving_config(layout, folder / "a", 1, 1);
  run_steps(config);
  config.run.steps = 2;
  EXPECT_EQ(failure_of(config), "");
  config.model.state_space.n_groups /= 2;
  config.model.state_space.state_size *= 2;
  config.run.steps = 3;
  const std::string failure = failure_of(config);
  for (const char* part : {"model.state_space.n_groups is 4 in the checkpoint and 2 here", "state_size is 5"}) {
    EXPECT_NE(failure.find(part), std::string::npos) << failure;
  }
  EXPECT_FALSE(model_keys(config_of(TinyLayout{.layers = "d*2"})).contains("model.state_space.n_groups"));
}

// What a run adds to the routers and experts of the weights it begins with.
TEST(LoadFault, PartsOfAnotherModelAreAddedWhereTheyAreNamed) {
  const TemporaryFolder folder;
  const Config dense = saving_config(two_by_two, folder / "a", 1, 1);
  run_steps(dense);
  Config config = saving_config(two_by_two, folder / "b", 1, 1);
  config.checkpoint.start_from = (folder / "a").string();
  MoeConfig& moe = config.model.moe;
  moe.selection_bias = true;
  moe.shared_expert_intermediate_size += 8;
  std::string failure = failure_of(config);
  EXPECT_EQ(failure.find("another model"), std::string::npos) << failure;
  EXPECT_NE(failure.find("(checkpoint.allow_missing would start them anew): blocks.1.router.selection_bias"),
            std::string::npos)
      << failure;
  config.checkpoint.allow_missing = {"*.router.selection_bias", "*.shared_expert.*"};
  moe.scoring = Scoring::sigmoid;
  EXPECT_NE(failure_of(config).find("model.moe.scoring is \"softmax\" in the checkpoint"), std::string::npos);
  config.checkpoint.allow_missing.push_back("*.router.weight");
  EXPECT_EQ(failure_of(config), "");
  // The state of a run goes on in the same model only.
  config.checkpoint.weights_only = false;
  config.checkpoint.directory = (folder / "c").string();
  EXPECT_NE(failure_of(config).find("model.moe.selection_bias is false in the checkpoint"), std::string::npos);
}

// The gate of a shared expert is no router.
TEST(LoadFault, AnotherScoringBeginsRoutersAloneAnew) {
  const TemporaryFolder folder;
  Config config = saving_config(two_by_two, folder / "a", 1, 1);
  config.model.moe.shared_expert_intermediate_size = 8;
  config.model.moe.shared_expert_gate = true;
  run_steps(config);
  config.checkpoint.start_from = (folder / "a").string();
  config.checkpoint.directory = (folder / "b").string();
  config.checkpoint.allow_missing = {"*.router.weight"};
  config.model.moe.scoring = Scoring::sigmoid;
  EXPECT_EQ(failure_of(config), "");
}

TEST(LoadFault, TensorsAreComparedBothWays) {
  Manifest manifest;
  const auto tensor = [](const std::string& name, const std::string& state, std::int64_t rows) {
    SavedTensor saved;
    saved.name = name;
    saved.state = state;
    saved.rows = rows;
    saved.columns = 3;
    return saved;
  };
  manifest.tensors = {tensor("a", "", 4), tensor("a", "exp_avg", 4), tensor("old", "", 5), tensor("z", "", 6)};
  const std::vector<ExpectedTensor> expected = {{"a", "", 4, 3}, {"new", "", 5, 3}, {"w", "", 1, 3}, {"z", "", 7, 3}};
  const auto faults = [&](const LoadRules& rules) -> std::string {
    try {
      plan_load(manifest, expected, rules);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(
      faults({}),
      "2 tensors are missing (checkpoint.allow_missing would start them anew): new, w\n"
      "2 tensors of the checkpoint are unknown here (checkpoint.allow_unused would leave them out): a.exp_avg, old\n"
      "1 tensors have another shape: z (6 x 3 there, 7 x 3 here)");
  manifest.tensors[3].rows = 7;
  EXPECT_EQ(faults({true, {{"old", "new"}}, {"w"}, {}}), "");
  EXPECT_EQ(faults({false, {{"old", "new"}}, {"*"}, {"*.exp_*"}}), "");
  EXPECT_NE(faults({true, {{"old", "a"}}, {"w"}, {}}).find("two tensors of the checkpoint would be a"),
            std::string::npos);
  // A name that is nowhere is a mistake: the parameter would begin anew. Checkpoints of the run have the new name.
  EXPECT_EQ(faults({true, {{"odl", "w"}}, {"w", "new"}, {"old"}}),
            "1 names of checkpoint.rename are not in the checkpoint, and their new names are not either: odl");
  EXPECT_EQ(faults({true, {{"older", "a"}, {"old", "new"}}, {"w"}, {}}), "");
  const LoadPlan plan = plan_load(manifest, expected, {true, {{"old", "new"}}, {"w"}, {}});
  EXPECT_EQ(plan.at({"new", ""}), &manifest.tensors[2]);
  EXPECT_FALSE(plan.contains({"w", ""}));
}

TEST(LoadPattern, StarsAndQuestionMarksStandForCharacters) {
  for (const auto& [pattern, text, matches] :
       std::vector<std::tuple<std::string, std::string, bool>>{{"", "", true},
                                                               {"", "a", false},
                                                               {"*", "", true},
                                                               {"a*c", "abc", true},
                                                               {"a*c", "ac", true},
                                                               {"a*c", "acb", false},
                                                               {"*.bias", "x.y.bias", true},
                                                               {"a*b*c", "aXbYbZc", true},
                                                               {"a*b*c", "aXcYb", false},
                                                               {"**a", "ba", true},
                                                               {"a?c", "abc", true},
                                                               {"a?c", "ac", false},
                                                               {"abc", "abcd", false}}) {
    EXPECT_EQ(matches_pattern(pattern, text), matches) << pattern << " " << text;
  }
}

}  // namespace
}  // namespace weft
