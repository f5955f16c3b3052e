// Runs that are killed, again and again: whatever the moment, the next start goes on from a complete checkpoint, and
// the weights at the end are those of a run that nobody touched. WEFT_KILLS says how often (tools/kill-trial.sh).
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/tools/started_run.h"

namespace weft {
namespace {

constexpr std::int64_t steps = 150;

class KilledRun : public StartedRun {
 protected:
  pid_t start_in(const std::string& directory) const {
    return start({"--run.steps=" + std::to_string(steps), "--checkpoint.interval=1", "--checkpoint.keep_latest=2",
                  "--run.directory=" + directory});
  }
};

TEST_F(KilledRun, EndsWithTheSameWeights) {
  const char* asked = std::getenv("WEFT_KILLS");
  const int kills = asked == nullptr ? 20 : std::atoi(asked);
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
    ASSERT_TRUE(find_unfinished(folder_ / directory / "checkpoints").empty());
    ++finished;
    newest = 0;
  }
  std::printf(
      "%d kills, %d of them while a checkpoint was being written; %d restarts went further; %d runs ended equal\n",
      killed, while_saving, went_on, finished);
  EXPECT_GT(while_saving, 0);
  EXPECT_GT(went_on, 0);
}

}  // namespace
}  // namespace weft
