#include "trainer/run/run_signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// As set by the parent of this process.
bool is_ignored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  for (const int signal : {SIGINT, SIGHUP}) {
    if (!is_ignored(signal)) sigaddset(&set, signal);
  }
  return set;
}

RunSignals::RunSignals() : watched_(watched_signals()) {
  pthread_sigmask(SIG_BLOCK, &watched_, nullptr);
  signals_ = signalfd(-1, &watched_, SFD_CLOEXEC);
  ending_ = eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || ending_ < 0) fail("signals cannot be watched: {}", std::strerror(errno));
  thread_ = std::thread([this] { watch(); });
}

RunSignals::~RunSignals() {
  const std::uint64_t one = 1;
  while (::write(ending_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
  close(signals_);
  close(ending_);
  pthread_sigmask(SIG_UNBLOCK, &watched_, nullptr);
}

std::string RunSignals::stopped_by() const {
  const char* name = sigabbrev_np(stop_);
  return name == nullptr ? "a signal" : std::string("SIG") + name;
}

void RunSignals::watch() {
  std::array<pollfd, 2> entries = {{{signals_, POLLIN, 0}, {ending_, POLLIN, 0}}};
  while (true) {
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) return;
    signalfd_siginfo info{};
    if (entries[0].revents == 0 || read(signals_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGUSR2) {
      save_ = true;
    } else if (stop_.exchange(signal) != 0 || !begun_) {
      _exit(128 + signal);
    }
  }
}

}  // namespace weft
