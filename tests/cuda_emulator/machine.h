// The emulated machine: devices, streams, events and memory behind the CUDA runtime functions that this library
// defines. Work is put off: nothing runs until a host thread waits for something. Then operations of all streams run
// in an order that is random but for stream order and events. Host threads may call at once; operations run one at a
// time, in the thread that waits.
//
// The CUDA runtime is a process-wide interface without a handle, so there is one machine per process. A test that
// depends on its state starts with configure().
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace weft::cuda_emulator {

// Which of the operations that could run goes next. `latest_first` prefers what was queued last, against the hope that
// other streams have got far enough. `earliest_first` hides missing events and is there to compare with.
enum class Order { random, latest_first, earliest_first };

// The defaults can be changed by WEFT_EMULATOR_DEVICES, WEFT_EMULATOR_MEMORY (bytes), WEFT_EMULATOR_SEED and
// WEFT_EMULATOR_ORDER (random, latest_first, earliest_first).
struct MachineConfig {
  int devices = 1;
  int driver = CUDART_VERSION;                      // the CUDA it supports; 0: none is installed
  std::size_t total_memory = std::size_t{8} << 30;  // bytes of each device
  std::uint64_t seed = 1;
  Order order = Order::random;

  static MachineConfig from_environment();
};

// Since the last configure().
struct MachineCounters {
  std::int64_t kernels = 0, copies = 0, synchronizations = 0;
  // Asynchronous copies from or to host memory that is not page-locked; on the device they would block the host.
  std::int64_t pageable_copies = 0;
  std::int64_t allocations = 0;       // of device memory, of either kind
  std::int64_t product_searches = 0;  // calls of cublasLtMatmulAlgoGetHeuristic
  std::int64_t graphs = 0, graph_launches = 0;
  std::int64_t pinned_blocks = 0;  // of host memory that were asked for
};

struct Operation {
  const char* name = "";
  // Whether it may run now; empty means always. Asked only while the operation is at the head of its stream, as often
  // as the scheduler likes. So it may also note that the stream has come this far. Must not call the CUDA runtime.
  std::function<bool()> ready;
  // Runs with device memory accessible. Must not call the CUDA runtime; what it throws ends the machine like a fault
  // of a kernel.
  std::function<void()> run;
};

class State;

class Machine {
 public:
  static Machine& instance();

  // A new machine: forgets all streams, events, memory, errors and pending work. No other thread may be in a call.
  void configure(const MachineConfig& config);
  const MachineConfig& config() const;
  void set_order(Order order, std::uint64_t seed);
  MachineCounters counters() const;
  // Devices that calls have made a context on, which takes memory of a real one.
  std::vector<int> contexts() const;
  void count_product_search();

  // After `passing` more calls of the named function (cudaMallocAsync; cudaLaunchKernel for any launch) the next one
  // returns `error` and does nothing.
  void fail_next(const std::string& function, cudaError_t error, int passing = 0);
  // What went wrong inside device work: divergent barriers, red zones, exceptions. The first also makes every later
  // call of the runtime fail, as on the device.
  std::vector<std::string> reports() const;
  // Runs everything that can run. Returns how many operations are left behind something that has not happened.
  std::int64_t run_all();
  // Checks the red zones of all live blocks, which otherwise happens when each is freed. True when intact.
  bool check_red_zones();

  // For emulated libraries that queue work of their own (cuBLASLt, NCCL). The stream is as in the runtime: null is the
  // legacy stream of the calling thread's device. Fails only for an unknown stream or after a fault.
  cudaError_t enqueue(cudaStream_t stream, Operation operation);
  // An operation that `participants` members must all have at the head of their streams before it runs. It runs once
  // for all of them: `run` of the member that queued last is called. The k-th call of a member with a key meets the
  // k-th calls of the others with that key. Members must use different streams for one meeting.
  cudaError_t enqueue_rendezvous(const std::string& key, int participants, int member, cudaStream_t stream,
                                 std::function<void()> run);
  // Wakes waiting threads so that they ask `ready` again, after its answer changed for a reason outside the machine.
  void notify();

  bool is_device_memory(const void* address) const;
  bool is_pinned_memory(const void* address) const;
  // Whether [address, address + bytes) lies inside one block of device memory that has not been freed.
  bool is_allocated(const void* address, std::size_t bytes) const;

  State& state() { return *state_; }  // for the files that define the runtime's functions

 private:
  Machine();
  ~Machine();
  std::unique_ptr<State> state_;
};

}  // namespace weft::cuda_emulator
