// Signals to a run: SIGTERM, SIGINT, SIGHUP and SIGUSR1 mean save and stop, SIGUSR2 means save and continue. Before the
// first step there is nothing to save: the first four end the process at once. Later a second one of these four ends it
// at once. SIGINT and SIGHUP stay ignored if the parent process ignored them (nohup, background of a shell).
#pragma once

#include <atomic>
#include <csignal>
#include <string>
#include <thread>

namespace weft {

// All of these signals except those that stay ignored.
sigset_t watched_signals();

class RunSignals {
 public:
  // Blocks these signals in the calling thread and in threads that it starts later; a separate thread receives them.
  // Constructed once in a process, before other threads.
  RunSignals();
  ~RunSignals();

  // Called when the first step begins; from then on there is something to save.
  void begin() { begun_ = true; }

  bool asked_to_stop() const { return stop_ != 0; }
  // "SIGTERM": the signal that asked for it.
  std::string stopped_by() const;
  // Whether a checkpoint was requested since the last call.
  bool take_save_request() { return save_.exchange(false); }

 private:
  void watch();

  sigset_t watched_;
  int signals_ = -1, ending_ = -1;  // descriptors
  std::atomic<bool> begun_ = false, save_ = false;
  std::atomic<int> stop_ = 0;  // the signal
  std::thread thread_;
};

}  // namespace weft
