// Errors of the runtime: their names, texts, and the last one of each thread.
#include <cuda_runtime_api.h>

#include <iterator>

#include "machine.h"
#include "state.h"

using namespace weft::cuda_emulator;

namespace {

struct ErrorText {
  cudaError_t error;
  const char* name;
  const char* text;
};
#define TEXT(error, text) \
  { error, #error, text }
constexpr ErrorText error_texts[] = {
    TEXT(cudaSuccess, "no error"),
    TEXT(cudaErrorInvalidValue, "invalid argument"),
    TEXT(cudaErrorMemoryAllocation, "out of memory"),
    TEXT(cudaErrorInitializationError, "initialization error"),
    TEXT(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    TEXT(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    TEXT(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    TEXT(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    TEXT(cudaErrorInvalidDevice, "invalid device ordinal"),
    TEXT(cudaErrorInvalidDeviceFunction, "invalid device function"),
    TEXT(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    TEXT(cudaErrorNotReady, "device not ready"),
    TEXT(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    TEXT(cudaErrorMisalignedAddress, "misaligned address"),
    TEXT(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    TEXT(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    TEXT(cudaErrorLaunchFailure, "unspecified launch failure"),
    TEXT(cudaErrorNotPermitted, "operation not permitted"),
    TEXT(cudaErrorNotSupported, "operation not supported"),
    TEXT(cudaErrorUnknown, "unknown error"),
};
#undef TEXT

const ErrorText* find(cudaError_t error) {
  for (const ErrorText& entry : error_texts) {
    if (entry.error == error) return &entry;
  }
  return nullptr;
}

}  // namespace

extern "C" const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* entry = find(error);
  return entry != nullptr ? entry->name : "unrecognized error code";
}

extern "C" const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* entry = find(error);
  return entry != nullptr ? entry->text : "unrecognized error code";
}

extern "C" cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  last_error() = cudaSuccess;
  // A fault of device work stays.
  const State& state = Machine::instance().state();
  const State::Lock lock(state.mutex);
  return state.failure != cudaSuccess ? state.failure : error;
}

extern "C" cudaError_t cudaPeekAtLastError() {
  const State& state = Machine::instance().state();
  const State::Lock lock(state.mutex);
  return state.failure != cudaSuccess ? state.failure : last_error();
}
