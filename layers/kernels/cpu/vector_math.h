// Sums for loops over a row, and the elementary functions for them (elementary.h).
#pragma once

#include <cstdint>

#include "layers/kernels/elementary.h"
#include "parallel/runtime/dtype.h"

namespace weft {

// Sums over a row in 16 interleaved partial sums, folded in halves. Unlike `omp simd reduction`, the order of additions
// is the same for every vector width and alignment. So a sum depends on its terms alone; the cost is the same.
//
// The sum of term(i) for i in [0, count). `term` must be an always-inlined lambda; otherwise it is compiled for the
// x86-64-v3 floor (parallel/runtime/dtype.h).
template <typename Term>
WEFT_INLINE float lane_sum(std::int64_t count, Term term) {
  constexpr int lane_count = 16;
  float lanes[lane_count] = {};
  std::int64_t i = 0;
  for (; i + lane_count <= count; i += lane_count) {
#pragma omp simd
    for (int lane = 0; lane < lane_count; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  for (int width = lane_count / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace weft
