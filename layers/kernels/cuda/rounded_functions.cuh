// Elementary functions for results that are rounded to T. Where T has 16 bits the GPU's fast ones are enough. They are
// off by less than 2^-16 of the result, for x from -87 to 87. For float32 they are those of elementary.h.
#pragma once

#include <cuda_runtime.h>

#include "layers/kernels/elementary.h"

namespace weft::cuda {

template <typename T>
__device__ float rounded_exponential(float x) {
  return sizeof(T) == 2 ? __expf(x) : exponential(x);
}
template <typename T>
__device__ float rounded_logistic(float x) {
  return sizeof(T) == 2 ? __fdividef(1.0f, 1.0f + __expf(-x)) : logistic(x);
}

}  // namespace weft::cuda
