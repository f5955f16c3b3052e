// The three hashes of a run: which of them a change of the configuration changes.
#include "trainer/resolve/resolved_run.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "parallel/runtime/checksum.h"
#include "tests/trainer/kept_run.h"
#include "tests/trainer/temporary_folder.h"
#include "tests/trainer/tiny_layout.h"
#include "trainer/config/config_schema.h"
#include "trainer/resolve/config_reader.h"

namespace weft {
namespace {

RunHashes hashes_of_first(const Config& config) {
  const ResolvedRun run(config);
  return hashes_of(config, run, step_program(run, run.mesh().coordinates(0)));
}

RunHashes hashes_with(const Config& config) {
  const std::string text = write_config(config, config_schema(), [](const ConfigKey&) { return std::string(); });
  return hashes_of_first(read_config_text(text, "run.toml").config);
}

struct HashChange {
  const char* what;
  std::function<void(Config&)> change;
  bool configuration, program, layout;  // whether the hash becomes another
};

// Two pipeline ranks of two ranks each.
const std::vector<HashChange>& hash_changes() {
  static const std::vector<HashChange> changes = {
      {"the name", [](Config& config) { config.run.name = "other"; }, false, false, false},
      {"the directory", [](Config& config) { config.run.directory = "elsewhere"; }, false, false, false},
      {"the checkpoints", [](Config& config) { config.checkpoint.directory = "elsewhere"; }, false, false, false},
      {"the seed", [](Config& config) { config.run.seed = 7; }, true, false, false},
      {"the learning rate",
       [](Config& config) {
         config.optimizer.learning_rate *= 2.0;
         for (auto& [group, optimizer] : config.optimizer_by_group) optimizer.learning_rate *= 2.0;
       },
       true, false, false},
      {"the schedule", [](Config& config) { config.pipeline.schedule = "gpipe"; }, true, true, false},
      {"the microbatches", [](Config& config) { config.training.global_batch_size *= 2; }, true, true, false},
      // The lists name units and microbatches, not the ranks that share them.
      {"replicas in place of shards",
       [](Config& config) { std::swap(config.parallelism.data_shard, config.parallelism.data_replicate); }, true, false,
       true},
      {"the stages", [](Config& config) { config.pipeline.first_stage_blocks = 1; }, true, true, true},
  };
  return changes;
}

TEST(HashedRun, ChangesOnlyWhereWhatItIsOfChanges) {
  for (const char* layers : {"d*4", "d e d e"}) {
    const Config usual = config_of({.layers = layers, .degrees = {.pipeline = 2, .data_shard = 2}});
    const RunHashes before = hashes_with(usual);
    EXPECT_EQ(hashes_with(usual), before);
    for (const HashChange& changed : hash_changes()) {
      Config config = usual;
      changed.change(config);
      const RunHashes after = hashes_with(config);
      EXPECT_EQ(after.configuration != before.configuration, changed.configuration) << layers << ": " << changed.what;
      EXPECT_EQ(after.program != before.program, changed.program) << layers << ": " << changed.what;
      EXPECT_EQ(after.layout != before.layout, changed.layout) << layers << ": " << changed.what;
    }
  }
}

// A value that is said and one that is inherited are the same configuration.
TEST(HashedRun, DoesNotTellSaidFromInheritedValues) {
  const std::string text = write_config(
      config_of({}), config_schema(), [](const ConfigKey&) { return std::string(); },
      [](const ConfigKey& key) { return key.section == "optimizer.dense"; });
  const Config inherited = read_config_text(text, "run.toml", {"optimizer.learning_rate=0.25"}).config;
  const Config said =
      read_config_text(text, "run.toml", {"optimizer.learning_rate=0.25", "optimizer.dense.learning_rate=0.25"}).config;
  EXPECT_EQ(hashed_configuration(said), hashed_configuration(inherited));
}

// Every process of a run has them before its first step, and all that is saved carries them.
TEST(HashedRun, IsToldOnceAndSaved) {
  const TemporaryFolder folder;
  Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2}});
  config.run.steps = 1;
  config.checkpoint.directory = folder.path().string();
  config.checkpoint.at_end = true;
  std::vector<RunHashes> told;
  RunObserver observer;
  observer.identified = [&](const RunHashes& hashes) { told.push_back(hashes); };
  run_kept(config, observer);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], hashes_of_first(config));
  const std::string manifest = read_file(folder / "step-00000001/manifest.json");
  for (const auto& [name, hash] : told[0].named()) EXPECT_NE(manifest.find(hash), std::string::npos) << name;
}

// The names of expert units differ between the ranks of this run, whose threads begin in any order.
TEST(HashedRun, IsThatOfRankZeroWhicheverRankComesFirst) {
  Config config = config_of({.layers = "d e", .degrees = {.data_shard = 2, .expert = 2}, .wrap = "parameter"});
  config.run.steps = 1;
  const RunHashes expected = hashes_of_first(config);
  const ResolvedRun run(config);
  EXPECT_NE(expected.program, hashes_of(config, run, step_program(run, run.mesh().coordinates(1))).program);
  RunObserver observer;
  observer.identified = [&](const RunHashes& hashes) { EXPECT_EQ(hashes, expected); };
  for (int i = 0; i < 10; ++i) run_kept(config, observer);
}

}  // namespace
}  // namespace weft
