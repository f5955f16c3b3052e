// The protocol: each rank sends rank 0 a greeting that names the meeting. When all have come or time is up, rank 0
// answers each rank that came. Messages are used because MPI_Ibcast and MPI_Ibarrier can neither report the missing
// ranks nor tell the others. All messages are polled, because waits in MPI have no timeout.
#include "parallel/comm/rendezvous_kinds.h"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "parallel/runtime/error.h"

namespace weft {
namespace {

// Throws Error (failure) with MPI's text unless `result` is success; `call` is the name of the MPI function.
void check_mpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  fail("rendezvous mpi://: {} failed: {}", call, text.substr(0, length));
}

void initialise() {
  int begun = 0;
  check_mpi(MPI_Initialized(&begun), "MPI_Initialized");
  // MPI can be initialised once a process, and an earlier user may have finalised it.
  if (begun != 0) fail_request("rendezvous mpi://: this process has initialised MPI before, which MPI allows once");
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) fail("rendezvous mpi://: this MPI serves programs without threads only");
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

// The only thread of this process that calls MPI.
//
// Initialises MPI in its constructor and finalises MPI in its destructor. Both calls wait inside MPI for every rank of
// the run, and MPI cannot cancel them. A separate thread allows the wait to be abandoned: the thread then runs on until
// the process ends. The thread that initialised MPI must also finalise it, so the same thread makes all other calls.
class MpiThread {
 public:
  // Throws Error: failure if MPI is not ready within the timeout, request if this process has initialised MPI before.
  explicit MpiThread(std::chrono::milliseconds timeout)
      : timeout_(timeout), jobs_(std::make_shared<Jobs>()), thread_([jobs = jobs_] { jobs->run_all(); }) {
    auto initialised = submit(initialise);
    if (initialised.wait_for(timeout) != std::future_status::ready) {
      close();
      thread_.detach();
      fail(
          "rendezvous mpi://: MPI was not ready within {} ms: a rank did not come to its initialisation, or hangs in "
          "it",
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
  // Does not finalise MPI after a failure, because failed peers do not come to MPI_Finalize.
  ~MpiThread() {
    bool idle = true;
    if (!failed_ && std::uncaught_exceptions() == 0) {
      auto finalised = submit([] { MPI_Finalize(); });
      idle = finalised.wait_for(timeout_) == std::future_status::ready;
    }
    close();
    idle ? thread_.join() : thread_.detach();
  }
  MpiThread(const MpiThread&) = delete;
  MpiThread& operator=(const MpiThread&) = delete;

  // Runs `job` on the thread and waits for it. Rethrows its exception, which counts as a failure.
  void run(std::function<void()> job) {
    try {
      submit(std::move(job)).get();
    } catch (...) {
      failed_ = true;
      throw;
    }
  }

 private:
  // Shared with the thread, which may outlive this object.
  struct Jobs {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::packaged_task<void()>> waiting;
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

  std::future<void> submit(std::function<void()> job) {
    std::packaged_task<void()> task(std::move(job));
    auto result = task.get_future();
    {
      const std::lock_guard lock(jobs_->mutex);
      jobs_->waiting.push_back(std::move(task));
    }
    jobs_->changed.notify_one();
    return result;
  }

  void close() {
    {
      const std::lock_guard lock(jobs_->mutex);
      jobs_->closed = true;
    }
    jobs_->changed.notify_one();
  }

  const std::chrono::milliseconds timeout_;
  std::shared_ptr<Jobs> jobs_;
  std::thread thread_;
  bool failed_ = false;
};

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds poll_interval{1};
constexpr int greeting_tag = 1, answer_tag = 2;
constexpr std::size_t longest_greeting = 1024, longest_answer = (1u << 16) + 16;
constexpr std::string_view came = "came ", ended = "ended ";

// A message in flight. Its bytes stay in place until the message is complete or the process ends.
struct Message {
  std::string bytes;
  MPI_Request request = MPI_REQUEST_NULL;

  void send(std::string text, int peer, int tag) {
    bytes = std::move(text);
    check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_CHAR, peer, tag, MPI_COMM_WORLD, &request),
              "MPI_Isend");
  }
  void receive(std::size_t longest, int peer, int tag) {
    bytes.resize(longest);
    check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(longest), MPI_CHAR, peer, tag, MPI_COMM_WORLD, &request),
              "MPI_Irecv");
  }
  // Returns true when the message is complete; a received message then has its length.
  bool over(bool received) {
    if (request == MPI_REQUEST_NULL) return true;
    int done = 0;
    MPI_Status status;
    check_mpi(MPI_Test(&request, &done, &status), "MPI_Test");
    if (done == 0) return false;
    if (received) {
      int length = 0;
      check_mpi(MPI_Get_count(&status, MPI_CHAR, &length), "MPI_Get_count");
      bytes.resize(length);
    }
    return true;
  }
};

class MpiRendezvous final : public Rendezvous {
 public:
  explicit MpiRendezvous(const RendezvousOptions& options)
      : options_(options), greetings_(options.world), answers_(options.world), thread_(options.timeout) {
    thread_.run([this] { check_place(); });
  }

  std::string meet(std::string_view purpose, std::string_view brought) override {
    ++meeting_;
    purpose_ = purpose;
    require(greeting().size() <= longest_greeting, "the purpose of a meeting is short");
    std::string bytes;
    thread_.run([&] {
      const auto deadline = Clock::now() + options_.timeout;
      bytes = options_.rank == 0 ? host(brought, deadline) : join(deadline);
    });
    return bytes;
  }

 private:
  void check_place() const {
    int rank = 0, world = 0;
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &world), "MPI_Comm_size");
    if (rank == options_.rank && world == options_.world) return;
    fail_request(
        "rendezvous mpi://: MPI calls this process rank {} of {}, and the launcher's variables call it rank {} of {}; "
        "start all ranks with the mpirun of the MPI that this program was built with, or srun --mpi",
        rank, world, options_.rank, options_.world);
  }

  std::string greeting() const { return fmt::format("meeting {} of run {}, {}", meeting_, options_.run, purpose_); }

  std::string host(std::string_view brought, Clock::time_point deadline) {
    for (int rank = 1; rank < options_.world; ++rank) greetings_[rank].receive(longest_greeting, rank, greeting_tag);
    std::vector<int> missing;
    do {
      std::this_thread::sleep_for(poll_interval);
      missing.clear();
      for (int rank = 1; rank < options_.world; ++rank) {
        if (!greetings_[rank].over(true)) missing.push_back(rank);
      }
    } while (!missing.empty() && Clock::now() < deadline);

    std::string reason;
    for (int rank = 1; rank < options_.world; ++rank) {
      Message& message = greetings_[rank];
      if (message.request != MPI_REQUEST_NULL) {
        // MPI must not write the bytes after this object is destroyed.
        MPI_Cancel(&message.request);
        MPI_Wait(&message.request, MPI_STATUS_IGNORE);
      } else if (message.bytes != greeting()) {
        reason = fmt::format("rendezvous mpi://: rank {} is at \"{}\" while rank 0 is at \"{}\"", rank,
                             shown(message.bytes), greeting());
      }
    }
    if (!missing.empty()) reason = missing_text("mpi://", options_, purpose_, missing);
    answer(missing, reason.empty() ? fmt::format("{}{}", came, brought) : fmt::format("{}{}", ended, reason));
    if (!reason.empty()) fail("{}", reason);
    return std::string(brought);
  }

  void answer(const std::vector<int>& missing, const std::string& text) {
    const auto waits = [&](int rank) { return std::ranges::find(missing, rank) == missing.end(); };
    for (int rank = 1; rank < options_.world; ++rank) {
      if (waits(rank)) answers_[rank].send(text, rank, answer_tag);
    }
    const auto until = Clock::now() + rendezvous_grace;
    for (int rank = 1; rank < options_.world; ++rank) {
      while (waits(rank) && !answers_[rank].over(false)) {
        if (Clock::now() >= until) {
          fail("rendezvous mpi://: rank {} does not take the answer at \"{}\"", rank, purpose_);
        }
        std::this_thread::sleep_for(poll_interval);
      }
    }
  }

  std::string join(Clock::time_point deadline) {
    Message &sent = greetings_[options_.rank], &received = answers_[options_.rank];
    received.receive(longest_answer, 0, answer_tag);
    sent.send(greeting(), 0, greeting_tag);
    while (!received.over(true) || !sent.over(false)) {
      if (Clock::now() >= deadline + rendezvous_grace) {
        MPI_Cancel(&received.request);
        MPI_Wait(&received.request, MPI_STATUS_IGNORE);
        fail("rendezvous mpi://: rank {} waited {} ms at \"{}\" for rank 0, which did not answer", options_.rank,
             (options_.timeout + rendezvous_grace).count(), purpose_);
      }
      std::this_thread::sleep_for(poll_interval);
    }
    if (!received.bytes.starts_with(came)) fail("{}", shown(received.bytes.substr(ended.size()), 4096));
    return received.bytes.substr(came.size());
  }

  const RendezvousOptions options_;
  std::string purpose_;
  std::int64_t meeting_ = 0;
  std::vector<Message> greetings_, answers_;  // by rank
  MpiThread thread_;                          // destroyed before buffers that MPI may still read
};

}  // namespace

std::unique_ptr<Rendezvous> make_mpi_rendezvous(const RendezvousOptions& options) {
  return std::make_unique<MpiRendezvous>(options);
}

}  // namespace weft
