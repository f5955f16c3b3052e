// The only library sort of the CUDA backend, behind a plain function. The emulator of the tests has its own
// implementation (tests/cuda_emulator/sort.cpp), because CUB cannot run there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace weft::cuda {

// Bytes of device memory that sort_pairs needs for `count` pairs; at least 1.
std::size_t sort_scratch_bytes(std::int64_t count, int key_bits);

// Queues on `stream`: (keys_out, values_out) = the pairs (keys_in, values_in) in ascending order of the lowest
// `key_bits` bits of their keys, read as an unsigned number. The sort is stable. All arrays are [count] in device
// memory and do not overlap; count < 2^31. `scratch` has at least sort_scratch_bytes(count, key_bits) bytes and is
// 16-byte aligned.
void sort_pairs(cudaStream_t stream, const std::int32_t* keys_in, std::int32_t* keys_out, const std::int32_t* values_in,
                std::int32_t* values_out, std::int64_t count, int key_bits, void* scratch, std::size_t scratch_bytes);

}  // namespace weft::cuda
