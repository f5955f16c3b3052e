// What signals ask of a run: SIGTERM and SIGUSR1 to save and leave, SIGUSR2 to save and go on. A second SIGTERM or
// SIGUSR1 ends the process at once.
#pragma once

#include <atomic>
#include <thread>

namespace weft {

class RunSignals {
 public:
  // From here on these signals are held back from the calling thread and from those it starts, and watched by a thread
  // of their own. Made before other threads are, once in a process.
  RunSignals();
  ~RunSignals();
  RunSignals(const RunSignals&) = delete;
  RunSignals& operator=(const RunSignals&) = delete;

  bool asked_to_stop() const { return stop_; }
  // Whether somebody has asked for a checkpoint since this was asked last.
  bool take_save_request() { return save_.exchange(false); }

 private:
  void watch();

  int signals_ = -1, ending_ = -1;  // descriptors
  std::atomic<bool> stop_ = false, save_ = false;
  std::thread thread_;
};

}  // namespace weft
