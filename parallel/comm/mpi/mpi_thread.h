// The only thread of this process that calls MPI.
#pragma once

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>

namespace weft {

// Initialises MPI in its constructor and finalises MPI in its destructor. Both calls wait inside MPI for every rank of
// the run, and MPI cannot cancel them. A separate thread allows the wait to be abandoned: the thread then runs on until
// the process ends. The thread that initialised MPI must also finalise it, so the same thread makes all other calls.
class MpiThread {
 public:
  // Throws Error: failure if MPI is not ready within the timeout, request if this process has initialised MPI before.
  explicit MpiThread(std::chrono::milliseconds timeout);
  // Does not finalise MPI after a failure, because failed peers do not come to MPI_Finalize.
  ~MpiThread();
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;

  // Runs `job` on the thread and waits for it. Rethrows its exception, which counts as a failure.
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

// Throws Error (failure) with MPI's text unless `result` is success; `call` is the name of the MPI function.
void check_mpi(int result, const char* call);

}  // namespace weft
