// Radix sort by CUB: about one pass over the pairs for each 8 bits of key; 16 bytes a pair and pass.

#include <cub/device/device_radix_sort.cuh>

#include <limits>

#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/error.h"

namespace weft::cuda {
namespace {

const std::uint32_t* bits(const std::int32_t* keys) {
  return reinterpret_cast<const std::uint32_t*>(keys);
}
std::uint32_t* bits(std::int32_t* keys) {
  return reinterpret_cast<std::uint32_t*>(keys);
}

}  // namespace

std::size_t sort_scratch_bytes(std::int64_t count, int key_bits) {
  require(count >= 0 && count <= std::numeric_limits<std::int32_t>::max(), "pairs are numbered in 32 bits");
  std::size_t bytes = 0;
  WEFT_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, static_cast<const std::uint32_t*>(nullptr), static_cast<std::uint32_t*>(nullptr),
      static_cast<const std::int32_t*>(nullptr), static_cast<std::int32_t*>(nullptr), static_cast<std::uint32_t>(count),
      0, key_bits));
  return bytes < 1 ? 1 : bytes;
}

void sort_pairs(cudaStream_t stream, const std::int32_t* keys_in, std::int32_t* keys_out, const std::int32_t* values_in,
                std::int32_t* values_out, std::int64_t count, int key_bits, void* scratch, std::size_t scratch_bytes) {
  require(count >= 0 && count <= std::numeric_limits<std::int32_t>::max(), "pairs are numbered in 32 bits");
  if (count == 0) return;
  WEFT_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, bits(keys_in), bits(keys_out), values_in,
                                                  values_out, static_cast<std::uint32_t>(count), 0, key_bits, stream));
}

}  // namespace weft::cuda
