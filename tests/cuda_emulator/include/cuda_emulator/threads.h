// The coordinates of the running thread and the barriers of its block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

// Set by the emulator before a thread runs and whenever it goes on after waiting. One block runs at a time in the whole
// process, so these need not be thread-local.
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 blockDim;
extern dim3 gridDim;
constexpr int warpSize = 32;

namespace weft::cuda_emulator::device {

enum class BlockVote { none, count, all, any };
// Waits until every thread of the block has come here; the vote over all `predicate`s.
int block_barrier(BlockVote vote, int predicate);
// Start of the dynamic shared memory of the running block.
void* dynamic_shared_memory();
// Ends the kernel with an error that names it, the block and the thread.
[[noreturn]] void trap(const char* reason);

}  // namespace weft::cuda_emulator::device

inline void __syncthreads() {
  weft::cuda_emulator::device::block_barrier(weft::cuda_emulator::device::BlockVote::none, 0);
}
inline int __syncthreads_count(int predicate) {
  return weft::cuda_emulator::device::block_barrier(weft::cuda_emulator::device::BlockVote::count, predicate);
}
inline int __syncthreads_and(int predicate) {
  return weft::cuda_emulator::device::block_barrier(weft::cuda_emulator::device::BlockVote::all, predicate);
}
inline int __syncthreads_or(int predicate) {
  return weft::cuda_emulator::device::block_barrier(weft::cuda_emulator::device::BlockVote::any, predicate);
}
// Threads take turns, so memory is always coherent.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}
inline void __trap() {
  weft::cuda_emulator::device::trap("__trap() was called");
}
