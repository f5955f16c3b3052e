// Turns error codes of the CUDA runtime into Error.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

#include "parallel/runtime/error.h"

namespace weft::cuda {

// Throws Error if `status` is an error: "cudaMalloc(&data, bytes) failed at device.cpp:40: out of memory
// (cudaErrorMemoryAllocation)".
inline void check(cudaError_t status, std::string_view expression,
                  std::source_location place = std::source_location::current()) {
  if (status == cudaSuccess) return;
  fail("{} failed at {}:{}: {} ({})", expression, place.file_name(), place.line(), cudaGetErrorString(status),
       cudaGetErrorName(status));
}

}  // namespace weft::cuda

#define WEFT_CUDA_CHECK(expression) ::weft::cuda::check((expression), #expression)
