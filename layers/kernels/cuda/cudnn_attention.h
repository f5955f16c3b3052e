// Attention by cuDNN's fused kernels, bfloat16 and float16 only. `cudnn_attention_refusal` tells beforehand which calls
// they do not take; the plain kernel computes those.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "layers/kernels/cuda/cudnn_plan.h"

namespace weft {

// The reason why cuDNN has no engine for this shape, forward and backward; nullopt if it has. `compute_capability` is
// that of the device, 90 for 9.0. All lengths and offsets are accepted. Derived from cuDNN 9.19 for 80, 90 and 100 and
// compared with its heuristics by tests/cuda/cudnn_acceptance_test.cpp; other devices are assumed to be like 80.
std::optional<std::string> cudnn_attention_refusal(const AttentionShape& shape, int compute_capability);

struct CudnnAttentionOptions {
  // By default dq is summed by atomic additions in float32, so repeated runs differ in its last bits. The deterministic
  // backward stores batch * query_heads * queries * keys scores instead: 2.3 GB where the default needs 0.3 GB.
  bool deterministic = false;
  int engine = -1;  // index in the heuristics' list for a graph; -1: the first that can be prepared
};

// Returns 256-byte aligned device memory that stays valid until the work queued by the forward or backward has run.
// Each forward or backward calls it at most once.
using WorkspaceAllocator = std::function<void*(std::int64_t bytes)>;

// One per rank and device (the one current at construction); not thread-safe. Plans are kept by shape: the first call
// with a shape takes about a second of the host, later ones microseconds.
class CudnnAttention {
 public:
  explicit CudnnAttention(CudnnAttentionOptions options = {});
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Bytes that the allocator will be asked for. Builds the plan. The backward's bytes include the float32 scratch of
  // attention_graph.h.
  std::int64_t forward_workspace_bytes(const AttentionShape& shape);
  std::int64_t backward_workspace_bytes(const AttentionShape& shape);

  // Both queue work on `stream` and return. `pointers` has the first elements of the shape's tensors except for
  // scratch, and of the beginnings of documents only with shape.document_rows. The backward overwrites dq, dk and dv.
  void forward(cudaStream_t stream, const AttentionShape& shape, const CudnnPointers& pointers,
               const WorkspaceAllocator& allocate);
  void backward(cudaStream_t stream, const AttentionShape& shape, CudnnPointers pointers,
                const WorkspaceAllocator& allocate);

 private:
  using Plans = std::map<AttentionShape, CudnnPlan>;

  const CudnnPlan& forward_plan(const AttentionShape& shape);
  const CudnnPlan& backward_plan(const AttentionShape& shape);

  CudnnAttentionOptions options_;
  cudnnHandle_t handle_ = nullptr;
  std::optional<CudnnTarget> target_;
  Plans forward_plans_, backward_plans_;
};

}  // namespace weft
