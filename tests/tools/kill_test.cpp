// Runs that are killed, again and again: whatever the moment, the next start goes on from a complete checkpoint, and
// the weights at the end are those of a run that nobody touched. WEFT_KILLS says how often (tools/kill-trial.sh).
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/tools/tiny_training.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/reader.h"

namespace weft {
namespace {

class KilledRun : public TinyTraining {
 protected:
  // Starts training in a process group of its own.
  pid_t start(const std::string& directory) const {
    const pid_t process = fork();
    if (process != 0) return process;
    setpgid(0, 0);
    if (chdir(folder_.c_str()) != 0) _exit(126);
    const int out = open("log", O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    const std::string where = "--run.directory=" + directory;
    execl(WEFT_PROGRAM, "weft", "train", "run.toml", "--run.steps=150", "--checkpoint.interval=1",
          "--checkpoint.keep_latest=2", where.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  // The exit code, or -1 after a signal.
  static int wait_for(pid_t process) {
    int status = 0;
    waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::filesystem::path checkpoints(const std::string& directory) const { return folder_ / directory / "checkpoints"; }
  // Every tensor of a checkpoint, states and all.
  static std::vector<std::vector<std::uint8_t>> tensors_of(const CheckpointReader& reader) {
    std::vector<std::vector<std::uint8_t>> all;
    for (const SavedTensor& tensor : reader.manifest().tensors) {
      auto& bytes = all.emplace_back(static_cast<std::size_t>(tensor.rows * tensor.row_bytes()));
      reader.read_rows(tensor, 0, tensor.rows, bytes);
    }
    return all;
  }
};

TEST_F(KilledRun, EndsWithTheSameWeights) {
  const char* asked = std::getenv("WEFT_KILLS");
  const int kills = asked == nullptr ? 20 : std::atoi(asked);
  ASSERT_EQ(wait_for(start("whole")), 0);
  const CheckpointReader whole(find_checkpoints(checkpoints("whole")).at(0).path);
  ASSERT_EQ(whole.manifest().progress.step, 150);
  const auto expected = tensors_of(whole);

  std::mt19937 random(5);
  int killed = 0, while_saving = 0, finished = 0, went_on = 0;
  std::int64_t newest = 0;
  while (killed < kills) {
    const std::string directory = "run" + std::to_string(finished);
    const pid_t process = start(directory);
    std::this_thread::sleep_for(std::chrono::milliseconds(std::uniform_int_distribution<int>(5, 250)(random)));
    ::kill(-process, SIGKILL);
    const int code = wait_for(process);
    ASSERT_TRUE(code == -1 || code == 0) << "ended with " << code;
    const auto saved = find_checkpoints(checkpoints(directory));
    ASSERT_TRUE(newest == 0 || !saved.empty());
    if (code == -1) ++killed;
    if (!find_unfinished(checkpoints(directory)).empty()) ++while_saving;
    for (const CheckpointFolder& checkpoint : saved) {
      ASSERT_EQ(CheckpointReader(checkpoint.path).find_faults(), std::vector<std::string>{}) << checkpoint.path;
    }
    if (!saved.empty()) {
      ASSERT_GE(saved.front().step, newest) << "nothing is lost";
      went_on += newest > 0 && saved.front().step > newest ? 1 : 0;
      newest = saved.front().step;
    }
    if (newest < 150 && killed < kills) continue;
    // To its end, and the next run.
    ASSERT_EQ(wait_for(start(directory)), 0);
    const CheckpointReader end(find_checkpoints(checkpoints(directory)).at(0).path);
    ASSERT_EQ(end.manifest().progress, whole.manifest().progress);
    ASSERT_TRUE(tensors_of(end) == expected) << "after " << killed << " kills";
    ASSERT_TRUE(find_unfinished(checkpoints(directory)).empty());
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
