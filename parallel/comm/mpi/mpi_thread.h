// The one thread of this process that calls MPI.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

namespace weft {

// Initialises MPI when it is made and finalises it when it dies. Both wait inside MPI for every rank of the run, and
// MPI has no way to call that off. On a thread of its own the wait can be given up: the thread is then left to itself
// until the process ends. And since MPI is to be finalised by the thread that initialised it, the same thread makes all
// other calls.
class MpiThread {
 public:
  // Throws Error (failure) when MPI is not ready within the timeout, (request) when this process has had MPI before.
  explicit MpiThread(std::chrono::milliseconds timeout);
  // Leaves MPI as it is after a failure: peers that have failed do not come to its end either.
  ~MpiThread();
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;

  // Runs `job` on the thread, waits for it and throws what it throws, which counts as a failure.
  std::string run(std::function<std::string()> job);

 private:
  struct Jobs;  // shared with the thread, which may outlive this object
  std::future<std::string> submit(std::function<std::string()> job);
  void close();

  const std::chrono::milliseconds timeout_;
  std::shared_ptr<Jobs> jobs_;
  std::thread thread_;
  bool failed_ = false;
};

// Throws Error (failure) with MPI's words unless `result` is success; `call` is the name of what was called.
void check_mpi(int result, const char* call);

}  // namespace weft
