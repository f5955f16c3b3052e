// A file of host code: the same calls run CUB on a GPU and its stand-in under the emulator.

#include <algorithm>
#include <numeric>

#include "parallel/runtime/cuda/runtime.h"
#include "tests/cuda/two_devices.h"

namespace weft {
namespace {

TEST_F(TwoDevices, SortIsStableAndByTheLowestBits) {
  for (std::int64_t count : {0, 1, 5, 1000, 20000}) {
    for (int key_bits : {1, 7, 17, 31}) {
      SCOPED_TRACE(fmt::format("{} pairs by {} bits", count, key_bits));
      const Both keys = integers(count, 0, 0x7fffffff), sorted_keys = poisoned(DType::int32, count, 1);
      std::vector<double> numbers(count);
      std::iota(numbers.begin(), numbers.end(), 0.0);
      const Both places = values(DType::int32, count, 1, numbers), sorted = poisoned(DType::int32, count, 1);
      const std::size_t scratch_bytes = cuda::sort_scratch_bytes(count, key_bits);
      const Both scratch = poisoned(DType::int32, 1, static_cast<std::int64_t>(scratch_bytes + 3) / 4);
      const auto of = [](TensorView tensor) { return tensor.as<std::int32_t>().data(); };
      cuda::sort_pairs(cuda::native(*gpu_stream), of(keys.gpu), of(sorted_keys.gpu), of(places.gpu), of(sorted.gpu),
                       count, key_bits, scratch.gpu.data(), scratch_bytes);
      // The expectation takes the place of what the CPU wrote.
      const std::span<std::int32_t> expected = sorted.cpu.as<std::int32_t>();
      const std::span<const std::int32_t> key = keys.cpu.as<std::int32_t>();
      std::iota(expected.begin(), expected.end(), 0);
      const std::int32_t mask = (std::int32_t{1} << (key_bits - 1)) - 1 + (std::int32_t{1} << (key_bits - 1));
      std::ranges::stable_sort(expected, {}, [&](std::int32_t place) { return key[place] & mask; });
      for (std::int64_t i = 0; i < count; ++i) sorted_keys.cpu.as<std::int32_t>()[i] = key[expected[i]];
      expect_equal(sorted);
      expect_equal(sorted_keys);
    }
  }
}

}  // namespace
}  // namespace weft
