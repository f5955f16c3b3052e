// Runs kernels: block after block, the threads of a block as fibers that take turns where they wait for each other.
// Blocks, warps and lanes come in a seeded order, so that a kernel that relies on another order or forgets a barrier
// computes something else. A fiber whose thread has returned goes on with the next thread, so a kernel without
// barriers never changes stacks.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cuda_emulator/kernel.h"
#include "cuda_emulator/warp.h"
#include "fiber.h"

namespace weft::cuda_emulator {

class Processor {
 public:
  // Throws Error when the threads of a block wait for each other in vain, naming the kernel, the block and who waits
  // where.
  void run(const KernelLaunch& launch, std::uint64_t seed);

  // Called by the running thread.
  int barrier(device::BlockVote vote, int predicate);
  std::uint64_t warp_collective(const device::WarpRequest& request);
  std::uint32_t active_lanes() const;
  void* dynamic_shared() { return shared_; }
  [[noreturn]] void trap(const std::string& reason) const;

 private:
  enum class Waits : std::uint8_t { no, barrier, warp };
  struct Thread {
    uint3 index{};
    Waits waits = Waits::no;
    bool returned = false;
    Fiber* fiber = nullptr;
    device::WarpRequest request;
    std::uint64_t result = 0;
  };
  struct Warp {
    std::uint32_t existing = 0, returned = 0, waiting = 0;  // lanes; `waiting` in a warp collective
  };

  void run_block();
  void shuffle_threads();
  void work(Fiber& fiber);  // what every fiber does
  void start_thread(Fiber& fiber, std::uint32_t thread);
  void suspend();
  void wake(std::uint32_t thread);
  void fail_deadlock() const;
  std::string place() const;

  const KernelLaunch* launch_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<std::uint32_t> order_;  // in which threads start and leave a barrier
  std::vector<std::uint32_t> warp_order_;
  std::vector<std::uint32_t> ready_;  // woken threads; those from ready_head_ on are still to run
  std::size_t ready_head_ = 0;
  std::uint32_t next_ = 0;  // position in order_ of the next thread to start
  std::uint32_t current_ = 0, returned_ = 0, at_barrier_ = 0;
  int votes_ = 0, vote_result_ = 0;
  std::uint64_t seed_ = 0;
  std::exception_ptr error_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  std::vector<std::uint64_t> shared_storage_;
  void* shared_ = nullptr;
};

// What the lanes named in requests[...].mask get back, each from its request. `requests` has 32 entries.
void complete_warp(const device::WarpRequest* const* requests, std::uint32_t mask, std::uint64_t* const* results);

}  // namespace weft::cuda_emulator
