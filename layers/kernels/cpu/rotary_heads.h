// The arithmetic of rotary_forward on the heads of one token. T is float, bfloat16 or float16.
#pragma once

#include "parallel/runtime/dtype.h"

namespace weft {

// Angles of the pairs (first[i], second[i]) at one position.
struct Angles {
  const float* cosines = nullptr;
  const float* sines = nullptr;
};

// The heads of one token that share a norm weight (null without QK-norm): all of q, or all of k.
template <typename T>
struct HeadRow {
  std::int64_t heads = 0, head_dim = 0;
  const T* weight = nullptr;
  Angles angles;
  float eps = 0;
};

// y: the heads of x, normalised if there is a weight, and rotated. y may be x.
void turn_heads(const HeadRow<float>& row, const float* x, float* y);
void turn_heads(const HeadRow<bfloat16>& row, const bfloat16* x, bfloat16* y);
void turn_heads(const HeadRow<float16>& row, const float16* x, float16* y);
// dx: the gradient of x; dx may be dy. x is read and dweight is added to only if there is a norm weight.
void turn_heads_back(const HeadRow<float>& row, const float* dy, const float* x, float* dx, float* dweight);
void turn_heads_back(const HeadRow<bfloat16>& row, const bfloat16* dy, const bfloat16* x, bfloat16* dx, float* dweight);
void turn_heads_back(const HeadRow<float16>& row, const float16* dy, const float16* x, float16* dx, float* dweight);

}  // namespace weft
