// The CUDA runtime for the CUDA code of all floors: its errors, its streams, and its only library sort.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string_view>

#include "parallel/runtime/device.h"
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

// The CUDA stream behind a stream of a CUDA device (device.h). CUDA code gets no other streams.
cudaStream_t native(Stream& stream);

// A sort by CUB, behind a plain function. The emulator of the tests has its own implementation
// (tests/cuda_emulator/sort.cpp), because CUB cannot run there.
//
// Bytes of device memory that sort_pairs needs for `count` pairs; at least 1.
std::size_t sort_scratch_bytes(std::int64_t count, int key_bits);

// Queues on `stream`: (keys_out, values_out) = the pairs (keys_in, values_in) in ascending order of the lowest
// `key_bits` bits of their keys, read as an unsigned number. The sort is stable. All arrays are [count] in device
// memory and do not overlap; count < 2^31. `scratch` has at least sort_scratch_bytes(count, key_bits) bytes and is
// 16-byte aligned.
void sort_pairs(cudaStream_t stream, const std::int32_t* keys_in, std::int32_t* keys_out, const std::int32_t* values_in,
                std::int32_t* values_out, std::int64_t count, int key_bits, void* scratch, std::size_t scratch_bytes);

}  // namespace weft::cuda

#define WEFT_CUDA_CHECK(expression) ::weft::cuda::check((expression), #expression)
