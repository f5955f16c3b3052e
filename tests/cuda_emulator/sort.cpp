// Stands in for parallel/runtime/cuda/sort.cu, which uses CUB.
#include "parallel/runtime/cuda/runtime.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "machine.h"
#include "parallel/runtime/error.h"

namespace weft::cuda {
namespace {

struct Pair {
  std::int32_t key, value;
};

}  // namespace

// As much as two more copies of the pairs, which is about what CUB asks for.
std::size_t sort_scratch_bytes(std::int64_t count, int) {
  return 1 + static_cast<std::size_t>(count) * sizeof(Pair);
}

void sort_pairs(cudaStream_t stream, const std::int32_t* keys_in, std::int32_t* keys_out, const std::int32_t* values_in,
                std::int32_t* values_out, std::int64_t count, int key_bits, void* scratch, std::size_t scratch_bytes) {
  if (count == 0) return;
  cuda_emulator::Machine& machine = cuda_emulator::Machine::instance();
  const std::size_t needed = sort_scratch_bytes(count, key_bits), bytes = static_cast<std::size_t>(count) * 4;
  require(key_bits > 0 && key_bits <= 32, "a key has bits");
  require(scratch_bytes >= needed && machine.is_allocated(scratch, needed), "a sort has its scratch");
  for (const void* array : {static_cast<const void*>(keys_in), static_cast<const void*>(keys_out),
                            static_cast<const void*>(values_in), static_cast<const void*>(values_out)})
    require(machine.is_allocated(array, bytes), "a sort reads and writes device memory");
  const auto run = [=] {
    std::memset(scratch, 0xff, needed);
    std::vector<Pair> pairs;
    for (std::int64_t i = 0; i < count; ++i) pairs.push_back({keys_in[i], values_in[i]});
    const std::uint32_t mask = 0xffffffffu >> (32 - key_bits);
    std::ranges::stable_sort(pairs, {}, [mask](Pair pair) { return static_cast<std::uint32_t>(pair.key) & mask; });
    for (std::int64_t i = 0; i < count; ++i) {
      keys_out[i] = pairs[static_cast<std::size_t>(i)].key;
      values_out[i] = pairs[static_cast<std::size_t>(i)].value;
    }
  };
  const cudaError_t error = machine.enqueue(stream, {"sort", {}, run});
  if (error != cudaSuccess) fail("a sort could not be queued: {}", cudaGetErrorString(error));
}

}  // namespace weft::cuda
