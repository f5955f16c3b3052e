// Ranks as processes: their variables, their output, and what happens when one of them fails.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <map>
#include <thread>
#include <vector>

#include "parallel/comm/process_environment.h"
#include "parallel/comm/rendezvous.h"
#include "tests/tools/started_run.h"

namespace weft {
namespace {

// The processes that `parent` has started, oldest first.
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream status(entry.path() / "stat");
    std::string number, name, state;
    pid_t parent_of_entry = 0;
    if (status >> number >> name >> state >> parent_of_entry && parent_of_entry == parent && state != "Z") {
      children.push_back(std::stoi(number));
    }
  }
  std::sort(children.begin(), children.end());
  return children;
}

class LaunchCommand : public ProgramTest {
 protected:
  // Starts two ranks that are busy for half a minute: they search among the layouts of 70 billion parameters.
  pid_t start_waiting_ranks() const {
    const std::string messages = (folder_ / "messages").string();
    const pid_t launcher = fork();
    if (launcher != 0) return launcher;
    // Whoever runs the tests may have it ignored, as a shell's background has.
    signal(SIGINT, SIG_DFL);
    const int file = open(messages.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    execl(WEFT_PROGRAM, "weft", "launch", "--ranks", "2", "--", "plan", WEFT_SOURCE_DIR "/configs/plan_llama3_70b.toml",
          "--search", nullptr);
    _exit(127);
  }

  static std::vector<pid_t> wait_for_children_of(pid_t parent) {
    std::vector<pid_t> children;
    for (int i = 0; i < 500 && (children = children_of(parent)).size() < 2; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return children;
  }

  static EnvironmentLookup environment_of(pid_t rank) {
    std::map<std::string, std::string> variables;
    // Until the process has become the program it shows its parent's.
    for (int i = 0; i < 500 && variables["LOCAL_RANK"].empty(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      variables.clear();
      std::ifstream file("/proc/" + std::to_string(rank) + "/environ");
      for (std::string entry; std::getline(file, entry, '\0');) {
        variables[entry.substr(0, entry.find('='))] = entry.substr(entry.find('=') + 1);
      }
    }
    return [variables](const char* name) -> std::optional<std::string> {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
  }

  // The exit code of `process`, and how long it took to come.
  static int exit_code_of(pid_t process, double& seconds) {
    const auto begin = std::chrono::steady_clock::now();
    int status = 0;
    waitpid(process, &status, 0);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
};

class TrainingUnderALauncher : public StartedRun {};

// The ranks may not have come to their wait yet: either way they are there.
TEST_F(LaunchCommand, WhenOneRankDiesTheOthersEndToo) {
  const pid_t launcher = start_waiting_ranks();
  const auto ranks = wait_for_children_of(launcher);
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  double seconds = 0;
  EXPECT_EQ(exit_code_of(launcher, seconds), 128 + SIGKILL);
  EXPECT_LT(seconds, 5.0);
  for (const pid_t rank : ranks) EXPECT_NE(kill(rank, 0), 0);
  std::ifstream messages(folder_ / "messages");
  const std::string text{std::istreambuf_iterator<char>(messages), {}};
  EXPECT_NE(text.find("rank 1 was ended by signal 9"), std::string::npos) << text;
}

TEST_F(LaunchCommand, SignalsAreForwarded) {
  for (const int sent : {SIGINT, SIGTERM}) {
    const pid_t launcher = start_waiting_ranks();
    const auto ranks = wait_for_children_of(launcher);
    ASSERT_EQ(ranks.size(), 2u);
    kill(launcher, sent);
    double seconds = 0;
    EXPECT_EQ(exit_code_of(launcher, seconds), 128 + sent);
    EXPECT_LT(seconds, 5.0);
    for (const pid_t rank : ranks) EXPECT_NE(kill(rank, 0), 0);
  }
}

TEST_F(LaunchCommand, StandardOutputIsThatOfRankZero) {
  const auto alone = weft("--version");
  const auto result = weft("launch --ranks 3 -- --version");
  EXPECT_EQ(result.exit_code, 0) << result.messages;
  EXPECT_EQ(result.output, alone.output);
  for (const char* rank : {"[rank 1] weft ", "[rank 2] weft "}) {
    EXPECT_NE(result.messages.find(rank), std::string::npos) << result.messages;
  }
  EXPECT_EQ(result.messages.find("[rank 0]"), std::string::npos);
}

// More than pipes and launcher hold: nothing is lost, neither before nor after the rank has ended.
TEST_F(LaunchCommand, AReaderThatIsSlowGetsAll) {
  const std::string listed = "program " WEFT_SOURCE_DIR "/configs/plan_1t_moe.toml --rank 0";
  const auto alone = weft(listed);
  ASSERT_GT(alone.output.size(), 150'000u);
  FILE* pipe = popen((WEFT_PROGRAM " launch --ranks 1 -- " + listed).c_str(), "r");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::string output;
  std::array<char, 20'000> bytes{};
  while (const std::size_t count = fread(bytes.data(), 1, bytes.size(), pipe)) {
    output.append(bytes.data(), count);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(output, alone.output);
}

// The reader never comes: the launcher still hears signals, and ends.
TEST_F(LaunchCommand, AReaderThatStandsStillDoesNotHoldUpSignals) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
  while (fcntl(pipe[1], F_SETPIPE_SZ, 4096) < 0 && errno == EINTR) {
  }
  const pid_t launcher = fork();
  if (launcher == 0) {
    signal(SIGINT, SIG_DFL);
    dup2(pipe[1], STDOUT_FILENO);
    execl(WEFT_PROGRAM, "weft", "launch", "--ranks", "2", "--", "program", WEFT_SOURCE_DIR "/configs/plan_1t_moe.toml",
          "--rank", "0", "--format", "json", nullptr);
    _exit(127);
  }
  close(pipe[1]);
  ASSERT_EQ(wait_for_children_of(launcher).size(), 2u);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  kill(launcher, SIGTERM);
  double seconds = 0;
  EXPECT_EQ(exit_code_of(launcher, seconds), 128 + SIGTERM);
  EXPECT_LT(seconds, 5.0);
  close(pipe[0]);
}

TEST_F(LaunchCommand, TheExitCodeIsThatOfTheRankThatFailed) {
  // All ranks refuse the request.
  const auto result = weft("launch --ranks 2 -- check gone.toml");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.messages.find("gone.toml"), std::string::npos) << result.messages;
  EXPECT_NE(result.messages.find("ended with 2"), std::string::npos) << result.messages;
}

TEST_F(LaunchCommand, RanksFindTheirPlaceAndNoOtherLaunchers) {
  setenv("PMI_RANK", "7", 1);
  setenv("RANK", "9", 1);
  const pid_t launcher = start_waiting_ranks();
  unsetenv("PMI_RANK");
  unsetenv("RANK");
  const auto ranks = wait_for_children_of(launcher);
  ASSERT_EQ(ranks.size(), 2u);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const EnvironmentLookup lookup = environment_of(ranks[rank]);
    const int number = static_cast<int>(rank);
    EXPECT_EQ(find_process_place(lookup), (ProcessPlace{number, 2, number, 2}));
    EXPECT_TRUE(default_rendezvous_address(lookup).value_or("").starts_with("tcp://127.0.0.1:"));
    EXPECT_TRUE(run_identity(lookup).starts_with("weft-"));
  }
  kill(launcher, SIGTERM);
  double seconds = 0;
  EXPECT_EQ(exit_code_of(launcher, seconds), 128 + SIGTERM);
}

TEST_F(LaunchCommand, EachLaunchHasATokenOfItsOwnAndDoesNotShowIt) {
  const std::string inherited(32, 'a');
  setenv(run_token_variable, inherited.c_str(), 1);
  std::vector<std::string> tokens;
  for (int launch = 0; launch < 2; ++launch) {
    const pid_t launcher = start_waiting_ranks();
    const auto ranks = wait_for_children_of(launcher);
    ASSERT_EQ(ranks.size(), 2u);
    for (const pid_t rank : ranks) {
      const EnvironmentLookup lookup = environment_of(rank);
      EXPECT_TRUE(run_token(lookup));
      tokens.push_back(lookup(run_token_variable).value_or(inherited));
    }
    kill(launcher, SIGTERM);
    double seconds = 0;
    EXPECT_EQ(exit_code_of(launcher, seconds), 128 + SIGTERM);
    std::ifstream messages(folder_ / "messages");
    const std::string text{std::istreambuf_iterator<char>(messages), {}};
    EXPECT_EQ(text.find(tokens.back()), std::string::npos) << text;
  }
  unsetenv(run_token_variable);
  EXPECT_EQ(tokens[0], tokens[1]);
  EXPECT_EQ(tokens[2], tokens[3]);
  EXPECT_NE(tokens[0], tokens[2]);
  EXPECT_NE(tokens[0], inherited);
}

// Each of several processes would run all ranks, into one directory.
TEST_F(TrainingUnderALauncher, IsRefusedWhereRanksAreThreads) {
  const std::pair<const char*, const char*> launchers[] = {
      {"RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", "RANK=1 and WORLD_SIZE=2 of torchrun"},
      {"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2",
       "OMPI_COMM_WORLD_RANK=0 and OMPI_COMM_WORLD_SIZE=2"},
      {"SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0", "SLURM_STEP_NUM_TASKS=2 of Slurm"}};
  for (const auto& [variables, part] : launchers) {
    const auto result = run(std::string("env ") + variables + " '" WEFT_PROGRAM "' train run.toml");
    EXPECT_EQ(result.exit_code, 2) << variables;
    EXPECT_NE(result.messages.find(part), std::string::npos) << result.messages;
    EXPECT_NE(result.messages.find("run.launch is \"threads\""), std::string::npos) << result.messages;
  }
  const auto launched = weft("launch --ranks 2 -- train run.toml");
  EXPECT_EQ(launched.exit_code, 2);
  EXPECT_NE(launched.messages.find("WORLD_SIZE=2 of weft launch"), std::string::npos) << launched.messages;
  EXPECT_NE(launched.messages.find("on the CPU it runs all ranks by itself"), std::string::npos) << launched.messages;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST_F(TrainingUnderALauncher, OfOneProcessIsARunLikeAnyOther) {
  EXPECT_EQ(weft("launch --ranks 1 -- train run.toml --checkpoint.interval=3").exit_code, 0);
  const auto batch = run("env SLURM_PROCID=0 SLURM_NTASKS=8 '" WEFT_PROGRAM "' train run.toml --run.directory=batch");
  EXPECT_EQ(batch.exit_code, 0) << batch.messages;
  // What it left is used likewise.
  EXPECT_EQ(weft("launch --ranks 1 -- generate out/tiny --prompt a --max-tokens 2").exit_code, 0);
  const auto generated = weft("launch --ranks 2 -- generate out/tiny --prompt a --max-tokens 2");
  EXPECT_EQ(generated.exit_code, 2);
  EXPECT_NE(generated.messages.find("WORLD_SIZE=2"), std::string::npos) << generated.messages;
}

// Nothing more goes into the pipe. The run was saved all the same, and a scheduler is to start it again.
TEST_F(TrainingUnderALauncher, EndsAsItsRankDoesThoughNobodyReads) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(pipe2(pipe.data(), O_CLOEXEC), 0);
  const std::string full(static_cast<std::size_t>(fcntl(pipe[1], F_GETPIPE_SZ)), '-');
  ASSERT_EQ(write(pipe[1], full.data(), full.size()), std::ssize(full));
  const pid_t launcher = fork();
  if (launcher == 0) {
    dup2(pipe[1], STDOUT_FILENO);
    if (chdir(folder_.c_str()) != 0) _exit(126);
    execl(WEFT_PROGRAM, "weft", "launch", "--ranks", "1", "--", "train", "run.toml", "--run.steps=1000000", nullptr);
    _exit(127);
  }
  close(pipe[1]);
  EXPECT_TRUE(comes_true([&] { return steps_taken("out/tiny") > 1; }));
  kill(launcher, SIGTERM);
  EXPECT_EQ(wait_for(launcher), 75);
  EXPECT_EQ(saved("out/tiny").size(), 1u);
  close(pipe[0]);
}

// The rank is there, and has not begun.
TEST_F(TrainingUnderALauncher, SavesWhereAskedAtOnce) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (chdir(folder_.c_str()) != 0) _exit(126);
    dup2(open("log", O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    execl(WEFT_PROGRAM, "weft", "launch", "--ranks", "1", "--", "train", "run.toml", "--checkpoint.at_end=false",
          nullptr);
    _exit(127);
  }
  ASSERT_TRUE(comes_true([&] { return !children_of(launcher).empty(); }));
  kill(launcher, SIGUSR2);
  EXPECT_EQ(wait_for(launcher), 0);
  EXPECT_EQ(saved("out/tiny").size(), 1u);
}

TEST_F(LaunchCommand, WrongRequestsEndWithTwo) {
  for (const char* arguments : {"launch", "launch --ranks 2", "launch --ranks 0 -- --version",
                                "launch --ranks two -- --version", "launch -- --version"}) {
    const auto result = weft(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
  }
}

}  // namespace
}  // namespace weft
