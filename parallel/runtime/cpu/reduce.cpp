// Sums and maxima over the same elements of several buffers.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "parallel/runtime/dtype.h"
#include "parallel/runtime/element_type.h"
#include "parallel/runtime/elementwise.h"

namespace weft::cpu {
namespace {

// The partial results of a block stay in the first-level cache while the inputs are added one after another.
constexpr std::int64_t block_elements = 4096;

struct Sum {
  WEFT_INLINE static float combine(float a, float b) { return a + b; }
  WEFT_INLINE static double combine(double a, double b) { return a + b; }
  WEFT_INLINE static std::int32_t combine(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Maximum {
  template <typename T>
  WEFT_INLINE static T combine(T a, T b) {
    return a != a || a > b ? a : b;
  }
};

template <typename Combine, typename T, typename A>
WEFT_INLINE void first_two(const T* a, const T* b, A* partial, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) partial[i] = Combine::combine(A(a[i]), A(b[i]));
}
template <typename Combine, typename T, typename A>
WEFT_INLINE void one_more(const T* input, A* partial, std::int64_t count) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) partial[i] = Combine::combine(partial[i], A(input[i]));
}

// T is the stored type; 16-bit elements are combined in float32.
template <typename Combine, typename T>
WEFT_INLINE void reduce_blocks(std::span<const std::byte* const> inputs, std::int64_t begin, std::int64_t count,
                               std::span<std::byte* const> outputs) {
  constexpr bool rounds = sizeof(T) == 2;
  alignas(64) std::conditional_t<rounds, float, T> partial[block_elements];
  alignas(64) T rounded[rounds ? block_elements : 1];
  const auto input = [&](std::size_t rank) { return reinterpret_cast<const T*>(inputs[rank]) + begin; };
  for (std::int64_t done = 0; done < count; done += block_elements) {
    const std::int64_t n = std::min(block_elements, count - done);
    first_two<Combine>(input(0) + done, input(1) + done, partial, n);
    for (std::size_t rank = 2; rank < inputs.size(); ++rank) one_more<Combine>(input(rank) + done, partial, n);
    const void* result = partial;
    if constexpr (rounds) {
#pragma omp simd
      for (std::int64_t i = 0; i < n; ++i) assign(rounded[i], partial[i]);
      result = rounded;
    }
    for (std::byte* output : outputs) std::memcpy(output + done * sizeof(T), result, n * sizeof(T));
  }
}

}  // namespace

WEFT_MULTIVERSION void reduce_elements(Stream&, DType dtype, Reduce reduce, std::span<const std::byte* const> inputs,
                                       std::int64_t begin, std::int64_t count, std::span<std::byte* const> outputs) {
  with_stored_type(
      dtype, "reduced", [&](auto element) __attribute__((always_inline)) {
        switch (reduce) {
          case Reduce::sum:
            return reduce_blocks<Sum, decltype(element)>(inputs, begin, count, outputs);
          case Reduce::max:
            return reduce_blocks<Maximum, decltype(element)>(inputs, begin, count, outputs);
        }
      });
}

}  // namespace weft::cpu
