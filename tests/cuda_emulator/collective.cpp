// The meeting of the lanes of a warp, and the message where threads wait in vain.
#include <fmt/format.h>

#include <bit>

#include "cuda_emulator/threads.h"
#include "parallel/runtime/error.h"
#include "processor.h"
#include "state.h"

namespace weft::cuda_emulator {
namespace {

const char* name_of(device::WarpOperation operation) {
  constexpr const char* names[] = {"__syncwarp",        "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",
                                   "__shfl_xor_sync",   "__ballot_sync",     "__any_sync",        "__all_sync",
                                   "__match_any_sync",  "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
                                   "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync",
                                   "__reduce_xor_sync"};
  return names[static_cast<std::size_t>(operation)];
}

}  // namespace

std::string Processor::place() const {
  return fmt::format("the kernel launched at {}:{}, block ({}, {}, {}),", launch_->place.file_name(),
                     launch_->place.line(), blockIdx.x, blockIdx.y, blockIdx.z);
}

void Processor::trap(const std::string& reason) const {
  fail("{} thread ({}, {}, {}): {}", place(), threadIdx.x, threadIdx.y, threadIdx.z, reason);
}

std::uint64_t Processor::warp_collective(const device::WarpRequest& request) {
  const std::uint32_t first = current_ / 32 * 32, lane = current_ % 32;
  Warp& warp = warps_[current_ / 32];
  const std::uint32_t mask = request.mask;
  if ((mask >> lane & 1u) == 0)
    trap(fmt::format("{} with a mask {:#x} without the calling lane {}", name_of(request.operation), mask, lane));
  if ((mask & ~warp.existing) != 0)
    trap(fmt::format("{} with a mask {:#x} that names lanes which do not exist", name_of(request.operation), mask));
  threads_[current_].request = request;
  warp.waiting |= 1u << lane;
  bool complete = (warp.waiting & mask) == mask;
  for (std::uint32_t left = mask; complete && left != 0; left &= left - 1) {
    const auto& other = threads_[first + static_cast<std::uint32_t>(std::countr_zero(left))].request;
    complete = other.operation == request.operation && other.mask == mask;
  }
  if (!complete) {
    threads_[current_].waits = Waits::warp;
    // Another fiber runs in between; the thread is found again by its number.
    const std::uint32_t thread = current_;
    suspend();
    return threads_[thread].result;
  }
  const device::WarpRequest* requests[32] = {};
  std::uint64_t* results[32] = {};
  for (std::uint32_t other = 0; other < 32 && first + other < threads_.size(); ++other) {
    requests[other] = &threads_[first + other].request;
    results[other] = &threads_[first + other].result;
  }
  try {
    complete_warp(requests, mask, results);
  } catch (const Error& error) {
    trap(error.what());
  }
  warp.waiting &= ~mask;
  for (std::uint32_t left = mask & ~(1u << lane); left != 0; left &= left - 1)
    wake(first + static_cast<std::uint32_t>(std::countr_zero(left)));
  return threads_[current_].result;
}

void Processor::fail_deadlock() const {
  for (std::size_t number = 0; number < threads_.size(); ++number) {
    const Thread& thread = threads_[number];
    if (thread.waits != Waits::warp) continue;
    const Warp& warp = warps_[number / 32];
    const std::uint32_t mask = thread.request.mask;
    std::string others;
    for (std::uint32_t left = mask; left != 0; left &= left - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(left));
      const Thread& other = threads_[number / 32 * 32 + lane];
      if (other.waits == Waits::warp && other.request.operation == thread.request.operation &&
          other.request.mask == mask)
        continue;
      if (!others.empty()) continue;
      others = (warp.returned >> lane & 1u) != 0 ? fmt::format("lane {} has returned", lane)
               : other.waits == Waits::barrier   ? fmt::format("lane {} waits at __syncthreads", lane)
                                                 : fmt::format("lane {} waits at {} with mask {:#x}", lane,
                                                               name_of(other.request.operation), other.request.mask);
    }
    fail("{} divergent warp collective: thread {} waits at {} with mask {:#x}, but {}", place(), number,
         name_of(thread.request.operation), mask, others);
  }
  fail("{} divergent barrier: {} of {} threads wait at __syncthreads, {} have returned", place(), at_barrier_,
       threads_.size(), returned_);
}

namespace device {

int block_barrier(BlockVote vote, int predicate) {
  return Machine::instance().state().processor.barrier(vote, predicate);
}
std::uint64_t warp_collective(const WarpRequest& request) {
  return Machine::instance().state().processor.warp_collective(request);
}
std::uint32_t active_lanes() {
  return Machine::instance().state().processor.active_lanes();
}
void* dynamic_shared_memory() {
  return Machine::instance().state().processor.dynamic_shared();
}
void trap(const char* reason) {
  Machine::instance().state().processor.trap(reason);
}

}  // namespace device
}  // namespace weft::cuda_emulator
