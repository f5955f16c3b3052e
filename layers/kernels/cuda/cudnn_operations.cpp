// Lowering to cuDNN: each tensor and each operation of the graph becomes a descriptor.
#include <iterator>
#include <optional>

#include "layers/kernels/cuda/cudnn_plan.h"

namespace weft {
namespace {

cudnnDataType_t data_type(GraphType type) {
  switch (type) {
    case GraphType::float32:
      return CUDNN_DATA_FLOAT;
    case GraphType::bfloat16:
      return CUDNN_DATA_BFLOAT16;
    case GraphType::float16:
      return CUDNN_DATA_HALF;
    case GraphType::int32:
      return CUDNN_DATA_INT32;
    case GraphType::boolean:
      return CUDNN_DATA_BOOLEAN;
  }
  fail("cuDNN has no such element type");
}

CudnnDescriptor lower_tensor(const GraphTensor& tensor) {
  CudnnDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const std::int64_t alignment = 16;
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, tensor.id);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, data_type(tensor.type));
  descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::ssize(tensor.dims), tensor.dims.data());
  descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, std::ssize(tensor.strides), tensor.strides.data());
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, alignment);
  descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, tensor.is_virtual);
  descriptor.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, tensor.scalar.has_value());
  descriptor.finalize();
  return descriptor;
}

struct Pointwise {
  cudnnPointwiseMode_t mode;
  std::optional<std::int64_t> axis;
};
std::optional<Pointwise> pointwise(GraphOperator op) {
  switch (op) {
    case GraphOperator::multiply:
      return Pointwise{CUDNN_POINTWISE_MUL, {}};
    case GraphOperator::subtract:
      return Pointwise{CUDNN_POINTWISE_SUB, {}};
    case GraphOperator::add:
      return Pointwise{CUDNN_POINTWISE_ADD, {}};
    case GraphOperator::divide:
      return Pointwise{CUDNN_POINTWISE_DIV, {}};
    case GraphOperator::greater_equal:
      return Pointwise{CUDNN_POINTWISE_CMP_GE, {}};
    case GraphOperator::exponential:
      return Pointwise{CUDNN_POINTWISE_EXP, {}};
    case GraphOperator::logarithm:
      return Pointwise{CUDNN_POINTWISE_LOG, {}};
    case GraphOperator::identity:
      return Pointwise{CUDNN_POINTWISE_IDENTITY, {}};
    case GraphOperator::row_index:
      return Pointwise{CUDNN_POINTWISE_GEN_INDEX, 2};
    case GraphOperator::column_index:
      return Pointwise{CUDNN_POINTWISE_GEN_INDEX, 3};
    case GraphOperator::select:
      return Pointwise{CUDNN_POINTWISE_BINARY_SELECT, {}};
    case GraphOperator::matmul:
    case GraphOperator::reduce_max:
    case GraphOperator::reduce_add:
    case GraphOperator::reshape:
      return {};
  }
  return {};
}

// Comparisons are computed in booleans and sums of positions in integers, everything else, including indices, in
// float32.
cudnnDataType_t precision(GraphOperator op, GraphType output) {
  if (op == GraphOperator::greater_equal) return CUDNN_DATA_BOOLEAN;
  if (op == GraphOperator::add && output == GraphType::int32) return CUDNN_DATA_INT32;
  return CUDNN_DATA_FLOAT;
}

// The constructor appends the descriptors of all tensors. `lower` appends the other descriptors that an operation
// refers to, and returns the operation's.
class Lowering {
 public:
  Lowering(const AttentionGraph& graph, std::vector<CudnnDescriptor>& descriptors)
      : graph_(graph), descriptors_(descriptors) {
    for (const GraphTensor& tensor : graph.tensors) {
      index_[tensor.id] = descriptors_.size();
      descriptors_.push_back(lower_tensor(tensor));
    }
  }

  CudnnDescriptor lower(const GraphOperation& operation) {
    if (const auto mode = pointwise(operation.op)) return lower_pointwise(operation, *mode);
    if (operation.op == GraphOperator::matmul) return lower_matmul(operation);
    if (operation.op == GraphOperator::reshape) return lower_reshape(operation);
    return lower_reduction(operation);
  }

 private:
  const CudnnDescriptor& tensor(std::int64_t id) const { return descriptors_.at(index_.at(id)); }
  const CudnnDescriptor& keep(CudnnDescriptor descriptor) {
    descriptor.finalize();
    descriptors_.push_back(std::move(descriptor));
    return descriptors_.back();
  }

  CudnnDescriptor lower_pointwise(const GraphOperation& operation, const Pointwise& mode) {
    CudnnDescriptor kind(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    kind.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode.mode);
    kind.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
             precision(operation.op, graph_.tensor(operation.output).type));
    if (mode.axis) kind.set(CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, *mode.axis);
    CudnnDescriptor lowered(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    lowered.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, keep(std::move(kind)));
    constexpr cudnnBackendAttributeName_t inputs[] = {CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
                                                      CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                                                      CUDNN_ATTR_OPERATION_POINTWISE_TDESC};
    for (std::size_t i = 0; i < operation.inputs.size(); ++i) lowered.set(inputs[i], tensor(operation.inputs[i]));
    lowered.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, tensor(operation.output));
    return lowered;
  }

  CudnnDescriptor lower_matmul(const GraphOperation& operation) {
    CudnnDescriptor kind(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    kind.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    CudnnDescriptor lowered(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    lowered.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, keep(std::move(kind)));
    lowered.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, tensor(operation.inputs.at(0)));
    lowered.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, tensor(operation.inputs.at(1)));
    lowered.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, tensor(operation.output));
    return lowered;
  }

  CudnnDescriptor lower_reduction(const GraphOperation& operation) {
    CudnnDescriptor kind(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    kind.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE,
             operation.op == GraphOperator::reduce_max ? CUDNN_REDUCE_TENSOR_MAX : CUDNN_REDUCE_TENSOR_ADD);
    kind.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
    CudnnDescriptor lowered(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    lowered.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, keep(std::move(kind)));
    lowered.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, tensor(operation.inputs.at(0)));
    lowered.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, tensor(operation.output));
    return lowered;
  }

  CudnnDescriptor lower_reshape(const GraphOperation& operation) {
    CudnnDescriptor lowered(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    lowered.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, tensor(operation.inputs.at(0)));
    lowered.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, tensor(operation.output));
    return lowered;
  }

  const AttentionGraph& graph_;
  std::vector<CudnnDescriptor>& descriptors_;
  std::map<std::int64_t, std::size_t> index_;
};

}  // namespace

CudnnOperationGraph::CudnnOperationGraph(const AttentionGraph& graph, const CudnnTarget& target) : target_(target) {
  Lowering lowering(graph, descriptors_);
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const GraphOperation& operation : graph.operations) {
    CudnnDescriptor lowered = lowering.lower(operation);
    lowered.finalize();
    operations.push_back(lowered.get());
    descriptors_.push_back(std::move(lowered));
  }
  operation_graph_.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::ssize(operations),
                       operations.data());
  if (const auto* handle = std::get_if<cudnnHandle_t>(&target.device_)) {
    operation_graph_.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, *handle);
  }
  operation_graph_.finalize();
}

}  // namespace weft
