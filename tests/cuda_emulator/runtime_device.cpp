// Devices: how many, which one a thread uses, and what they are said to be (an H100 in most respects).
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "call.h"

using namespace weft::cuda_emulator;

namespace {

constexpr int multiprocessors = 132;

bool exists(const State& state, int device) {
  return device >= 0 && device < state.config.devices;
}

}  // namespace

extern "C" cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call("cudaGetDeviceCount", [&](State& state, State::Lock&) {
    *count = state.config.devices;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](State& state, State::Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    current_device() = device;
    state.contexts.insert(device);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](State&, State::Lock&) {
    *device = current_device();
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](State& state, State::Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "emulated device %d", device);
    std::memset(properties->uuid.bytes, device + 1, sizeof properties->uuid.bytes);
    properties->totalGlobalMem = state.config.total_memory;
    properties->sharedMemPerBlock = std::size_t{48} << 10;
    properties->sharedMemPerBlockOptin = std::size_t{227} << 10;
    properties->sharedMemPerMultiprocessor = std::size_t{228} << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 2147483647;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = 9;
    properties->multiProcessorCount = multiprocessors;
    properties->concurrentKernels = 1;
    properties->asyncEngineCount = 3;
    properties->unifiedAddressing = 1;
    properties->memoryPoolsSupported = 1;
    properties->l2CacheSize = 50 << 20;
    properties->memoryBusWidth = 5120;
    properties->pciBusID = device;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&](State& state, State::Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMaxThreadsPerBlock:
        return *value = 1024, cudaSuccess;
      case cudaDevAttrWarpSize:
        return *value = 32, cudaSuccess;
      case cudaDevAttrMultiProcessorCount:
        return *value = multiprocessors, cudaSuccess;
      case cudaDevAttrMaxThreadsPerMultiProcessor:
        return *value = 2048, cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlock:
        return *value = 48 << 10, cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return *value = 227 << 10, cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        return *value = 9, cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        return *value = 0, cudaSuccess;
      case cudaDevAttrMemoryPoolsSupported:
        return *value = 1, cudaSuccess;
      case cudaDevAttrL2CacheSize:
        return *value = 50 << 20, cudaSuccess;
      case cudaDevAttrClockRate:
        return *value = 1980000, cudaSuccess;
      case cudaDevAttrMemoryClockRate:
        return *value = 2619000, cudaSuccess;
      case cudaDevAttrGlobalMemoryBusWidth:
        return *value = 5120, cudaSuccess;
      default:
        // Better no answer than a wrong one: add the attribute when somebody needs it.
        return cudaErrorNotSupported;
    }
  });
}

extern "C" cudaError_t cudaDriverGetVersion(int* version) {
  *version = Machine::instance().config().driver;
  return cudaSuccess;
}

extern "C" cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return call("cudaDeviceGetPCIBusId", [&](State& state, State::Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0", device);
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaDeviceCanAccessPeer(int* possible, int device, int peer) {
  return call("cudaDeviceCanAccessPeer", [&](State& state, State::Lock&) {
    if (!exists(state, device) || !exists(state, peer)) return cudaErrorInvalidDevice;
    *possible = device != peer;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&](State&, State::Lock&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

extern "C" cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](State& state, State::Lock& lock) {
    state.wait(lock, state.drained_device(current_device()));
    state.give_back_reserves();
    return cudaSuccess;
  });
}

// Kernels start through launch.cuh alone, so what is asked about functions has one answer for all of them.
extern "C" cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) {
  return call("cudaFuncSetAttribute", [](State&, State::Lock&) { return cudaSuccess; });
}

extern "C" cudaError_t cudaProfilerStart() {
  return call("cudaProfilerStart", [](State&, State::Lock&) { return cudaSuccess; });
}

extern "C" cudaError_t cudaProfilerStop() {
  return call("cudaProfilerStop", [](State&, State::Lock&) { return cudaSuccess; });
}
