// Device memory that is allocated at once, page-locked host memory, and questions about both.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "call.h"

using namespace weft::cuda_emulator;

namespace weft::cuda_emulator {

const Block* State::find_block(const void* address, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(address);
  auto block = blocks.upper_bound(first);
  if (block == blocks.begin()) return nullptr;
  --block;
  const bool inside =
      first + bytes <= block->first + block->second.bytes && first <= block->first + block->second.bytes;
  return inside ? &block->second : nullptr;
}

bool State::is_pinned(const void* address, std::size_t bytes) const {
  const auto* first = static_cast<const std::byte*>(address);
  auto range = pinned.upper_bound(first);
  if (range == pinned.begin()) return false;
  --range;
  return first + bytes <= range->first + range->second;
}

std::size_t State::occupied(int device) const {
  std::size_t bytes = allocated[static_cast<std::size_t>(device)];
  for (const auto& [handle, pool] : pools) {
    if (pool->device == device) bytes += pool->reserved;
  }
  return bytes;
}

std::size_t State::available(int device) const {
  // What pools hold without using it is given up when memory runs out.
  std::size_t bytes = allocated[static_cast<std::size_t>(device)];
  for (const auto& [handle, pool] : pools) {
    if (pool->device == device) bytes += pool->used;
  }
  return bytes < config.total_memory ? config.total_memory - bytes : 0;
}

void State::give_back_reserves() {
  for (const auto& [handle, pool] : pools) {
    const std::size_t kept = std::max<std::size_t>(pool->used, pool->release_threshold);
    pool->reserved = std::min(pool->reserved, std::max(kept, pool->used));
  }
}

}  // namespace weft::cuda_emulator

extern "C" cudaError_t cudaMalloc(void** result, std::size_t bytes) {
  return call("cudaMalloc", [&](State& state, State::Lock&) {
    *result = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes > state.available(current_device())) return cudaErrorMemoryAllocation;
    std::byte* block = state.arena.reserve(bytes);
    if (block == nullptr) return cudaErrorMemoryAllocation;
    ++state.counters.allocations;
    state.allocated[static_cast<std::size_t>(current_device())] += bytes;
    state.blocks[block] = {bytes, current_device(), nullptr};
    state.arena.open();
    state.arena.prepare(block, bytes);
    state.arena.close();
    *result = block;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaFree(void* address) {
  return call("cudaFree", [&](State& state, State::Lock& lock) {
    if (address == nullptr) return cudaSuccess;
    auto* block = static_cast<std::byte*>(address);
    const auto found = state.blocks.find(block);
    if (found == state.blocks.end()) return cudaErrorInvalidValue;
    const Block freed = found->second;
    state.blocks.erase(found);
    // Waits for all work of the device, as the real one does.
    state.wait(lock, state.drained_device(freed.device));
    if (freed.pool != nullptr) {
      freed.pool->used -= freed.bytes;
    } else {
      state.allocated[static_cast<std::size_t>(freed.device)] -= freed.bytes;
    }
    state.arena.open();
    if (!state.arena.intact(block, freed.bytes))
      state.report(cudaErrorIllegalAddress, fmt::format("something wrote behind a block of {} bytes", freed.bytes));
    state.arena.release(block, freed.bytes);
    state.arena.close();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  return call("cudaMemGetInfo", [&](State& state, State::Lock&) {
    *total_bytes = state.config.total_memory;
    *free_bytes = state.config.total_memory - std::min(state.config.total_memory, state.occupied(current_device()));
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaHostAlloc(void** result, std::size_t bytes, unsigned) {
  return call("cudaHostAlloc", [&](State& state, State::Lock&) {
    constexpr std::size_t page = 4096;
    const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
    auto* block = static_cast<std::byte*>(std::aligned_alloc(page, rounded));
    if (block == nullptr) return cudaErrorMemoryAllocation;
    std::memset(block, 0xFF, rounded);
    state.pinned[block] = bytes;
    ++state.counters.pinned_blocks;
    *result = block;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMallocHost(void** result, std::size_t bytes) {
  return cudaHostAlloc(result, bytes, cudaHostAllocDefault);
}

extern "C" cudaError_t cudaFreeHost(void* address) {
  return call("cudaFreeHost", [&](State& state, State::Lock&) {
    if (address == nullptr) return cudaSuccess;
    if (state.pinned.erase(static_cast<std::byte*>(address)) == 0) return cudaErrorInvalidValue;
    std::free(address);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  return call("cudaPointerGetAttributes", [&](State& state, State::Lock&) {
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    if (const Block* block = state.find_block(address, 1)) {
      attributes->type = cudaMemoryTypeDevice;
      attributes->device = block->device;
      attributes->devicePointer = const_cast<void*>(address);
    } else if (state.is_pinned(address)) {
      attributes->type = cudaMemoryTypeHost;
      attributes->devicePointer = attributes->hostPointer = const_cast<void*>(address);
    } else {
      attributes->hostPointer = const_cast<void*>(address);
    }
    return cudaSuccess;
  });
}
