// One run at a time in a directory: an exclusive flock(2) on a file in it, which the kernel gives back when its holder
// ends, however that comes. A file that a killed run has left is no obstacle; what stands in it is for messages only.
#pragma once

#include <filesystem>

namespace weft {

inline constexpr const char* run_lock_name = "run.lock";

class RunLock {
 public:
  // Makes the directory where it is not there; `key` is what it is called in the configuration. Throws Error (request)
  // where that is refused, and naming process, host and start of a holder, whose files are as they were.
  RunLock(const std::filesystem::path& directory, const char* key);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  // Gives the lock back and leaves the file: a file removed could be one that another run has just opened.
  ~RunLock();

  // false: the file system has no locks.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

}  // namespace weft
