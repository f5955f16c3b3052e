// Stream-ordered memory. An address is known when the host asks. The block begins to exist (filled with NaN) and ends
// (filled with NaN again) when its stream gets there. Addresses are used again only after that, whatever the stream.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>

#include "call.h"

using namespace weft::cuda_emulator;

namespace {

// Pools take memory from the device in pieces of this size.
constexpr std::size_t piece = std::size_t{2} << 20;

Pool* find_pool(const State& state, cudaMemPool_t handle) {
  const auto found = state.pools.find(handle);
  return found == state.pools.end() || found->second->destroyed ? nullptr : found->second.get();
}

cudaError_t allocate(State& state, void** result, std::size_t bytes, Pool& pool, cudaStream_t handle) {
  *result = nullptr;
  const auto stream = state.find_stream(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) return cudaErrorStreamCaptureUnsupported;
  if (bytes == 0) return cudaSuccess;
  if (bytes > state.available(pool.device)) return cudaErrorMemoryAllocation;
  if (pool.maximum != 0 && pool.used + bytes > pool.maximum) return cudaErrorMemoryAllocation;
  std::byte* block = state.arena.reserve(bytes);
  if (block == nullptr) return cudaErrorMemoryAllocation;
  ++state.counters.allocations;
  pool.used += bytes;
  pool.used_high = std::max(pool.used_high, pool.used);
  if (pool.used > pool.reserved) pool.reserved = (pool.used + piece - 1) / piece * piece;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  state.blocks[block] = {bytes, pool.device, &pool};
  state.add(*stream,
            {{"allocate", {}, [&state, block, bytes] { state.arena.prepare(block, bytes); }}, 0, false, nullptr});
  *result = block;
  return cudaSuccess;
}

}  // namespace

extern "C" cudaError_t cudaMallocAsync(void** result, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMallocAsync", [&](State& state, State::Lock&) {
    Pool& pool = *state.pools.at(state.default_pools[static_cast<std::size_t>(current_device())]);
    return allocate(state, result, bytes, pool, stream);
  });
}

extern "C" cudaError_t cudaMallocFromPoolAsync(void** result, std::size_t bytes, cudaMemPool_t handle,
                                               cudaStream_t stream) {
  return call("cudaMallocFromPoolAsync", [&](State& state, State::Lock&) {
    Pool* pool = find_pool(state, handle);
    return pool != nullptr ? allocate(state, result, bytes, *pool, stream) : cudaErrorInvalidValue;
  });
}

extern "C" cudaError_t cudaFreeAsync(void* address, cudaStream_t handle) {
  return call("cudaFreeAsync", [&](State& state, State::Lock&) {
    if (address == nullptr) return cudaSuccess;
    const auto stream = state.find_stream(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    auto* block = static_cast<std::byte*>(address);
    const auto found = state.blocks.find(block);
    if (found == state.blocks.end()) return cudaErrorInvalidValue;
    const Block freed = found->second;
    state.blocks.erase(found);
    // The books follow the host's calls. An allocation may count on memory with a free still on its way, for which the
    // real allocator lets it wait.
    if (freed.pool != nullptr) {
      freed.pool->used -= freed.bytes;
    } else {
      state.allocated[static_cast<std::size_t>(freed.device)] -= freed.bytes;
    }
    const auto release = [&state, block, bytes = freed.bytes] {
      if (!state.arena.intact(block, bytes))
        state.report(cudaErrorIllegalAddress, fmt::format("something wrote behind a block of {} bytes", bytes));
      state.arena.release(block, bytes);
    };
    state.add(*stream, {{"free", {}, release}, 0, false, nullptr});
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  return call("cudaDeviceGetDefaultMemPool", [&](State& state, State::Lock&) {
    if (device < 0 || device >= state.config.devices) return cudaErrorInvalidDevice;
    *pool = state.default_pools[static_cast<std::size_t>(device)];
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMemPoolCreate(cudaMemPool_t* handle, const cudaMemPoolProps* properties) {
  return call("cudaMemPoolCreate", [&](State& state, State::Lock&) {
    if (properties->allocType != cudaMemAllocationTypePinned ||
        properties->location.type != cudaMemLocationTypeDevice || properties->location.id < 0 ||
        properties->location.id >= state.config.devices)
      return cudaErrorInvalidValue;
    auto pool = std::make_unique<Pool>();
    pool->device = properties->location.id;
    pool->maximum = properties->maxSize;
    *handle = reinterpret_cast<cudaMemPool_t>(pool.get());
    state.pools[*handle] = std::move(pool);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMemPoolDestroy(cudaMemPool_t handle) {
  return call("cudaMemPoolDestroy", [&](State& state, State::Lock&) {
    Pool* pool = find_pool(state, handle);
    const auto& defaults = state.default_pools;
    if (pool == nullptr || std::find(defaults.begin(), defaults.end(), handle) != defaults.end())
      return cudaErrorInvalidValue;
    // Blocks may outlive the pool; it goes on counting for them under a handle nobody has.
    pool->destroyed = true;
    pool->release_threshold = 0;
    state.give_back_reserves();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMemPoolTrimTo(cudaMemPool_t handle, std::size_t bytes_to_keep) {
  return call("cudaMemPoolTrimTo", [&](State& state, State::Lock&) {
    Pool* pool = find_pool(state, handle);
    if (pool == nullptr) return cudaErrorInvalidValue;
    pool->reserved = std::min(pool->reserved, std::max(pool->used, bytes_to_keep));
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return call("cudaMemPoolSetAttribute", [&](State& state, State::Lock&) {
    Pool* pool = find_pool(state, handle);
    if (pool == nullptr || value == nullptr) return cudaErrorInvalidValue;
    switch (attribute) {
      case cudaMemPoolAttrReleaseThreshold:
        pool->release_threshold = *static_cast<std::uint64_t*>(value);
        return cudaSuccess;
      case cudaMemPoolAttrUsedMemHigh:
      case cudaMemPoolAttrReservedMemHigh:
        if (*static_cast<std::uint64_t*>(value) != 0) return cudaErrorInvalidValue;
        if (attribute == cudaMemPoolAttrUsedMemHigh) pool->used_high = pool->used;
        if (attribute == cudaMemPoolAttrReservedMemHigh) pool->reserved_high = pool->reserved;
        return cudaSuccess;
      case cudaMemPoolReuseFollowEventDependencies:
      case cudaMemPoolReuseAllowOpportunistic:
      case cudaMemPoolReuseAllowInternalDependencies:
        return cudaSuccess;  // addresses are never used again early
      default:
        return cudaErrorInvalidValue;
    }
  });
}

extern "C" cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t handle, cudaMemPoolAttr attribute, void* value) {
  return call("cudaMemPoolGetAttribute", [&](State& state, State::Lock&) {
    const Pool* pool = find_pool(state, handle);
    if (pool == nullptr || value == nullptr) return cudaErrorInvalidValue;
    auto& answer = *static_cast<std::uint64_t*>(value);
    switch (attribute) {
      case cudaMemPoolAttrReleaseThreshold:
        return answer = pool->release_threshold, cudaSuccess;
      case cudaMemPoolAttrUsedMemCurrent:
        return answer = pool->used, cudaSuccess;
      case cudaMemPoolAttrUsedMemHigh:
        return answer = pool->used_high, cudaSuccess;
      case cudaMemPoolAttrReservedMemCurrent:
        return answer = pool->reserved, cudaSuccess;
      case cudaMemPoolAttrReservedMemHigh:
        return answer = pool->reserved_high, cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}
