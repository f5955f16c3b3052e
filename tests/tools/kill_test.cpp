// Runs that are killed, again and again. Whatever the moment, the next start goes on from a complete checkpoint. The
// weights at the end are those of a run without kills; under other layouts, nearly. WEFT_KILLS says how often
// (tools/kill-trial.sh).
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "tests/tools/started_run.h"

namespace weft {
namespace {

// A checkpoint each, of which the disk makes most of the time.
constexpr std::int64_t steps = 60;
constexpr int default_kills = 12;

class KilledRun : public StartedRun {
 protected:
  pid_t start_in(const std::string& directory, const std::vector<std::string>& layout = {}) const {
    std::vector<std::string> arguments = {"--run.steps=" + std::to_string(steps), "--checkpoint.interval=1",
                                          "--checkpoint.keep_latest=2", "--run.directory=" + directory};
    arguments.insert(arguments.end(), layout.begin(), layout.end());
    return start(arguments);
  }
  // What a run leaves below its directory when it has ended by itself, and nothing else.
  void expect_tidy(const std::string& directory) const {
    std::set<std::string> expected = {
        "config.toml", "metrics.jsonl",        "run.lock",           "summary.json",
        "checkpoints", "checkpoints/run.lock", "checkpoints/latest", "checkpoints/latest_checkpointed_iteration.txt"};
    const auto complete = saved(directory);
    EXPECT_EQ(complete.size(), 2u);
    for (const CheckpointFolder& checkpoint : complete) {
      const std::string name = "checkpoints/" + checkpoint.path.filename().string();
      expected.insert({name, name + "/manifest.json"});
      const CheckpointReader reader(checkpoint.path);
      for (const SavedFile& file : reader.manifest().files) {
        expected.insert(name + "/" + file.name);
      }
    }
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / directory)) {
      const std::string name = std::filesystem::relative(entry.path(), folder_ / directory).string();
      if (!name.starts_with("tensorboard")) found.insert(name);  // a file of each start
    }
    // That of a run which was killed between its last save and its end is missing: the next start takes no step.
    if (!found.contains("summary.json")) expected.erase("summary.json");
    std::vector<std::string> differing;
    std::ranges::set_symmetric_difference(found, expected, std::back_inserter(differing));
    EXPECT_EQ(differing, std::vector<std::string>{}) << "is too much or missing";
    std::ifstream latest(folder_ / directory / "checkpoints/latest");
    std::string newest;
    std::getline(latest, newest);
    EXPECT_EQ(newest, complete.front().path.filename());
  }
  // Of every step once, in order.
  std::vector<double> losses_of(const std::string& directory) const {
    std::ifstream metrics(folder_ / directory / "metrics.jsonl");
    std::vector<double> losses;
    for (std::string line; std::getline(metrics, line);) {
      const auto entry = nlohmann::json::parse(line);
      EXPECT_EQ(entry.at("step"), std::ssize(losses) + 1);
      losses.push_back(entry.at("loss"));
    }
    return losses;
  }
  static int kills_asked() {
    const char* asked = std::getenv("WEFT_KILLS");
    return asked == nullptr ? default_kills : std::stoi(asked);
  }
};

// Along every axis, and schedules of all kinds.
const std::vector<std::vector<std::string>>& kill_layouts() {
  const auto layout = [](int pipeline, int tensor, int context, int replicate, int shard, int expert,
                         std::vector<std::string> more = {}) {
    more.insert(
        more.end(),
        {fmt::format("--parallelism.pipeline={}", pipeline), fmt::format("--parallelism.tensor={}", tensor),
         fmt::format("--parallelism.context={}", context), fmt::format("--parallelism.data_replicate={}", replicate),
         fmt::format("--parallelism.data_shard={}", shard), fmt::format("--parallelism.expert={}", expert)});
    return more;
  };
  static const std::vector<std::vector<std::string>> layouts = {
      layout(1, 1, 1, 1, 1, 1),
      layout(1, 1, 1, 1, 4, 1),
      layout(1, 1, 1, 1, 4, 4),
      layout(1, 1, 1, 2, 2, 2),
      layout(1, 2, 1, 1, 2, 4),
      layout(1, 2, 2, 1, 1, 2),
      layout(2, 1, 1, 1, 1, 1, {"--pipeline.schedule=gpipe"}),
      layout(2, 1, 1, 1, 2, 2, {"--pipeline.schedule=zb_h1"}),
      layout(2, 2, 1, 1, 2, 2),
      layout(2, 2, 1, 1, 1, 2, {"--checkpoint.asynchronous=false"}),
      layout(2, 1, 2, 1, 2, 4, {"--shard.strategy=shard_grad_op"}),
      layout(2, 1, 1, 2, 2, 2, {"--shard.strategy=optimizer"}),
  };
  return layouts;
}

TEST_F(KilledRun, EndsWithTheSameWeights) {
  const int kills = kills_asked();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(wait_for(start_in("whole")), 0) << log();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const CheckpointReader whole(saved("whole").at(0).path);
  ASSERT_EQ(whole.manifest().progress.step, steps);
  const auto expected = tensors_of(whole);

  std::mt19937 random(5);
  int killed = 0, while_saving = 0, finished = 0, went_on = 0;
  std::int64_t newest = 0;
  while (killed < kills) {
    const std::string directory = "run" + std::to_string(finished);
    const pid_t process = start_in(directory);
    // In its start, or in the first half of its steps: on a busy machine both last longer.
    const double moment = std::uniform_real_distribution<double>(5.0, std::max(10.0, took.count() / 2))(random);
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(moment));
    ::kill(-process, SIGKILL);
    const int code = wait_for(process);
    ASSERT_TRUE(code == -SIGKILL || code == 0) << "ended with " << code << "\n" << log();
    const auto there = saved(directory);
    ASSERT_TRUE(newest == 0 || !there.empty());
    if (code == -SIGKILL) ++killed;
    if (!find_unfinished(folder_ / directory / "checkpoints").empty()) ++while_saving;
    for (const CheckpointFolder& checkpoint : there) {
      ASSERT_EQ(CheckpointReader(checkpoint.path).find_faults(), std::vector<std::string>{}) << checkpoint.path;
    }
    if (!there.empty()) {
      ASSERT_GE(there.front().step, newest) << "nothing is lost";
      went_on += newest > 0 && there.front().step > newest ? 1 : 0;
      newest = there.front().step;
    }
    if (newest < steps && killed < kills) continue;
    // To its end, and the next run.
    ASSERT_EQ(wait_for(start_in(directory)), 0) << log();
    const CheckpointReader end(saved(directory).at(0).path);
    ASSERT_EQ(end.manifest().progress, whole.manifest().progress);
    ASSERT_TRUE(tensors_of(end) == expected) << "after " << killed << " kills";
    expect_tidy(directory);
    ++finished;
    newest = 0;
  }
  std::printf(
      "%d kills, %d of them while a checkpoint was being written; %d restarts went further; %d runs ended equal\n",
      killed, while_saving, went_on, finished);
  if (kills < default_kills) return;  // so few may all fall in a start
  EXPECT_GT(while_saving, 0);
  EXPECT_GT(went_on, 0);
}

// Every start under another layout than the one before. Sums in another order differ in their last bits, which the
// steps after them carry on.
TEST_F(KilledRun, GoesOnUnderAnotherLayoutEachTime) {
  constexpr double close = 1e-5;  // of a loss, as docs/checkpoints.md says
  const int kills = kills_asked();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(wait_for(start_in("whole")), 0) << log();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  const std::vector<double> whole = losses_of("whole");
  ASSERT_EQ(std::ssize(whole), steps);

  std::mt19937 random(11);
  int killed = 0, finished = 0;
  std::size_t turn = 0;
  std::int64_t newest = 0;
  double apart = 0.0;
  while (killed < kills || finished == 0 || newest > 0) {
    const std::string directory = "run" + std::to_string(finished);
    const bool to_its_end = killed >= kills;
    const auto& layout = kill_layouts()[turn++ % kill_layouts().size()];
    const pid_t process = start_in(directory, layout);
    if (!to_its_end) {
      const double moment = std::uniform_real_distribution<double>(5.0, std::max(10.0, took.count() / 2))(random);
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(moment));
      ::kill(-process, SIGKILL);
    }
    const int code = wait_for(process);
    ASSERT_TRUE(code == 0 || (code == -SIGKILL && !to_its_end)) << "ended with " << code << "\n" << log();
    const auto there = saved(directory);
    for (const CheckpointFolder& checkpoint : there) {
      ASSERT_EQ(CheckpointReader(checkpoint.path).find_faults(), std::vector<std::string>{}) << checkpoint.path;
    }
    ASSERT_TRUE(newest == 0 || !there.empty());
    if (!there.empty()) {
      ASSERT_GE(there.front().step, newest) << "nothing is lost";
      newest = there.front().step;
    }
    if (code == -SIGKILL) {
      ++killed;
      continue;
    }
    expect_tidy(directory);
    const std::vector<double> losses = losses_of(directory);
    ASSERT_EQ(losses.size(), whole.size());
    for (std::size_t i = 0; i < losses.size(); ++i) apart = std::max(apart, std::abs(losses[i] - whole[i]) / whole[i]);
    EXPECT_LT(apart, close) << directory;
    ++finished;
    newest = 0;
  }
  std::printf("%d kills under %zu layouts; %d runs ended, their losses within %.1e of those of a run left alone\n",
              killed, kill_layouts().size(), finished, apart);
}

}  // namespace
}  // namespace weft
