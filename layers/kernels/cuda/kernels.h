// The kernels of a CUDA device, and the function that they share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "layers/kernels/attention.h"
#include "layers/kernels/gpu_kernel_options.h"
#include "layers/kernels/kernels.h"
#include "layers/kernels/matrix_products.h"
#include "parallel/runtime/ledger.h"

namespace weft::cuda {

// Attention by our own kernel, for calls that cuDNN does not take: any runs and compute dtype (plain_attention.cu).
extern const AttentionKernels plain_attention_kernels;
// AttentionKernels::cached of every device (cached_attention.cu).
void cached_attention(KernelContext& context, const HeadShape& heads, std::int64_t position, ConstTensorView q,
                      ConstTensorView cache, TensorView out);

// The kernels besides attention.
WEFT_FOR_LAYER_KERNELS(WEFT_DECLARE_KERNEL)

// Attention for a device of this compute capability (90 for 9.0); its plans belong to the rank. Calls throw Error
// (request) if the options ask for cuDNN and cuDNN does not take the attention.
AttentionKernels make_attention_kernels(int compute_capability, const GpuKernelOptions& options = {});

// Matrix products by cuBLASLt. Products are queued on `stream`; `workspace_bytes` for each of their streams are
// allocated once from `ledger`. Both outlive the products. Independent products (multiply_all) run side by side on
// streams of their own, after all work queued on `stream` before and before all work queued after. Without `measured`,
// and for shapes that are not measured, the library's first choice is taken.
std::unique_ptr<MatrixProducts> make_matrix_products(Stream& stream, MemoryLedger& ledger, bool measured,
                                                     std::int64_t workspace_bytes = product_workspace_bytes);

// Second half of deterministic sums over many rows: blocks leave partial sums, and these are added in a fixed order.
// sums[column] = the sum of partials[0 .. parts)[column], for every column; zero of no parts. partials [parts, columns]
// and sums [columns] float32. Reads 4 bytes per partial sum.
void column_sums(cudaStream_t stream, const float* partials, std::int64_t parts, std::int64_t columns, float* sums);

}  // namespace weft::cuda
