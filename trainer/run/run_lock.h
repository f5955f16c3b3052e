// Allows one run at a time in a directory. It is an exclusive flock(2) on a file in it, which the kernel releases when
// the holder ends for any reason. The file of a killed run does not block; its content is used for messages only.
#pragma once

#include <filesystem>

namespace weft {

inline constexpr const char* run_lock_name = "run.lock";

class RunLock {
 public:
  // Creates the directory if it does not exist; `key` is its key in the configuration. Throws Error (request) if it
  // cannot be created, or, naming process, host and start time of the holder, if the lock is held. The holder's files
  // are not changed.
  RunLock(const std::filesystem::path& directory, const char* key);
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  // Releases the lock and keeps the file: another run may have just opened it.
  ~RunLock();

  // False if the file system has no locks.
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

}  // namespace weft
