// Starts the ranks of a run on this machine, one process each, as torchrun would.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/process_environment.h"
#include "parallel/comm/run_token.h"
#include "parallel/runtime/error.h"
#include "tools/command/commands.h"
#include "trainer/run/console.h"
#include "trainer/run/run_signals.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Time for ranks to end after they were told to.
constexpr milliseconds end_within{4000};

struct LaunchRequest {
  int ranks = 1;
  std::optional<int> ranks_per_device;
  std::vector<std::string> arguments;
};

bool is_free(int port) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool is_free = bind(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(descriptor);
  return is_free;
}

// A free port with a free successor, on which ranks meet (parallel/comm/rendezvous.h).
int free_port() {
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = 20'000 + static_cast<int>((getpid() + Clock::now().time_since_epoch().count() / 1000) % 12'000);
    if (is_free(port) && is_free(port + 1)) return port;
    usleep(100);
  }
  fail("weft launch: no two free ports beside each other from 20000 to 32000");
}

// The environment of this process with the launcher's variables of `rank`, and without those of other launchers.
std::vector<std::string> environment_of(int rank, int ranks, int port, const std::string& token) {
  const std::vector<std::string> own = {fmt::format("RANK={}", rank),
                                        fmt::format("WORLD_SIZE={}", ranks),
                                        fmt::format("LOCAL_RANK={}", rank),
                                        fmt::format("LOCAL_WORLD_SIZE={}", ranks),
                                        "MASTER_ADDR=127.0.0.1",
                                        fmt::format("MASTER_PORT={}", port),
                                        fmt::format("TORCHELASTIC_RUN_ID={}{}-{}", launch_identity, getpid(), port),
                                        fmt::format("{}={}", run_token_variable, token)};
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string variable = *entry;
    const std::string name = variable.substr(0, variable.find('=') + 1);
    const bool replaced = std::ranges::any_of(own, [&](const auto& text) { return text.starts_with(name); });
    const bool foreign =
        name.starts_with("OMPI_COMM_WORLD_") || name.starts_with("PMI_") || name.starts_with("MPI_LOCAL");
    if (!replaced && !foreign) all.push_back(variable);
  }
  all.insert(all.end(), own.begin(), own.end());
  return all;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Forwards the lines of a pipe, with a prefix. A reader that stands still holds up the ranks, not the launcher.
class Output {
 public:
  Output(int from, PatientOutput& to, std::string prefix) : from_(from), to_(to), prefix_(std::move(prefix)) {}

  // Ready when there is something to read, and room for it.
  pollfd entry() const { return {to_.waiting() < most_waiting ? from_ : -1, POLLIN, 0}; }
  PatientOutput& to() { return to_; }
  // Whoever writes to the pipe learns that there is no reader.
  void stop_reading() {
    if (from_ >= 0) close(std::exchange(from_, -1));
  }
  // Whether it was ready. A process that a rank started may hold the pipe open without writing.
  bool take_if_ready() {
    pollfd ready = entry();
    if (ready.fd < 0 || poll(&ready, 1, 0) <= 0) return false;
    take();
    return true;
  }

  // Reads available bytes; closes the pipe at its end.
  void take() {
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(from_, bytes.data(), bytes.size());
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count > 0) line_.append(bytes.data(), static_cast<std::size_t>(count));
    // Output of rank 0 is forwarded at once, that of other ranks in whole lines.
    const bool ended = count <= 0;
    const std::size_t until = ended || prefix_.empty() ? line_.size() : line_.rfind('\n') + 1;
    std::string text;
    for (std::size_t begin = 0; begin < until;) {
      const std::size_t end = prefix_.empty() ? until : std::min(line_.find('\n', begin), until - 1) + 1;
      text += prefix_ + line_.substr(begin, end - begin);
      begin = end;
    }
    if (ended && !prefix_.empty() && !text.empty() && text.back() != '\n') text += '\n';
    line_.erase(0, until);
    to_.sputn(text.data(), std::ssize(text));
    to_.pubsync();
    if (ended) stop_reading();
  }

 private:
  static constexpr std::size_t most_waiting = 1 << 16;  // bytes

  int from_;
  PatientOutput& to_;
  const std::string prefix_;
  std::string line_;
};

// The processes of a run. They get SIGTERM when this process dies.
class Launch {
 public:
  explicit Launch(const LaunchRequest& request) {
    // As in RunSignals, signals ignored so far (nohup) stay ignored, for the ranks too.
    sigset_t watched = watched_signals();
    sigaddset(&watched, SIGCHLD);
    sigprocmask(SIG_BLOCK, &watched, &mask_of_children_);
    // A request to save waits for a rank that has not begun to take signals.
    sigaddset(&mask_of_children_, SIGUSR2);
    signals_ = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    const int port = free_port();
    const std::string token = new_run_token();
    for (int rank = 0; rank < request.ranks; ++rank) {
      start(rank, request, environment_of(rank, request.ranks, port, token));
    }
  }

  // Returns the exit code of the first rank that failed. If none did, it is that of a failed run where standard output
  // was refused, or that of a rank that saved and exited. Else it is 128 and the signal that gave up a reader, or 0.
  int wait_for_all() {
    while (running() > 0) {
      poll_once();
      note_the_dead();
      if (deadline_ && Clock::now() >= *deadline_) {
        signal_all(SIGKILL);
        deadline_.reset();
      }
    }
    const bool forwarded = forward_rest();
    note_refusal();
    if (exit_code_ != 0) return exit_code_;
    if (standard_output_.refused() != 0) return failed_run;
    if (stopped_) return stopped_by_signal;
    return forwarded ? 0 : 128 + stop_signal_;
  }

 private:
  void start(int rank, const LaunchRequest& request, std::vector<std::string> variables) {
    std::vector<std::string> arguments = {"weft"};
    arguments.insert(arguments.end(), request.arguments.begin(), request.arguments.end());
    if (request.ranks_per_device) {
      arguments.push_back(fmt::format("--run.ranks_per_device={}", *request.ranks_per_device));
    }
    const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
    std::array<int, 2> out{}, err{};
    if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0) {
      signal_all(SIGKILL);
      fail("weft launch: no pipe for rank {}: {}", rank, std::strerror(errno));
    }
    const pid_t parent = getpid(), process = fork();
    if (process == 0) {
      // Only calls allowed between fork and exec. The process group is new, so that an interrupt of the terminal
      // reaches the rank only through this process.
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGTERM);
      if (getppid() != parent) _exit(1);
      const int nothing = open("/dev/null", O_RDONLY);
      dup2(nothing, STDIN_FILENO);
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      sigprocmask(SIG_SETMASK, &mask_of_children_, nullptr);
      execve("/proc/self/exe", argv.data(), envp.data());
      _exit(127);
    }
    close(out[1]);
    close(err[1]);
    if (process < 0) {
      signal_all(SIGKILL);
      fail("weft launch: rank {} cannot be started: {}", rank, std::strerror(errno));
    }
    const std::string prefix = rank == 0 ? "" : fmt::format("[rank {}] ", rank);
    outputs_.emplace_back(out[0], rank == 0 ? standard_output_ : standard_error_, prefix);
    outputs_.emplace_back(err[0], standard_error_, prefix);
    processes_.push_back(process);
  }

  std::int64_t running() const {
    return std::ranges::count_if(processes_, [](pid_t process) { return process > 0; });
  }

  void signal_all(int signal) const {
    for (const pid_t process : processes_) {
      if (process > 0) kill(process, signal);
    }
  }

  // Ends all ranks at once. The first signal asks a rank to save, which would need all ranks; the second one ends it at
  // once.
  void end_all() {
    signal_all(SIGTERM);
    signal_all(SIGUSR1);
    if (!deadline_) deadline_ = Clock::now() + end_within;
  }

  void poll_once() {
    std::vector<pollfd> entries{{signals_, POLLIN, 0}};
    for (const Output& output : outputs_) entries.push_back(output.entry());
    for (const PatientOutput* to : {&standard_output_, &standard_error_}) {
      entries.push_back({to->waiting() > 0 ? to->descriptor() : -1, POLLOUT, 0});
    }
    poll(entries.data(), entries.size(), deadline_ ? 100 : 1000);
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (entries[i + 1].revents != 0) outputs_[i].take();
    }
    for (PatientOutput* to : {&standard_output_, &standard_error_}) to->pubsync();
    note_refusal();
    forward_signals();
  }

  // If the reader has gone, rank 0 learns it from its own pipe, saves and ends. Any other reason is told once, and the
  // ranks go on. A refused standard error decides nothing.
  void note_refusal() {
    const int reason = standard_output_.refused();
    if (reason == EPIPE) return outputs_.front().stop_reading();
    if (reason == 0 || std::exchange(told_refusal_, true)) return;
    tell(fmt::format("weft: standard output cannot be written: {}\n", std::strerror(reason)));
  }

  void tell(const std::string& text) { standard_error_.sputn(text.data(), std::ssize(text)); }

  // Forwards the last output of ranks that have ended. Returns false if a reader stood still until a signal, of now or
  // before, gave it up.
  bool forward_rest() {
    const auto gives_up = [&] {
      forward_signals();
      return stop_signal_ != 0;
    };
    const auto is_stuck = [&](PatientOutput& to) {
      to.finish(gives_up);
      return to.waiting() > 0;
    };
    // What has room is taken first: a reader that is given up still gets it if it comes back before this object ends.
    for (Output& output : outputs_) {
      while (output.take_if_ready()) {
      }
    }
    // Reads rank 0 first, because its last output is the result.
    for (Output& output : outputs_) {
      do {
        if (is_stuck(output.to())) return false;
      } while (output.take_if_ready());
    }
    return !is_stuck(standard_output_) && !is_stuck(standard_error_);
  }

  void forward_signals() {
    signalfd_siginfo info{};
    while (read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      const int signal = static_cast<int>(info.ssi_signo);
      // Ranks save on a signal; ranks that exit do so after saving.
      if (signal == SIGCHLD) continue;
      signal_all(signal);
      if (signal != SIGUSR2) stop_signal_ = signal;
    }
  }

  void note_the_dead() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      if (processes_[rank] <= 0 || waitpid(processes_[rank], &status, WNOHANG) <= 0) continue;
      processes_[rank] = -1;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code == stopped_by_signal) stopped_ = true;
      if (code == 0 || code == stopped_by_signal || exit_code_ != 0) continue;
      exit_code_ = code;
      const std::string how =
          WIFEXITED(status) ? fmt::format("ended with {}", code)
                            : fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
      tell(fmt::format("weft launch: rank {} {}; the others are told to end\n", rank, how));
      end_all();
    }
  }

  sigset_t mask_of_children_{};
  int signals_ = -1;
  std::vector<pid_t> processes_;  // by rank; -1: has ended
  // Nothing of these is dropped: ranks wait for their room.
  PatientOutput standard_output_{STDOUT_FILENO, std::string::npos}, standard_error_{STDERR_FILENO, std::string::npos};
  std::vector<Output> outputs_;
  std::optional<Clock::time_point> deadline_;  // after it, ranks still running are killed
  int exit_code_ = 0;
  int stop_signal_ = 0;   // the last one that asks ranks to end
  bool stopped_ = false;  // a rank saved and exited
  bool told_refusal_ = false;
};

void launch_ranks(const LaunchRequest& request) {
  if (const int code = Launch(request).wait_for_all(); code != 0) throw CLI::RuntimeError(code);
}

}  // namespace

void add_launch_command(CLI::App& program) {
  const auto [command, request] =
      add_command<LaunchRequest>(program, "launch", "start ranks that are processes on this machine", launch_ranks);
  command.add_option("--ranks", request.ranks, "processes to start")->required()->check(CLI::Range(1, 4096));
  command
      .add_option("--ranks-per-device", request.ranks_per_device,
                  "passed on as --run.ranks_per_device: ranks that share a GPU")
      ->check(positive());
  command.add_option("ARGUMENTS", request.arguments, "after --: what each rank runs, such as train CONFIG")->required();
  command.footer(
      "Ranks find their place in torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...). Standard output is that of\n"
      "rank 0; what others print comes to standard error, marked [rank N]. When one fails, the rest is ended within 5 "
      "s\n"
      "and its exit code returned. SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are handed on to all ranks.");
}

}  // namespace weft
