// In place of cuDNN, which only a GPU can run: the plain kernel for every shape.
#include "layers/kernels/cuda/kernels.h"

namespace weft::cuda {

AttentionKernels make_attention_kernels(int, const GpuKernelOptions&) {
  AttentionKernels kernels = plain_attention_kernels;
  kernels.description = [](const HeadShape&, QueryRuns, DType, bool) { return std::string("own kernel (emulated)"); };
  return kernels;
}

}  // namespace weft::cuda
