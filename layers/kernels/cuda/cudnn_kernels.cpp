// Attention of a CUDA rank: cuDNN's fused kernels for the calls they take, our plain kernel for the rest.
#include <cudnn.h>

#include <utility>

#include "layers/kernels/cuda/cudnn_attention.h"
#include "layers/kernels/cuda/kernels.h"
#include "parallel/runtime/cuda/runtime.h"
#include "parallel/runtime/elementwise.h"

namespace weft::cuda {
namespace {

// cuDNN's variant pack takes inputs and outputs as pointers to non-const data; inputs are not written.
std::byte* at(ConstTensorView tensor, std::int64_t row, std::int64_t column) {
  return const_cast<std::byte*>(tensor.data()) + (row * tensor.columns() + column) * size_of(tensor.dtype());
}
template <typename View>
std::byte* at(const HeadColumns<View>& of, std::int64_t row = 0) {
  return at(of.rows, row, of.column);
}
bool aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
}

std::string version_text() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("{}.{}", version / 10000, version % 10000 / 100);
}

// One run of queries, and the first row of its tensors.
struct RunCall {
  AttentionShape shape;
  std::int64_t first_row = 0;  // of q, out and log_sum_exp, in the first sequence
};

GraphType graph_type(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return GraphType::bfloat16;
    case DType::float16:
      return GraphType::float16;
    default:
      return GraphType::float32;
  }
}

template <typename View>
MatrixColumns columns_of(const AttentionHeads<View>& heads) {
  return {heads.q.rows.columns(), heads.k.rows.columns(), heads.v.rows.columns()};
}

std::vector<RunCall> calls_of(const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs,
                              const MatrixColumns& gradients) {
  std::vector<RunCall> calls;
  std::int64_t first_row = 0;
  const GraphType type = graph_type(inputs.q.rows.dtype());
  const std::int64_t sequences = inputs.k.rows.rows() / heads.sequence_length;
  for (const Range& run : runs) {
    RunCall& call = calls.emplace_back(
        run_attention_shape(heads, sequences, query_rows(runs), run, columns_of(inputs), gradients, type), first_row);
    if (!inputs.document_begins.empty()) call.shape.document_rows = query_rows(runs);
    first_row += run.count;
  }
  return calls;
}

class ChosenAttention {
 public:
  ChosenAttention(int compute_capability, const GpuKernelOptions& options)
      : compute_capability_(compute_capability),
        choice_(options.attention),
        cudnn_({.deterministic = options.deterministic, .engine = options.attention.engine}) {}

  // The reason why our kernel computes these calls, or nullopt. `takes_sums`: whether results of several runs can be
  // summed in the caller's tensors. Throws Error (request) if the options ask for cuDNN and cuDNN cannot compute the
  // calls.
  std::optional<std::string> reason_for_own(std::span<const RunCall> calls, const AttentionInputs& inputs,
                                            bool takes_sums = true) const {
    if (choice_.kernel == AttentionChoice::Kernel::own) return "as run.attention says";
    std::optional<std::string> reason = refusal(calls);
    // The library that is loaded may be older than the headers. Before 9.6 the backward added to what dq's accumulator
    // held; the choice of engines was compared with 9.19.
    if (cudnnGetVersion() < 90600) reason = fmt::format("cuDNN {} is loaded, and 9.6 is the oldest", version_text());
    if (!reason && !(aligned(at(inputs.q)) && aligned(at(inputs.k)) && aligned(at(inputs.v)))) {
      reason = "queries, keys or values begin at an odd address";
    }
    if (!reason && !takes_sums) reason = "gradients of several runs are summed, and keys have no matrix of their own";
    if (reason && choice_.kernel == AttentionChoice::Kernel::cudnn) {
      fail_request("run.attention asks for cuDNN, which does not take this attention: {}", *reason);
    }
    return reason;
  }

  std::optional<std::string> refusal(std::span<const RunCall> calls) const {
    for (const RunCall& call : calls) {
      if (auto reason = cudnn_attention_refusal(call.shape, compute_capability_)) return reason;
      // The log-sum-exp of a later run and its beginnings of documents begin at the run's first row and must be 16-byte
      // aligned.
      const bool odd_begins = call.shape.document_rows > 0 && call.first_row % 4 != 0;
      if (odd_begins || call.first_row * call.shape.heads.query_heads % 4 != 0) {
        return "a run of queries begins at an odd address";
      }
    }
    return std::nullopt;
  }

  void forward(KernelContext& context, const HeadShape& heads, QueryRuns runs, const AttentionInputs& inputs,
               TensorView out, TensorView log_sum_exp) {
    const std::vector<RunCall> calls = calls_of(heads, runs, inputs, columns_of(inputs));
    if (reason_for_own(calls, inputs)) {
      return plain_attention_kernels.forward(context, heads, runs, inputs, out, log_sum_exp);
    }
    for (const RunCall& call : calls) {
      Tensor workspace;
      cudnn_.forward(native(context.stream), call.shape, pointers_of(call, inputs, out, log_sum_exp),
                     allocator(context, workspace));
    }
  }

  void backward(KernelContext& context, const HeadShape& heads, QueryRuns runs, ConstTensorView dout,
                const AttentionInputs& inputs, ConstTensorView out, ConstTensorView log_sum_exp,
                const AttentionGradients& gradients) {
    const std::vector<RunCall> calls = calls_of(heads, runs, inputs, columns_of(gradients));
    // Each run overwrites the gradients of the keys it sees. Gradients of several runs are summed, which needs keys in
    // a matrix of their own.
    const bool adds = calls.size() > 1;
    const TensorView dkv = gradients.k.rows;
    const bool own_matrix =
        dkv.data() == gradients.v.rows.data() && gradients.k.column == 0 && dkv.columns() == heads.key_value_columns();
    if (reason_for_own(calls, inputs, !adds || own_matrix)) {
      return plain_attention_kernels.backward(context, heads, runs, dout, inputs, out, log_sum_exp, gradients);
    }
    if (adds) fill(context.stream, dkv, 0.0f);
    for (const RunCall& call : calls) {
      Tensor workspace, part;
      AttentionGradients of_run = gradients;
      if (adds) {
        part = context.ledger.allocate(Bucket::workspace, dkv.dtype(), dkv.rows(), dkv.columns());
        fill(context.stream, part, 0.0f);
        of_run.k.rows = of_run.v.rows = part;
      }
      CudnnPointers pointers = pointers_of(call, inputs, out, log_sum_exp);
      pointers[AttentionTensor::dout] = at(dout, call.first_row, 0);
      pointers[AttentionTensor::dq] = at(of_run.q, call.first_row);
      pointers[AttentionTensor::dk] = at(of_run.k);
      pointers[AttentionTensor::dv] = at(of_run.v);
      cudnn_.backward(native(context.stream), call.shape, std::move(pointers), allocator(context, workspace));
      if (adds) add(context.stream, part, dkv);
    }
  }

 private:
  // Of the forward's tensors.
  static CudnnPointers pointers_of(const RunCall& call, const AttentionInputs& inputs, ConstTensorView out,
                                   ConstTensorView log_sum_exp) {
    CudnnPointers pointers{{AttentionTensor::q, at(inputs.q, call.first_row)},
                           {AttentionTensor::k, at(inputs.k)},
                           {AttentionTensor::v, at(inputs.v)},
                           {AttentionTensor::out, at(out, call.first_row, 0)},
                           {AttentionTensor::log_sum_exp, at(log_sum_exp, call.first_row, 0)}};
    if (call.shape.document_rows > 0) {
      pointers[AttentionTensor::document_begins] = at(inputs.document_begins, call.first_row, 0);
    }
    return pointers;
  }
  // The workspace is freed in stream order after the call that asked for it is queued.
  static WorkspaceAllocator allocator(KernelContext& context, Tensor& workspace) {
    return [&](std::int64_t bytes) {
      workspace = context.ledger.allocate(Bucket::workspace, DType::int32, (bytes + 3) / 4, 1);
      return static_cast<void*>(workspace.view().data());
    };
  }

  int compute_capability_;
  AttentionChoice choice_;
  CudnnAttention cudnn_;
};

}  // namespace

AttentionKernels make_attention_kernels(int compute_capability, const GpuKernelOptions& options) {
  const auto chosen = std::make_shared<ChosenAttention>(compute_capability, options);
  AttentionKernels kernels;
  kernels.forward = [chosen](auto&&... arguments) { chosen->forward(arguments...); };
  kernels.backward = [chosen](auto&&... arguments) { chosen->backward(arguments...); };
  // A plan of cuDNN is for one number of keys, but that number grows with every token.
  kernels.cached = cached_attention;
  kernels.description = [chosen](const HeadShape& heads, QueryRuns runs, DType dtype, bool documents) {
    // Describes one sequence, in matrices as the attention segment allocates them.
    const bool whole = runs.size() == 1 && runs[0].count == heads.sequence_length;
    const ConstTensorView q(nullptr, dtype, query_rows(runs), heads.columns());
    const ConstTensorView kv(nullptr, dtype, heads.sequence_length, heads.key_value_columns());
    AttentionInputs inputs = whole ? fused_heads(heads, q) : parted_heads(heads, q, kv);
    if (documents) inputs.document_begins = ConstTensorView(nullptr, DType::int32, query_rows(runs), 1);
    const auto reason = chosen->reason_for_own(calls_of(heads, runs, inputs, columns_of(inputs)), inputs);
    return reason ? fmt::format("own kernel ({})", *reason) : fmt::format("cuDNN {}", version_text());
  };
  return kernels;
}

}  // namespace weft::cuda
