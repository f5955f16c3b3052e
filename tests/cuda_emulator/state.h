// The state behind Machine: the queues, the scheduler that works them off, and the books of memory. Shared by the files
// that define the runtime's functions; everything except the mutex is guarded by it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "arena.h"
#include "machine.h"
#include "processor.h"

namespace weft::cuda_emulator {

struct Meeting;

struct QueuedOperation {
  Operation operation;
  std::uint64_t serial = 0;          // in order of queueing over all streams
  bool host = false;                 // runs host code, which finds device memory closed
  std::shared_ptr<Meeting> meeting;  // set: runs with those of the other members
};

// What a stream captured, or what an executable graph runs.
struct Graph {
  std::vector<QueuedOperation> operations;
};

struct Stream {
  int device = 0;
  bool blocking = false;  // keeps order with the legacy stream
  int priority = 0;
  bool destroyed = false;  // the handle is gone; pending work is not
  std::uint64_t queued = 0, completed = 0;
  std::deque<QueuedOperation> operations;
  std::shared_ptr<Graph> capture;  // set: operations are added to it
};

// One occurrence of a rendezvous.
struct Meeting {
  int participants = 0;
  std::map<int, Stream*> members;
  std::function<void()> run;
};

// One record of an event. Whoever waits for it keeps it: the event may since have been recorded on another stream, and
// that record may happen first.
struct Recording {
  bool happened = false;
  std::chrono::steady_clock::time_point time;
};
struct Event {
  bool timing = true;
  std::shared_ptr<Recording> last;  // null: never recorded
};

struct Pool {
  int device = 0;
  std::size_t maximum = 0;  // 0: none
  std::size_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
  std::uint64_t release_threshold = 0;
  bool destroyed = false;
};

struct Block {
  std::size_t bytes = 0;
  int device = 0;
  Pool* pool = nullptr;  // null: cudaMalloc
};

class State {
 public:
  using Lock = std::unique_lock<std::mutex>;

  explicit State(const MachineConfig& config);
  ~State();

  // --- scheduler (scheduler.cpp)
  // Null for a handle that does not exist.
  std::shared_ptr<Stream> find_stream(cudaStream_t handle);
  void add(Stream& stream, QueuedOperation operation);
  // Runs operations until `done`; sleeps while none can run. The lock is released only then.
  void wait(Lock& lock, const std::function<bool()>& done);
  // Runs one operation. False when none can run.
  bool step();
  // True once everything queued on the stream by now has run.
  static std::function<bool()> drained(const std::shared_ptr<Stream>& stream);
  std::function<bool()> drained_device(int device);
  void end_drain();
  void report(cudaError_t error, const std::string& message);

  // --- memory (allocation.cpp)
  // The live block that contains the range, or null.
  const Block* find_block(const void* address, std::size_t bytes) const;
  bool is_pinned(const void* address, std::size_t bytes = 1) const;
  // Bytes of a device that could still be allocated.
  std::size_t available(int device) const;
  std::size_t occupied(int device) const;
  void give_back_reserves();

  MachineConfig config;
  mutable std::mutex mutex;
  std::condition_variable changed;
  // The thread that is running an operation, which therefore must not call the runtime.
  std::atomic<std::thread::id> runner{};
  Arena arena;
  Processor processor;
  std::mt19937_64 random;
  MachineCounters counters;

  std::map<cudaStream_t, std::shared_ptr<Stream>> streams;
  std::vector<std::shared_ptr<Stream>> legacy;  // by device
  std::vector<std::shared_ptr<Stream>> active;  // all with work, in order of creation
  std::map<cudaEvent_t, std::shared_ptr<Event>> events;
  std::map<cudaGraph_t, std::shared_ptr<Graph>> graphs;
  std::map<cudaGraphExec_t, std::shared_ptr<Graph>> executables;
  std::map<std::string, std::deque<std::shared_ptr<Meeting>>> meetings;
  std::uint64_t next_serial = 1;

  std::map<const std::byte*, Block> blocks;        // not freed yet, in the order of the host's calls
  std::map<const std::byte*, std::size_t> pinned;  // page-locked host memory
  std::map<cudaMemPool_t, std::unique_ptr<Pool>> pools;
  std::vector<cudaMemPool_t> default_pools;  // by device
  std::vector<std::size_t> allocated;        // by device, by cudaMalloc
  std::set<int> contexts;                    // devices

  cudaError_t failure = cudaSuccess;  // set by the first report, returned by every call from then on
  std::deque<std::string> reports;
  struct Injection {
    cudaError_t error;
    int passing;
  };
  std::map<std::string, Injection> injections;
};

// The device that the calling thread has chosen, and its last error. Per thread, as the runtime has it.
int& current_device();
cudaError_t& last_error();

}  // namespace weft::cuda_emulator
