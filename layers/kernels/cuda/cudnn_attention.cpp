#include "layers/kernels/cuda/cudnn_attention.h"

namespace weft {
namespace {

// Rounds up to the alignment of the parts of a workspace.
std::int64_t aligned(std::int64_t bytes) {
  constexpr std::int64_t alignment = 256;
  return (bytes + alignment - 1) / alignment * alignment;
}

std::int64_t head_dim_limit(int compute_capability) {
  return compute_capability / 10 == 9 ? 256 : 128;
}

bool has_aligned_rows(const HeadStrides& strides) {
  return strides.batch % 8 == 0 && strides.head % 8 == 0 && strides.row % 8 == 0;
}

}  // namespace

std::optional<std::string> cudnn_attention_refusal(const AttentionShape& shape, int compute_capability) {
  if (compute_capability < 80) {
    return fmt::format("compute capability {} has no 16-bit attention, 80 is the first", compute_capability);
  }
  if (shape.type != GraphType::bfloat16 && shape.type != GraphType::float16) {
    return "attention is bfloat16 or float16 only";
  }
  const HeadShape& heads = shape.heads;
  if (shape.document_rows > 0 && compute_capability / 10 != 9) {
    return "its engines keep the documents of a sequence apart for compute capability 9.0 alone";
  }
  if (!heads.first_key.is_window()) return "queries see keys by another rule than a window";
  if (heads.key_value_heads <= 0 || heads.query_heads % heads.key_value_heads != 0) {
    return fmt::format("{} query heads do not share {} key-value heads evenly", heads.query_heads,
                       heads.key_value_heads);
  }
  if (shape.batch <= 0 || shape.query_length <= 0 || heads.sequence_length <= 0) return "there is nothing to attend to";
  const std::int64_t limit = head_dim_limit(compute_capability);
  for (const std::int64_t width : {heads.head_dim, heads.value_dim}) {
    if (width % 8 != 0 || width <= 0) {
      return fmt::format("heads of {} columns are no multiple of 8, the 16 bytes of a load", width);
    }
    if (width > limit) {
      return fmt::format("heads of {} columns exceed {}, the widest of the backward for compute capability {}", width,
                         limit, compute_capability);
    }
  }
  for (const HeadStrides& strides : {shape.q, shape.k, shape.v, shape.out, shape.dq, shape.dk, shape.dv}) {
    if (!has_aligned_rows(strides)) return "rows of a head do not begin at multiples of 16 bytes";
  }
  return {};
}

CudnnAttention::CudnnAttention(CudnnAttentionOptions options) : options_(options) {
  WEFT_CUDNN(cudnnCreate(&handle_));
  target_.emplace(handle_);
}

CudnnAttention::~CudnnAttention() {
  // Plans refer to the handle and are destroyed before it.
  forward_plans_.clear();
  backward_plans_.clear();
  cudnnDestroy(handle_);
}

const CudnnPlan& CudnnAttention::forward_plan(const AttentionShape& shape) {
  const auto found = forward_plans_.find(shape);
  if (found != forward_plans_.end()) return found->second;
  return forward_plans_.try_emplace(shape, attention_forward_graph(shape), *target_, options_.engine).first->second;
}

const CudnnPlan& CudnnAttention::backward_plan(const AttentionShape& shape) {
  const auto found = backward_plans_.find(shape);
  if (found != backward_plans_.end()) return found->second;
  const AttentionGraph graph = attention_backward_graph(shape, options_.deterministic);
  return backward_plans_.try_emplace(shape, graph, *target_, options_.engine).first->second;
}

std::int64_t CudnnAttention::forward_workspace_bytes(const AttentionShape& shape) {
  return aligned(forward_plan(shape).workspace_bytes());
}

std::int64_t CudnnAttention::backward_workspace_bytes(const AttentionShape& shape) {
  return aligned(backward_plan(shape).workspace_bytes()) + aligned(row_sums_bytes(shape)) +
         aligned(dq_accumulator_bytes(shape, options_.deterministic));
}

void CudnnAttention::forward(cudaStream_t stream, const AttentionShape& shape, const CudnnPointers& pointers,
                             const WorkspaceAllocator& allocate) {
  const CudnnPlan& plan = forward_plan(shape);
  const std::int64_t bytes = forward_workspace_bytes(shape);
  void* workspace = bytes > 0 ? allocate(bytes) : nullptr;
  WEFT_CUDNN(cudnnSetStream(handle_, stream));
  plan.execute(handle_, pointers, workspace);
}

void CudnnAttention::backward(cudaStream_t stream, const AttentionShape& shape, CudnnPointers pointers,
                              const WorkspaceAllocator& allocate) {
  const CudnnPlan& plan = backward_plan(shape);
  auto* workspace = static_cast<std::byte*>(allocate(backward_workspace_bytes(shape)));
  std::byte* row_sums = workspace + aligned(plan.workspace_bytes());
  pointers[AttentionTensor::row_sums] = row_sums;
  if (!options_.deterministic) {
    pointers[AttentionTensor::dq_accumulator] = row_sums + aligned(row_sums_bytes(shape));
  }
  WEFT_CUDNN(cudnnSetStream(handle_, stream));
  plan.execute(handle_, pointers, workspace);
}

}  // namespace weft
