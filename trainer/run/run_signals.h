// What signals ask of a run: SIGTERM, SIGINT, SIGHUP and SIGUSR1 to save and leave, SIGUSR2 to save and go on. Before
// the first step there is nothing to save: the first four end the process at once, as a second one of them does later.
// SIGINT and SIGHUP that whoever started the process has ignored (nohup, a shell's background) stay ignored.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

namespace weft {

// Whether whoever started this process has it ignore the signal.
bool is_ignored(int signal);

class RunSignals {
 public:
  // From here on these signals are held back from the calling thread and from those it starts, and watched by a thread
  // of their own. Made before other threads are, once in a process.
  RunSignals();
  ~RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  // The first step begins: from here on there is something to save.
  void begin() { begun_ = true; }

  bool asked_to_stop() const { return stop_; }
  // Whether somebody has asked for a checkpoint since this was asked last.
  bool take_save_request() { return save_.exchange(false); }

 private:
  void watch();

  sigset_t watched_;
  int signals_ = -1, ending_ = -1;  // descriptors
  std::atomic<bool> begun_ = false, stop_ = false, save_ = false;
  std::thread thread_;
};

}  // namespace weft
