// A run in the background, as a process group that can be sent signals.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/tiny_training.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/reader.h"

namespace weft {

class StartedRun : public TinyTraining {
 protected:
  // `weft train run.toml` with what is given besides, in a process group of its own; what it says goes to `log`.
  // Whoever runs the tests may have SIGINT and SIGHUP ignored, as a shell's background has; the run has not, unless the
  // test says so.
  pid_t start(const std::vector<std::string>& arguments, void (*interrupts)(int) = SIG_DFL) const {
    std::vector<std::string> words = {"weft", "train", "run.toml"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const pid_t process = fork();
    if (process != 0) return process;
    setpgid(0, 0);
    for (const int interrupt : {SIGINT, SIGHUP}) ::signal(interrupt, interrupts);
    if (chdir(folder_.c_str()) != 0) _exit(126);
    const int out = open("log", O_WRONLY | O_CREAT | O_APPEND, 0666);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execv(WEFT_PROGRAM, argv.data());
    _exit(127);
  }
  // The exit code, or minus the signal that ended it.
  static int wait_for(pid_t process) {
    int status = 0;
    waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Whether it holds within a minute.
  template <typename Condition>
  static bool comes_true(Condition condition) {
    for (int tries = 0; tries < 6000; ++tries) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  std::vector<CheckpointFolder> saved(const std::string& directory) const {
    return find_checkpoints(folder_ / directory / "checkpoints");
  }
  std::int64_t steps_taken(const std::string& directory) const {
    std::ifstream metrics(folder_ / directory / "metrics.jsonl");
    std::int64_t lines = 0;
    for (std::string line; std::getline(metrics, line);) ++lines;
    return lines;
  }
  std::string log() const {
    std::ifstream file(folder_ / "log");
    return {std::istreambuf_iterator<char>(file), {}};
  }
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

}  // namespace weft
