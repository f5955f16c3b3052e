#include "parallel/comm/mpi/mpi_thread.h"

#include <mpi.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

std::string initialise() {
  int begun = 0;
  check_mpi(MPI_Initialized(&begun), "MPI_Initialized");
  // MPI can be initialised once a process, and an earlier user may have finalised it.
  if (begun != 0) fail_request("rendezvous mpi://: this process has initialised MPI before, which MPI allows once");
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) fail("rendezvous mpi://: this MPI serves programs without threads only");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return {};
}

}  // namespace

void check_mpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  fail("rendezvous mpi://: {} failed: {}", call, text.substr(0, length));
}

struct MpiThread::Jobs {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::packaged_task<std::string()>> waiting;
  bool closed = false;

  void run_all() {
    for (std::unique_lock lock(mutex);;) {
      changed.wait(lock, [this] { return closed || !waiting.empty(); });
      if (waiting.empty()) return;
      auto job = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
};

MpiThread::MpiThread(std::chrono::milliseconds timeout)
    : timeout_(timeout), jobs_(std::make_shared<Jobs>()), thread_([jobs = jobs_] { jobs->run_all(); }) {
  auto initialised = submit(initialise);
  if (initialised.wait_for(timeout) != std::future_status::ready) {
    close();
    thread_.detach();
    fail("rendezvous mpi://: MPI was not ready within {} ms: a rank did not come to its initialisation, or hangs in it",
         timeout.count());
  }
  try {
    initialised.get();
  } catch (...) {
    close();
    thread_.join();
    throw;
  }
}

MpiThread::~MpiThread() {
  bool idle = true;
  if (!failed_ && std::uncaught_exceptions() == 0) {
    auto finalised = submit([] {
      MPI_Finalize();
      return std::string();
    });
    idle = finalised.wait_for(timeout_) == std::future_status::ready;
  }
  close();
  idle ? thread_.join() : thread_.detach();
}

std::string MpiThread::run(std::function<std::string()> job) {
  try {
    return submit(std::move(job)).get();
  } catch (...) {
    failed_ = true;
    throw;
  }
}

std::future<std::string> MpiThread::submit(std::function<std::string()> job) {
  std::packaged_task<std::string()> task(std::move(job));
  auto result = task.get_future();
  {
    const std::lock_guard lock(jobs_->mutex);
    jobs_->waiting.push_back(std::move(task));
  }
  jobs_->changed.notify_one();
  return result;
}

void MpiThread::close() {
  {
    const std::lock_guard lock(jobs_->mutex);
    jobs_->closed = true;
  }
  jobs_->changed.notify_one();
}

}  // namespace weft
